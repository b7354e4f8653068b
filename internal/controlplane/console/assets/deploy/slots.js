// A form without its elements: a tree of slots, one for each value that a person
// can give. What was read and not touched is written as it was read, whatever
// the form makes of it. Knows nothing of the page.
import {JSONError, Num, isNumber, parse, write} from "./json.js";
import {blank} from "./types.js";

// A slot's state: "unset" (not given at all), "null", "value" (its own form), or
// "json" (as text: of any type, or where the value does not fit its type).

// slotOf makes the slot of a value; undefined is unset. may says which states
// besides "value" it can be in.
export function slotOf(type, value, may = {}) {
	const slot = {type, mayUnset: Boolean(may.unset), mayNull: may.null !== false, state: "value"};
	fill(slot, value);
	return slot;
}

// fill gives a slot another value.
export function fill(slot, value) {
	const {type} = slot;
	slot.was = value;
	delete slot.broken;
	if (value === undefined || value === null) {
		slot.state = value === null ? "null" : "unset";
	} else if (fits(type, value)) {
		slot.state = "value";
		open(slot, value);
	} else {
		slot.state = "json";
		slot.json = write(value);
	}
}

// choose puts a slot into another state, with what it has been told before.
export function choose(slot, state) {
	if (state === "value" && slot.state !== "value") {
		fill(slot, slot.fallback ?? blank(slot.type));
		if (slot.state === "null") {
			slot.state = "json"; // of any type
			slot.json = "null";
		}
	} else if (state === "json") {
		const value = valueOf(slot);
		slot.state = "json";
		slot.json = write(value === undefined ? blank(slot.type) : value);
	} else {
		slot.state = state;
	}
}

// fits tells whether the form of a type can show a value.
function fits(type, value) {
	switch (type.kind) {
		case "string":
		case "number":
			return typeof value === "string" || value instanceof Num;
		case "bool":
			return typeof value === "boolean";
		case "list":
		case "set":
			return Array.isArray(value);
		case "tuple":
			return Array.isArray(value) && value.length === type.items.length;
		case "map":
		case "object":
			return value instanceof Map;
	}
	return false;
}

// open takes a value apart.
function open(slot, value) {
	const {type} = slot;
	switch (type.kind) {
		case "list":
		case "set":
			slot.items = value.map((v) => slotOf(type.of, v));
			return;
		case "tuple":
			slot.items = value.map((v, i) => slotOf(type.items[i], v));
			return;
		case "map":
			slot.rows = [...value].map(([key, v]) => ({key, slot: slotOf(type.of, v)}));
			return;
		case "object":
			slot.attributes = new Map([...type.attributes].map(([name, of]) => [name, slotOf(of, value.get(name), {unset: true})]));
			slot.extra = new Map([...value].filter(([name]) => !type.attributes.has(name)));
			return;
		case "bool":
			slot.bool = value;
			return;
	}
	slot.text = value instanceof Num ? value.text : value;
	slot.numeric = value instanceof Num;
}

// type sets the text of a string or a number.
export function type(slot, text) {
	slot.state = "value";
	slot.text = text;
	const number = text.trim();
	// A text that is no number stays what it is, to be complained of.
	slot.numeric = slot.type.kind === "number" && isNumber(number);
	if (slot.numeric) {
		slot.text = number;
	}
}

// valueOf is what a slot says; undefined where it is unset. Of JSON that cannot
// be read, what it was before (see broken).
export function valueOf(slot) {
	switch (slot.state) {
		case "unset":
			return undefined;
		case "null":
			return null;
		case "json":
			return fromJSON(slot);
	}
	switch (slot.type.kind) {
		case "list":
		case "set":
		case "tuple":
			return slot.items.map((item) => valueOf(item) ?? null);
		case "map":
			return new Map(slot.rows.map((row) => [row.key, valueOf(row.slot) ?? null]));
		case "object": {
			const found = new Map();
			for (const [name, attribute] of slot.attributes) {
				const value = valueOf(attribute);
				if (value !== undefined) {
					found.set(name, value);
				}
			}
			slot.extra.forEach((value, name) => found.set(name, value));
			return found;
		}
		case "bool":
			return slot.bool;
	}
	return slot.numeric ? new Num(slot.text) : slot.text;
}

function fromJSON(slot) {
	try {
		slot.was = parse(slot.json);
		delete slot.broken;
	} catch (error) {
		if (!(error instanceof JSONError)) {
			throw error;
		}
		slot.broken = error;
	}
	return slot.was;
}

// broken are the problems that a value cannot tell of: JSON that cannot be read,
// and two rows of one name, of which a map can hold one.
export function broken(slot, path, member) {
	if (slot.state === "json") {
		fromJSON(slot);
		return slot.broken ? [{path, message: slot.broken.message}] : [];
	}
	if (slot.state !== "value") {
		return [];
	}
	const found = [];
	slot.items?.forEach((item, i) => found.push(...broken(item, `${path}[${i}]`, member)));
	slot.attributes?.forEach((item, name) => found.push(...broken(item, `${path}.${name}`, member)));
	const seen = new Set();
	for (const row of slot.type.kind === "map" ? slot.rows : []) {
		if (seen.has(row.key)) {
			found.push({path, message: `two rows are named ${JSON.stringify(row.key)}`});
		}
		seen.add(row.key);
		found.push(...broken(row.slot, member(path, row.key), member));
	}
	return found;
}

// moved puts an item of a list somewhere else.
export function moved(slot, from, to) {
	const [item] = slot.items.splice(from, 1);
	slot.items.splice(to, 0, item);
}

// added is a new item or row, ready to be filled in.
export function added(slot) {
	const item = slotOf(slot.type.of, blank(slot.type.of));
	if (slot.type.kind === "map") {
		slot.rows.push({key: "", slot: item});
	} else {
		slot.items.push(item);
	}
	return item;
}
