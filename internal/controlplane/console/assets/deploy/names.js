// Puts many texts into a list at once: names, one on each line, or a CSV file with a
// column name, which the server reads as it reads planned machines.
import {fill, valueOf} from "./slots.js";
import {button, el, say} from "./dom.js";

// manyAtOnce is a button that opens the field for them.
export function manyAtOnce(slot, at, on) {
	const id = `${at.id}-many`;
	const area = el("textarea", {id, rows: 6, spellcheck: "false", autocomplete: "off", autocapitalize: "none", placeholder: "ann\nbob"});
	const file = el("input", {id: `${id}-file`, type: "file", accept: ".csv,.txt,text/csv,text/plain"});
	const error = el("p", {class: "error", role: "alert", hidden: true});
	file.addEventListener("change", async () => {
		if (file.files[0]) {
			area.value = await file.files[0].text();
			area.focus();
		}
	});
	const use = button("Use these", async () => {
		const body = new URLSearchParams({machines: area.value, org_id: document.querySelector("#deploy [name=org_id]")?.value ?? ""});
		const answer = await fetch("/deploy/names", {method: "POST", body, headers: {Accept: "application/json"}}).catch(() => null);
		const found = answer?.ok ? await answer.json() : {problem: "The server is not responding. Nothing is lost: try again."};
		if (found.problem) {
			return say(error, found.problem);
		}
		fill(slot, found.names);
		// The focus stays where somebody types by now.
		const elsewhere = document.activeElement !== document.body && !holder.contains(document.activeElement);
		on.shape(elsewhere ? null : `${at.id}-add`);
	});
	const open = button("Paste or load a list", () => {
		area.value = (valueOf(slot) ?? []).filter((v) => typeof v === "string").join("\n");
		panel.hidden = false;
		open.hidden = true;
		holder.classList.add("many-open");
		area.focus();
	}, {"aria-label": `Paste or load a list into ${at.label}`});
	const panel = el("div", {class: "stack tight", hidden: true}, el("label", {for: id}, "One a line, or CSV with a column called name"), area, el("label", {for: `${id}-file`, class: "small"}, "From a file"), file, error,
		el("p", {class: "row"}, use, button("Cancel", () => on.shape(`${at.id}-add`), {class: "btn btn-quiet btn-small"})));
	const holder = el("div", {class: "many-at-once"}, open, panel);
	return holder;
}
