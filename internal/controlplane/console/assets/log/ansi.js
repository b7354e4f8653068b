// A line of a log taken apart into pieces of one look each. Of escape sequences
// those that say how text looks are obeyed, and all others dropped: they would
// move a cursor, write over what is shown, name a window, or link text to where
// it does not say. What cannot be seen becomes a mark.

import {mark, odd, special} from "./marks.js";
import {applied} from "./style.js";

const escape = {
	csi: /\x1b\[([0-?]{0,1000})([ -/]{0,16})([@-~])/y,
	// OSC, DCS, APC, PM and SOS, when they end.
	string: /\x1b[\]P_^X][^\x07\x1b]*(?:\x07|\x1b\\)/y,
	other: /\x1b[ -/]{0,4}[0-OQ-WYZ`-~\\]/y, // none that begins one of the former
};

// pieces are {text, style, title}: title is there for marks only.
export function pieces(text, style) {
	if (!odd.test(text)) {
		return text === "" ? [] : [{text, style}];
	}
	const found = [];
	let from = 0;
	const add = (text, style, title) => {
		const before = found[found.length - 1];
		if (before && title === undefined && before.title === undefined && before.style === style) {
			before.text += text;
		} else if (text !== "") {
			found.push(title === undefined ? {text, style} : {text, style, title});
		}
	};
	special.lastIndex = 0;
	for (let m; (m = special.exec(text)) !== null;) {
		if (m[1] === undefined) {
			continue; // it belongs to an emoji
		}
		add(text.slice(from, m.index), style);
		from = special.lastIndex;
		if (m[1] === "\x1b") {
			const [end, next] = sequence(text, m.index, style);
			if (end > 0) {
				from = special.lastIndex = end;
				style = next;
				continue;
			}
		}
		const {label, title} = mark(m[1]);
		add(label, style, title);
	}
	add(text.slice(from), style);
	return found;
}

// sequence is where the escape sequence at that place ends, and the style after
// it; 0 where none is.
function sequence(text, at, style) {
	for (const kind of ["csi", "string", "other"]) {
		escape[kind].lastIndex = at;
		const m = escape[kind].exec(text);
		if (m !== null) {
			return [escape[kind].lastIndex, kind === "csi" ? after(m, style) : style];
		}
	}
	return [0, style];
}

const after = ([, parameters, between, final], style) => final === "m" && between === "" && /^[\d;:]*$/.test(parameters) ? applied(style, parameters) : style;

const sgr = /\x1b\[([0-?]{0,1000})([ -/]{0,16})([@-~])/g;

// endStyle is the style at the end of a text that begins in that style.
export function endStyle(text, style) {
	for (const m of text.matchAll(sgr)) {
		style = after(m, style);
	}
	return style;
}

// shown is what there is to see of a line on which a program has written several
// times (\r): the last that has anything to see, in its style, and how often
// something stood there before.
export function shown(text, style) {
	if (text.endsWith("\r")) {
		text = text.slice(0, -1);
	}
	let end = text.length, from = text.lastIndexOf("\r") + 1;
	while (from > 0 && blank(text.slice(from, end))) {
		end = from - 1;
		from = text.lastIndexOf("\r", end - 1) + 1;
		if (end === 0) {
			from = 0;
		}
	}
	if (from === 0 && end === text.length) {
		return {text, style, over: 0};
	}
	let over = 0;
	for (const part of text.slice(0, Math.max(0, from - 1)).split("\r")) {
		over += blank(part) ? 0 : 1;
	}
	return {text: text.slice(from, end), style: endStyle(text.slice(0, from), style), over: from === 0 ? 0 : over};
}

const blank = (part) => part.trim() === "" || part.length < 4096 && part.includes("\x1b") && pieces(part, 0).every((p) => p.text.trim() === "");

// plain is what there is to see of a line, as text.
export function plain(text, style = 0) {
	const seen = text.includes("\r") ? shown(text, style).text : text;
	return odd.test(seen) ? pieces(seen, 0).map((p) => p.text).join("") : seen;
}
