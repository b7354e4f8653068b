// The controls of a log, and what it says of itself.

import {keys} from "./keys.js";

const words = {
	loading: "Loading log…",
	live: "Live",
	polling: "Live, polling every 2 seconds: a proxy is buffering the stream",
	reconnecting: "Reconnecting …",
	failed: "Can't show the log",
};

export function toolbar(viewer) {
	const {part, section, view, search} = viewer;
	const input = part("search"), cased = part("cased"), pattern = part("pattern");

	const look = () => viewer.look(input.value, {cased: pressed(cased), pattern: pressed(pattern)});
	input.addEventListener("input", look);
	input.addEventListener("keydown", (event) => {
		if (event.key === "Enter") {
			event.preventDefault();
			viewer.step(event.shiftKey ? -1 : 1);
		} else if (event.key === "Escape") {
			if (input.value !== "") {
				event.preventDefault(); // and so it leaves nothing else
			}
			input.value = "";
			look();
			part("lines").focus();
		}
	});
	toggle(cased, look);
	toggle(pattern, look);
	part("next").addEventListener("click", () => viewer.step(1));
	part("previous").addEventListener("click", () => viewer.step(-1));

	toggle(part("errors"), (on) => viewer.onlyErrors(on));
	for (const name of ["wrap", "times"]) {
		const set = (on) => {
			view[name] = on;
			section.classList.toggle("log-" + name, on);
			view.measure();
			view.again();
			remember(name, on);
		};
		toggle(part(name), set);
		if (remembered(name)) {
			part(name).click();
		}
	}
	part("follow").addEventListener("click", () => {
		if (view.following) {
			view.following = false;
			viewer.tell();
		} else {
			view.follow();
		}
	});
	part("jump").addEventListener("click", () => {
		view.follow();
		part("lines").focus();
	});
	const filled = () => part("full").setAttribute("aria-pressed", String(document.fullscreenElement === section || section.classList.contains(filling)));
	part("full").addEventListener("click", () => full(section).then(filled));
	document.addEventListener("fullscreenchange", filled);
	section.addEventListener("keydown", (event) => {
		if (event.key === "Escape" && !event.defaultPrevented && section.classList.contains(filling)) {
			section.classList.remove(filling);
			filled();
		}
	});

	keys(section, {
		"/": () => input.focus(),
		n: () => viewer.step(1),
		N: () => viewer.step(-1),
		f: () => part("follow").click(),
		e: () => viewer.firstError(),
		g: () => top(viewer, 0),
		G: () => view.follow(),
	});

	viewer.told = {
		found() {
			const count = search.at.length + (search.full ? "+" : "");
			part("count").textContent = search.query === "" ? "" : search.problem !== "" ? search.problem
				: search.looking && search.at.length === 0 ? "looking …" : search.at.length === 0 ? "no match"
					: search.current < 0 ? `${count} ${search.at.length === 1 ? "match" : "matches"}` : `${search.current + 1} of ${count}`;
			input.setAttribute("aria-invalid", String(search.problem !== ""));
			part("previous").hidden = part("next").hidden = search.query === "";
		},
		state() {
			const more = viewer.lines.length - viewer.seen, empty = viewer.lines.length === 0;
			part("follow").setAttribute("aria-pressed", String(view.following));
			part("jump").hidden = view.following || viewer.state === "loading" || section.dataset.over !== undefined && more === 0;
			part("jump").textContent = more > 0 ? `Jump to latest ↓ ${more.toLocaleString()} new` : "Jump to latest ↓";
			part("total").textContent = empty ? "" : `${viewer.lines.length.toLocaleString()} ${viewer.lines.length === 1 ? "line" : "lines"}`;
			part("errors-count").textContent = viewer.lines.errorCount > 0 ? String(viewer.lines.errorCount) : "";
			part("errors").disabled = viewer.lines.errorCount === 0 && !view.onlyErrors;
			part("state").textContent = (words[viewer.state] ?? "") + (viewer.state === "failed" ? `: ${viewer.why}` : viewer.state === "loading" && viewer.why ? ` ${Math.round(viewer.why * 100)} %` : "");
			part("state").dataset.state = viewer.state;
			part("empty").hidden = !empty || viewer.state === "loading" || viewer.state === "failed";
			part("empty").textContent = section.dataset.over === undefined ? "Waiting for output…" : "This run has no output.";
			part("loading").hidden = !(empty && viewer.state === "loading");
		},
	};
	search.changed();
}

function top(viewer, y) {
	viewer.view.following = false;
	viewer.part("lines").scrollTop = y;
	viewer.tell();
}

const pressed = (button) => button.getAttribute("aria-pressed") === "true";

function toggle(button, changed) {
	button.addEventListener("click", () => {
		const on = !pressed(button);
		button.setAttribute("aria-pressed", String(on));
		changed(on);
	});
}

const filling = "log-filling"; // the window, where a browser lets nothing have the screen

async function full(section) {
	if (document.fullscreenElement) {
		return document.exitFullscreen();
	}
	if (section.classList.contains(filling)) {
		return section.classList.remove(filling);
	}
	try {
		await section.requestFullscreen();
	} catch {
		section.classList.add(filling);
	}
}

// Where a browser keeps nothing, nothing is remembered.
function remember(name, on) {
	try {
		localStorage.setItem("trellis-log-" + name, on ? "1" : "");
	} catch {
		return;
	}
}

function remembered(name) {
	try {
		return localStorage.getItem("trellis-log-" + name) === "1";
	} catch {
		return false;
	}
}
