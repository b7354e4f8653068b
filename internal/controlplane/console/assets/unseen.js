// A text as an element shows it, with marks for what cannot be seen.
import {mark, special} from "./log/marks.js";

export function fill(element, text) {
	element.replaceChildren();
	let at = 0;
	for (const found of text.matchAll(special)) {
		if (found[1] === undefined || found[1] === "\n") {
			continue;
		}
		const unseen = document.createElement("span");
		const {label, title} = mark(found[1]);
		Object.assign(unseen, {className: "unseen", textContent: label, title});
		element.append(text.slice(at, found.index), unseen);
		at = found.index + found[0].length;
	}
	element.append(text.slice(at));
}
