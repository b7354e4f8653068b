// The page of a provision: what follows the run is fetched again by htmx, and what
// the reader has opened, typed or filtered stays as it is.
import {filter} from "./diff.js";

const run = () => document.getElementById("run");
let over = run()?.dataset.over !== undefined;

// What a new state of a part must not take away.
const kept = new WeakMap();

// Which of the parts that fold the server has sent open: a plan opens when it
// awaits approval, unless the reader has folded it.
const sent = new Map();
const learn = (parts) => {
	for (const d of document.querySelectorAll(`:is(${parts}) details[id]`)) {
		sent.set(d.id, d.open);
	}
};
learn("#run, #outcome, #inventory");

document.addEventListener("htmx:beforeSwap", ({detail}) => {
	const part = detail.target;
	if (!part?.matches?.("#run, #outcome, #inventory")) {
		return;
	}
	const open = new Map([...part.querySelectorAll("details[id]")].filter((d) => d.open !== sent.get(d.id)).map((d) => [d.id, d.open]));
	const typed = new Map([...part.querySelectorAll("input[id]:not([type=hidden]), select[id]")].map((i) => [i.id, {value: i.value, checked: i.checked}]));
	// A form that is being sent keeps its name for what it does.
	const wrong = part.querySelector("[data-input-error]:not([hidden])")?.textContent; // of an answer, as the browser says
	kept.set(document, {part: `#${part.id}`, open, typed, wrong});
});

document.addEventListener("htmx:afterSwap", () => {
	const {part, open, typed, wrong} = kept.get(document) ?? {};
	kept.delete(document);
	if (part) {
		learn(part); // and of no other: what is open there the reader may have opened
	}
	const error = wrong && document.querySelector("[data-input-error]");
	if (error) {
		error.textContent = wrong;
		error.hidden = false;
	}
	for (const [id, value] of open ?? []) {
		const d = document.getElementById(id);
		if (d && d.open !== value) {
			d.open = value;
		}
	}
	for (const [id, {value, checked}] of typed ?? []) {
		const i = document.getElementById(id);
		if (i && (i.value !== value || i.checked !== checked)) {
			Object.assign(i, i.matches("[type=checkbox]") ? {checked} : {value});
		}
	}
	follow();
});

// follow has the rest of the page renewed where the run says that it has changed.
function follow() {
	const now = run();
	if (!now) {
		return;
	}
	for (const part of document.querySelectorAll("#outcome, #inventory")) {
		if (part.dataset.mark !== now.dataset.mark && part.dataset.asked !== now.dataset.mark) {
			part.dataset.asked = now.dataset.mark;
			htmx.trigger(part, "renew");
		}
	}
	for (const input of document.querySelectorAll("[data-filter]")) {
		filter(input);
	}
	const viewer = document.getElementById("log")?.viewer;
	viewer?.restage();
	if (now.dataset.over !== undefined) {
		viewer?.source.finish();
		if (!over) {
			over = true;
			document.querySelector(".flash")?.remove(); // what it says was of before
		}
	}
	beganAt = performance.now();
}

// The run is asked for when it has changed (the log often hears of that first), but
// once a second at most: while lines come by there is always something.
let soon = 0, asked = -Infinity;
const ask = () => {
	soon ||= setTimeout(() => {
		soon = 0;
		asked = performance.now();
		if (run()) {
			htmx.trigger(run(), "renew");
		}
	}, Math.max(50, asked + 1000 - performance.now()));
};
document.addEventListener("live", ({target}) => target === run() && ask());
document.addEventListener("log:status", ask);

// Times that go on.
let beganAt = performance.now();
const words = (s) => s < 60 ? `${Math.floor(s)} s` : s < 3600 ? `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s` : `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min`;
setInterval(() => {
	for (const e of document.querySelectorAll("[data-elapsed]")) {
		const text = words(Number(e.dataset.elapsed) + (performance.now() - beganAt) / 1000);
		if (e.textContent !== text) {
			e.textContent = text;
		}
	}
}, 1000);

document.addEventListener("click", (event) => {
	if (event.target.closest?.("[data-first-error]")) {
		const log = document.getElementById("log");
		if (log.viewer?.firstError()) {
			event.preventDefault();
			log.scrollIntoView({block: "start"});
			log.querySelector("[data-log=lines]").focus({preventScroll: true});
		}
	}
});
