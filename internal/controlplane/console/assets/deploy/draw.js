// Draws a slot as form elements, and writes into it what people do. What changes
// the form's shape has it drawn anew by whoever asked (on.shape).
import {write} from "./json.js";
import {manyAtOnce} from "./names.js";
import {added, choose, moved, type as typeInto} from "./slots.js";
import {member} from "./types.js";
import {button, el, select} from "./dom.js";

// draw returns what goes under a slot's label. at is {id, path, label}; on has
// changed(), and shape(id) with the id of what is to have the focus afterwards; null leaves it.
export function draw(slot, at, on) {
	if (slot.state === "unset" && !["string", "number", "bool"].includes(slot.type.kind)) {
		return unset(slot, at, on);
	}
	if (slot.state === "null") {
		return el("p", {class: "muted", id: at.id, tabindex: "-1"}, "null: no value");
	}
	if (slot.state === "json") {
		return json(slot, at, on);
	}
	switch (slot.type.kind) {
		case "string":
		case "number":
			return text(slot, at, on);
		case "bool":
			return bool(slot, at, on);
		case "map":
			return map(slot, at, on);
		case "object":
			return object(slot, at, on);
		case "tuple":
			return group(at, ...slot.items.map((item, i) => line(item, child(at, `[${i}]`, `${i + 1}`), on)));
		case "list":
		case "set":
			return list(slot, at, on);
	}
	return unset(slot, at, on); // of any type
}

const child = (at, step, label) => ({id: `${at.id}${step}`, path: `${at.path}${step}`, label: `${at.label} ${label}`, short: label});
const group = (at, ...children) => el("div", {role: "group", "aria-label": at.label, class: "nested", id: at.id, tabindex: "-1"}, ...children);

// states are what a person can choose of a slot that has more than one.
export function states(slot, unsetText) {
	const found = [];
	if (slot.mayUnset) {
		found.push(["unset", unsetText]);
	}
	if (slot.type.kind === "bool" && slot.state !== "json") {
		found.push(["true", "true"], ["false", "false"]);
	} else if (slot.state === "json" && slot.type.kind !== "any") {
		found.push(["json", "as JSON"], ["value", "start over"]);
	} else {
		found.push(["value", slot.mayUnset && unsetText === "default" ? "own value" : "value"]);
	}
	if (slot.mayNull || slot.state === "null") {
		found.push(["null", "null"]);
	}
	return found;
}

// stateSelect is the choice between them; nothing where there is none.
export function stateSelect(slot, at, unsetText, on) {
	const options = states(slot, unsetText);
	if (options.length < 2) {
		return null;
	}
	const now = slot.type.kind === "bool" && slot.state === "value" ? String(slot.bool) : slot.state === "json" && slot.type.kind === "any" ? "value" : slot.state;
	const id = `${at.id}-state`;
	return select(options, now, (state) => {
		if (state === "true" || state === "false") {
			choose(slot, "value");
			slot.bool = state === "true";
		} else {
			choose(slot, state);
		}
		on.shape(id);
	}, {id, class: "state", "aria-label": `${at.label}: what it is`});
}

function unset(slot, at, on) {
	const word = slot.fallback === undefined ? "Fill in" : "Change";
	return el("p", {class: "row", id: at.id, tabindex: "-1"}, button(word, () => {
		choose(slot, "value");
		on.shape(at.id);
	}, {"aria-label": `${word} ${at.label}`}));
}

function json(slot, at, on) {
	const area = el("textarea", {id: at.id, class: "mono", rows: Math.min(12, slot.json.split("\n").length + 1), spellcheck: "false", autocomplete: "off", "aria-label": `${at.label} as JSON`, "data-path": at.path});
	area.value = slot.json;
	area.addEventListener("input", () => {
		slot.json = area.value;
		on.changed();
	});
	return area;
}

function text(slot, at, on) {
	const shown = slot.state === "unset" ? "" : slot.text;
	const lines = slot.type.kind === "string" && (slot.lines || shown.includes("\n"));
	const attributes = {id: at.id, "aria-label": at.short ? at.label : null, autocomplete: "off", autocapitalize: "none", spellcheck: "false", list: slot.list, "data-path": at.path,
		placeholder: slot.placeholder ?? (slot.state === "unset" && slot.fallback !== undefined ? oneLine(slot.fallback) : null)};
	const input = lines ? el("textarea", {...attributes, class: "mono", rows: Math.min(12, shown.split("\n").length + 1)})
		: el("input", {...attributes, type: "text", inputmode: slot.type.kind === "number" ? "decimal" : null});
	input.value = shown;
	input.addEventListener("input", () => {
		if (input.value === "" && slot.emptyIsUnset) {
			slot.state = "unset";
		} else {
			typeInto(slot, input.value);
		}
		on.changed();
	});
	if (lines || slot.type.kind === "number" || slot.list || slot.oneLine) {
		return input;
	}
	input.addEventListener("paste", (event) => {
		const pasted = event.clipboardData?.getData("text") ?? "";
		if (pasted.trim().includes("\n")) { // which this input would drop
			event.preventDefault();
			typeInto(slot, input.value.slice(0, input.selectionStart) + pasted + input.value.slice(input.selectionEnd));
			on.shape(at.id);
		}
	});
	if (at.short) { // within something else there is little room
		return input;
	}
	return el("div", {class: "row nowrap"}, input, button("¶", () => {
		slot.lines = true;
		on.shape(at.id);
	}, {title: "Several lines", "aria-label": `${at.label}: several lines`}));
}

