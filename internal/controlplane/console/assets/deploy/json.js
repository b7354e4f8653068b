// JSON as a person writes it: numbers stay the text that they are (a float would
// change 12345678901234567890), objects keep their order, and what is wrong is
// told by line and column. Objects are Maps, so that no key means anything to
// JavaScript. Knows nothing of the page.

const DEEPEST = 200;
const NUMBER = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y;
const WHOLE_NUMBER_TEXT = new RegExp(`^${NUMBER.source}$`);
const ESCAPES = {'"': '"', "\\": "\\", "/": "/", b: "\b", f: "\f", n: "\n", r: "\r", t: "\t"};

// Num is a number as it is written.
export class Num {
	constructor(text) {
		this.text = text;
	}
}

// isNumber tells whether a text is a number of JSON.
export const isNumber = (text) => WHOLE_NUMBER_TEXT.test(text);

// JSONError says where a text stops being JSON.
export class JSONError extends Error {
	constructor(message, text, offset) {
		const before = text.slice(0, offset).split("\n");
		const line = before.length;
		const column = [...before[line - 1]].length + 1;
		super(`line ${line}, column ${column}: ${message}`);
		Object.assign(this, {what: message, line, column, offset});
	}
}

// parse reads one JSON value.
export function parse(text) {
	const reader = new Reader(text);
	const value = reader.value(0);
	reader.space();
	if (reader.at < text.length) {
		reader.fail("nothing may follow the value");
	}
	return value;
}

class Reader {
	constructor(text) {
		this.text = text;
		this.at = 0;
	}

	fail(message, at = this.at) {
		throw new JSONError(message, this.text, at);
	}

	space() {
		while (" \t\n\r".includes(this.text[this.at] ?? "x")) {
			this.at++;
		}
	}

	// seen names what stands here, for messages.
	seen() {
		return this.at < this.text.length ? `not ${JSON.stringify(String.fromCodePoint(this.text.codePointAt(this.at)))}` : "but the text ends here";
	}

	value(depth) {
		this.space();
		if (depth > DEEPEST) {
			this.fail(`nested more than ${DEEPEST} levels deep`);
		}
		switch (this.text[this.at]) {
			case "{":
				return this.object(depth);
			case "[":
				return this.array(depth);
			case '"':
				return this.string();
		}
		for (const [word, value] of [["true", true], ["false", false], ["null", null]]) {
			if (this.text.startsWith(word, this.at)) {
				this.at += word.length;
				return value;
			}
		}
		NUMBER.lastIndex = this.at;
		const number = NUMBER.exec(this.text);
		if (!number) {
			this.fail(`a value is needed, ${this.seen()}${"'’“”".includes(this.text[this.at] ?? "x") ? ': texts stand in "straight" double quotes' : ""}`);
		}
		this.at += number[0].length;
		if (/[0-9.]/.test(this.text[this.at] ?? "")) {
			this.fail("a number of JSON has no leading zero and one point at most");
		}
		return new Num(number[0]);
	}

	object(depth) {
		const found = new Map();
		this.members("{", "}", () => {
			const start = this.at;
			if (this.text[start] !== '"') {
				this.fail(`a name in double quotes is needed, ${this.seen()}`);
			}
			const name = this.string();
			if (found.has(name)) {
				this.fail(`the name ${JSON.stringify(name)} is given twice`, start);
			}
			this.space();
			if (this.text[this.at] !== ":") {
				this.fail(`":" is needed after the name, ${this.seen()}`);
			}
			this.at++;
			found.set(name, this.value(depth + 1));
		});
		return found;
	}

	array(depth) {
		const found = [];
		this.members("[", "]", () => found.push(this.value(depth + 1)));
		return found;
	}

	// members reads what stands between brackets, parted by commas.
	members(open, close, member) {
		this.at++;
		this.space();
		if (this.text[this.at] === close) {
			this.at++;
			return;
		}
		for (;;) {
			this.space();
			member();
			this.space();
			const next = this.text[this.at];
			if (next !== "," && next !== close) {
				this.fail(`"," or "${close}" is needed, ${this.seen()}`);
			}
			const comma = this.at++;
			if (next === close) {
				return;
			}
			this.space();
			if (this.text[this.at] === close) {
				this.fail(`no "," before "${close}"`, comma);
			}
		}
	}

	string() {
		const start = this.at++;
		let out = "";
		for (;;) {
			const c = this.text[this.at];
			if (c === undefined || c === "\n") {
				this.fail(c === undefined ? "this text does not end" : 'this text does not end on its line: a line break in it is written \\n', start);
			}
			if (c < " ") {
				this.fail("a control character in a text is written as \\uXXXX");
			}
			this.at++;
			if (c === '"') {
				return out;
			}
			out += c === "\\" ? this.escape() : c;
		}
	}

	escape() {
		const at = this.at - 1;
		const c = this.text[this.at++] ?? "";
		if (c !== "u") {
			return Object.hasOwn(ESCAPES, c) ? ESCAPES[c] : this.fail("a backslash in a text is written \\\\", at);
		}
		const hex = this.text.slice(this.at, this.at + 4);
		if (!/^[0-9a-fA-F]{4}$/.test(hex)) {
			this.fail("\\u is followed by four hexadecimal digits", at);
		}
		if (hex === "0000") {
			this.fail("the character \\u0000 cannot be stored", at);
		}
		this.at += 4;
		return String.fromCharCode(parseInt(hex, 16));
	}
}

// write is a value as JSON, indented; indent "" puts all on one line.
export function write(value, indent = "  ", margin = "\n") {
	if (value instanceof Num) {
		return value.text;
	}
	if (value === null || typeof value !== "object") {
		return JSON.stringify(value);
	}
	const inner = indent ? margin + indent : "";
	const [open, close, parts] = Array.isArray(value)
		? ["[", "]", value.map((v) => write(v, indent, inner))]
		: ["{", "}", [...value].map(([k, v]) => `${JSON.stringify(k)}:${indent && " "}${write(v, indent, inner)}`)];
	return parts.length ? open + inner + parts.join("," + inner) + (indent ? margin : "") + close : open + close;
}

// same tells whether two values are written alike, but for the order of names.
export function same(a, b) {
	if (a instanceof Num || b instanceof Num) {
		return a instanceof Num && b instanceof Num && a.text === b.text;
	}
	if (Array.isArray(a) || Array.isArray(b)) {
		return Array.isArray(a) && Array.isArray(b) && a.length === b.length && a.every((v, i) => same(v, b[i]));
	}
	if (a instanceof Map || b instanceof Map) {
		return a instanceof Map && b instanceof Map && a.size === b.size && [...a].every(([k, v]) => b.has(k) && same(v, b.get(k)));
	}
	return a === b;
}
