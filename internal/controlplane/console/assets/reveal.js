// Sensitive outputs that are sealed to a person's key: this browser opens, on the
// page and only when asked, what is sealed to the key that it keeps.
import {kept, open} from "./personkey.js";
import {parse, write} from "./deploy/json.js";
import {fill} from "./unseen.js";

let own = null;
const opened = new Map(); // by message: what is shown now

// shown is a value as the server shows those that are not sensitive.
function shown(json) {
	const value = parse(json);
	return typeof value === "string" ? value : write(value);
}

// draw shows each sealed output as it stands for this browser.
function draw() {
	for (const output of document.querySelectorAll("[data-sealed]")) {
		const mine = own?.recipient === output.dataset.to;
		const text = opened.get(output.dataset.sealed);
		const [word, button, value, copy] = ["word", "button", "value", "copy"].map((name) => output.querySelector(`[data-part=${name}]`));
		button.hidden = !mine;
		button.textContent = text === undefined ? "Reveal" : "Hide";
		button.setAttribute("aria-label", `${button.textContent} ${output.dataset.name}`);
		word.hidden = text !== undefined;
		value.hidden = copy.hidden = text === undefined;
		copy.firstElementChild.dataset.copy = text ?? "";
		fill(value, text ?? "");
	}
	for (const help of document.querySelectorAll("[data-sealed-to]")) {
		help.hidden = own?.recipient === help.dataset.sealedTo;
		for (const e of help.querySelectorAll("[data-when]")) {
			e.hidden = e.dataset.when !== (own ? "other" : "none");
		}
	}
}

document.addEventListener("click", async (event) => {
	const output = event.target.closest?.("[data-part=button]")?.closest("[data-sealed]");
	if (!output) {
		return;
	}
	const {sealed} = output.dataset;
	if (!opened.delete(sealed)) {
		try {
			opened.set(sealed, shown(await open(own, sealed)));
		} catch {
			output.querySelector("[data-part=word]").lastChild.textContent = " Sealed, and your key in this browser does not open it";
			return;
		}
	}
	draw();
});

// A part of the page that the server has sent again shows what it showed.
document.addEventListener("htmx:afterSwap", draw);
// A page that is left and restored shows nothing revealed.
addEventListener("pagehide", () => {
	opened.clear();
	draw();
});
addEventListener("pageshow", async (event) => {
	if (event.persisted) {
		own = await kept();
		draw();
	}
});

own = await kept();
draw();