// oneLine is a value as an input can show it.
export const oneLine = (value) => (typeof value === "string" ? value : value === null ? "" : write(value, ""));

function bool(slot, at, on) { // an element of something; a variable's own is its state
	if (slot.state === "unset" || slot.mayUnset) {
		return null;
	}
	return select([["true", "true"], ["false", "false"]], String(slot.bool), (value) => {
		slot.bool = value === "true";
		on.changed();
	}, {id: at.id, "aria-label": at.label, "data-path": at.path});
}

// line is a slot within another, with its label before it.
function line(slot, at, on, ...buttons) {
	return el("div", {class: "line"},
		el("span", {class: "line-label muted small"}, at.short),
		el("div", {class: "grow"}, slot.state !== "value" || slot.mayUnset ? stateSelect(slot, at, "not given", on) : null, draw(slot, at, on)),
		...buttons);
}

function list(slot, at, on) {
	const shape = (id) => on.shape(id);
	const lines = slot.items.map((item, i) => line(item, child(at, `[${i}]`, `${i + 1}`), on,
		slot.type.kind === "list" && i > 0 && button("↑", () => {
			moved(slot, i, i - 1);
			shape(`${at.id}[${i - 1}]`);
		}, {class: "btn btn-quiet btn-small", title: "Move up", "aria-label": `Move ${at.label} ${i + 1} up`}),
		button("×", () => {
			slot.items.splice(i, 1);
			shape(`${at.id}-add`);
		}, {class: "btn btn-quiet btn-small", title: "Remove", "aria-label": `Remove ${at.label} ${i + 1}`})));
	return group(at, ...lines, !lines.length && el("p", {class: "muted small"}, "An empty list."), el("div", {class: "row"}, button("+ Add", () => {
		added(slot);
		shape(`${at.id}[${slot.items.length - 1}]`);
	}, {id: `${at.id}-add`, "aria-label": `Add to ${at.label}`}), slot.type.of.kind === "string" && !slot.emptyIsUnset && manyAtOnce(slot, at, on)));
}

function map(slot, at, on) {
	const rows = slot.rows.map((row, i) => {
		const key = el("input", {id: `${at.id}{${i}}`, class: "key mono", autocomplete: "off", spellcheck: "false", placeholder: "name", "aria-label": `${at.label}: name ${i + 1}`});
		key.value = row.key;
		key.addEventListener("input", () => {
			row.key = key.value;
			on.changed();
		});
		const inner = {id: `${at.id}(${i})`, path: member(at.path, row.key), label: `${at.label} ${row.key || i + 1}`, short: row.key || `${i + 1}`};
		return el("div", {class: "line"}, key, el("div", {class: "grow"}, row.slot.state === "null" && stateSelect(row.slot, inner, "", on), draw(row.slot, inner, on)), button("×", () => {
			slot.rows.splice(i, 1);
			on.shape(`${at.id}-add`);
		}, {class: "btn btn-quiet btn-small", title: "Remove", "aria-label": `Remove ${at.label} ${row.key || i + 1}`}));
	});
	return group(at, ...rows, !rows.length && el("p", {class: "muted small"}, "An empty map."), button("+ Add", () => {
		added(slot);
		on.shape(`${at.id}{${slot.rows.length - 1}}`);
	}, {id: `${at.id}-add`, "aria-label": `Add to ${at.label}`}));
}

function object(slot, at, on) {
	const lines = [...slot.attributes].map(([name, attribute]) => {
		attribute.mayUnset = slot.type.optional.has(name) || attribute.state === "unset";
		const made = line(attribute, child(at, `.${name}`, name), on);
		made.classList.add("attribute");
		return made;
	});
	const extra = slot.extra.size ? [el("p", {class: "muted small"}, `Kept from the JSON, and ignored by the template: ${[...slot.extra.keys()].join(", ")}`)] : [];
	return group(at, ...lines, ...extra);
}

// preview is a value in a few words, for a default.
export function preview(value) {
	const short = write(value, "");
	return short.length > 120 ? short.slice(0, 120) + "…" : short;
}
