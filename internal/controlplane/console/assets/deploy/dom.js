// Makes elements. What they say is always set as text, never as markup.

// el makes an element: attributes (false and null: none), listeners (onclick: f),
// then what is in it.
export function el(tag, attributes = {}, ...children) {
	const made = document.createElement(tag);
	for (const [name, value] of Object.entries(attributes)) {
		if (typeof value === "function") {
			made.addEventListener(name.slice(2), value);
		} else if (value !== false && value !== null && value !== undefined) {
			made.setAttribute(name, value === true ? "" : value);
		}
	}
	made.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
	return made;
}

// button is one of the small buttons of a form.
export function button(text, onclick, attributes = {}) {
	return el("button", {type: "button", class: "btn btn-small", onclick, ...attributes}, text);
}

// choose is a select of [value, text] pairs.
export function select(options, chosen, onchange, attributes = {}) {
	const made = el("select", {...attributes}, ...options.map(([value, text]) => el("option", {value}, text)));
	made.value = chosen;
	made.addEventListener("change", () => onchange(made.value));
	return made;
}

// say shows a text, or hides the element where there is none.
export function say(element, text) {
	element.textContent = text;
	element.hidden = !text;
}
