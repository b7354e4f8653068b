// The types of Terraform, from the notation that cty writes them in, and what is
// wrong with a value for one of them. The agent checks the same with Terraform's
// own libraries (package tfvars) and has the last word; here people learn it
// while they type. Knows nothing of the page.
import {Num, isNumber} from "./json.js";

// parseType reads a type such as ["list","string"], as json.js reads it:
// {kind, of | items | attributes, optional}.
export function parseType(notation) {
	if (typeof notation === "string") {
		return {kind: notation === "dynamic" ? "any" : ["string", "number", "bool"].includes(notation) ? notation : "any"};
	}
	const [kind, of, optional] = Array.isArray(notation) ? notation : [];
	switch (kind) {
		case "list":
		case "set":
		case "map":
			return {kind, of: parseType(of)};
		case "tuple":
			return {kind, items: of.map(parseType)};
		case "object":
			return {kind, attributes: new Map([...of].map(([name, type]) => [name, parseType(type)])), optional: new Set(optional ?? [])};
	}
	return {kind: "any"}; // a type of a newer server: JSON will do
}

// typeText is a type as a template writes it.
export function typeText(type) {
	switch (type.kind) {
		case "tuple":
			return `tuple([${type.items.map(typeText).join(", ")}])`;
		case "object":
			return `object({${[...type.attributes].map(([name, of]) => `${name} = ${type.optional.has(name) ? `optional(${typeText(of)})` : typeText(of)}`).join(", ")}})`;
	}
	return type.of ? `${type.kind}(${typeText(type.of)})` : type.kind;
}

// blank is what a new value of a type begins with.
export function blank(type) {
	switch (type.kind) {
		case "list":
		case "set":
			return [];
		case "tuple":
			return type.items.map(blank);
		case "map":
			return new Map();
		case "object":
			return new Map([...type.attributes].filter(([name]) => !type.optional.has(name)).map(([name, of]) => [name, blank(of)]));
		case "bool":
			return false;
		case "any":
			return null;
	}
	return ""; // of a number as well: nobody has said which
}

// kindOf names what a value is.
export function kindOf(value) {
	if (value === null) {
		return "null";
	}
	if (value instanceof Num) {
		return `number ${shortened(value.text)}`;
	}
	if (Array.isArray(value)) {
		return "a list";
	}
	if (value instanceof Map) {
		return "an object";
	}
	return typeof value === "string" ? `string ${JSON.stringify(shortened(value))}` : `bool ${value}`;
}

const shortened = (text) => (text.length > 60 ? text.slice(0, 60) + "…" : text);

// numeric tells whether Terraform makes a number of a text.
const numeric = (text) => isNumber(text) || /^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$/.test(text);

const identifier = /^[A-Za-z_][A-Za-z0-9_-]*$/;

// member is the path of a map's element.
export const member = (path, key) => (identifier.test(key) ? `${path}.${key}` : `${path}[${JSON.stringify(key)}]`);

// problems are what is wrong with a value, each with its path; and what Terraform
// would drop without a word, as a warning.
export function problems(type, value, path) {
	const found = [];
	walk(type, value, path, (at, message, warning = false) => found.push({path: at, message, warning}));
	return found;
}

function walk(type, value, path, add) {
	if (value === null || type.kind === "any") {
		return;
	}
	const required = (what) => add(path, `${what} is required, not ${kindOf(value)}`);
	switch (type.kind) {
		case "string":
			if (Array.isArray(value) || value instanceof Map) {
				required("a string");
			}
			return;
		case "number":
			if (!(value instanceof Num) && !(typeof value === "string" && numeric(value))) {
				value === "" ? add(path, "a number is required") : required("a number");
			}
			return;
		case "bool":
			if (typeof value !== "boolean" && !["true", "false", "1", "0"].includes(value)) {
				required("a bool");
			}
			return;
		case "list":
		case "set":
			if (!Array.isArray(value)) {
				return required("a list");
			}
			return value.forEach((v, i) => walk(type.of, v, `${path}[${i}]`, add));
		case "tuple":
			if (!Array.isArray(value)) {
				return required("a list");
			}
			if (value.length !== type.items.length) {
				return add(path, `a list of ${type.items.length} elements is required, not of ${value.length}`);
			}
			return value.forEach((v, i) => walk(type.items[i], v, `${path}[${i}]`, add));
		case "map":
			if (!(value instanceof Map)) {
				return required("a map");
			}
			return value.forEach((v, key) => walk(type.of, v, member(path, key), add));
		case "object":
			if (!(value instanceof Map)) {
				return required("an object");
			}
			for (const [name, of] of type.attributes) {
				if (value.has(name)) {
					walk(of, value.get(name), `${path}.${name}`, add);
				} else if (!type.optional.has(name)) {
					add(`${path}.${name}`, "missing");
				}
			}
			for (const name of value.keys()) {
				if (!type.attributes.has(name)) {
					add(member(path, name), "not declared by the template, so it is ignored", true);
				}
			}
	}
}
