// Buttons that copy: <button class="copy" data-copy="text"> or data-copy-from="#id".
import {toast} from "./toasts.js";

async function write(text) {
	if (navigator.clipboard) return navigator.clipboard.writeText(text);
	// Without HTTPS there is no clipboard but the old way.
	const area = document.createElement("textarea");
	area.value = text;
	area.className = "visually-hidden";
	document.body.append(area);
	area.select();
	const done = document.execCommand("copy");
	area.remove();
	if (!done) throw new Error("the browser does not let this page copy");
}

document.addEventListener("click", async (event) => {
	const button = event.target.closest?.("[data-copy], [data-copy-from]");
	if (!button) return;
	const from = button.dataset.copyFrom;
	const text = from ? document.querySelector(from)?.textContent : button.dataset.copy;
	try {
		await write(text ?? "");
	} catch {
		toast("warning", "This browser does not let the page copy. Select the text and copy it by hand.");
		return;
	}
	button.dataset.done = "";
	const label = button.querySelector("span");
	const before = label?.textContent;
	if (label) label.textContent = "Copied";
	button.focus();
	setTimeout(() => {
		delete button.dataset.done;
		if (label) label.textContent = before;
	}, 1500);
});
