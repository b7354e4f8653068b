// The page Deploy. Each step works without this but for the form of the step
// Configure, which is then JSON alone.
import {Configure} from "./deploy/configure.js";
import * as drafts from "./deploy/draft.js";
import {asks, kept} from "./personkey.js";

const form = document.getElementById("deploy");
if (form?.dataset.step === "configure") {
	configure(form);
} else if (form?.dataset.step === "review") {
	review(form);
}

// configure draws the form for the key that this browser has; once more where the
// reader has made or removed one elsewhere, and comes back.
async function configure(form) {
	const key = async () => {
		const own = await kept();
		return own ? asks(own) : undefined;
	};
	const now = await key();
	new Configure(form, now);
	addEventListener("pageshow", async (event) => event.persisted && (await key()) !== now && location.reload());
}

// review shows what the browser has kept as the server sees it.
function review(form) {
	const kept = drafts.load(form.dataset.draft);
	if (!kept) {
		return;
	}
	form.querySelector("#nothing").hidden = true;
	form.querySelector("#loading").hidden = false;
	window.htmx.ajax("POST", form.getAttribute("action"), {target: "#review", swap: "innerHTML", values: {config_snapshot: kept.text}});
}

document.addEventListener("htmx:afterSwap", (event) => {
	if (event.target.id === "review") {
		label();
		event.target.querySelector("h2")?.scrollIntoView({block: "nearest"});
	}
});

// Where machines would go stands in the bar, too, which is in sight wherever somebody types.
document.addEventListener("htmx:afterSwap", (event) => {
	if (event.target.id === "placement") {
		document.getElementById("placed").textContent = event.target.querySelector("[data-sum]")?.textContent ?? "";
	}
});
for (const failure of ["htmx:responseError", "htmx:sendError", "htmx:timeout"]) {
	document.addEventListener(failure, (event) => {
		if (event.detail.target?.id === "placement") {
			event.detail.target.replaceChildren("The server did not respond. The next change tries again.");
		}
	});
}

// Nothing came of it: it can be tried again.
for (const failure of ["htmx:responseError", "htmx:sendError", "htmx:timeout"]) {
	document.addEventListener(failure, (event) => {
		if (event.detail.target?.id !== "review") {
			return;
		}
		const again = document.createElement("button");
		again.type = "button";
		again.className = "btn";
		again.textContent = "Try again";
		again.addEventListener("click", () => location.reload());
		document.getElementById("loading").replaceChildren("The server did not respond. Nothing is lost.", again);
	});
}

// The button says what it does.
const words = {"plan-first": "Create plan", plan: "Create plan", apply: "Deploy now"};
function label() {
	const submit = document.querySelector("[data-deploy]");
	const mode = document.querySelector("[name=mode]:checked")?.value;
	if (submit && words[mode]) {
		submit.lastChild.textContent = words[mode];
	}
}
document.addEventListener("change", (event) => event.target.name === "mode" && label());
label();

// Deliveries is not offered again, unless somebody comes back to it, or it was
// refused.
document.addEventListener("submit", (event) => mark(event.target, true));
mark(document.querySelector("form[data-step=deploy]"), false);
function mark(form, sent) {
	const kept = form?.dataset.step === "deploy" && drafts.load(form.dataset.draft);
	if (kept) {
		drafts.save(form.dataset.draft, {...kept, sent});
	}
}
