// One line of a log as an element. All that comes from the log gets there as text,
// and how it looks by classes and colours set one by one, so that nothing in it
// can be more than text.

import {hashOf} from "./links.js";
import {pieces, shown} from "./ansi.js";
import {css, styleOf} from "./style.js";

// width is how many characters of a line are shown at first, and how many more
// with each "show more": browsers lay out a line as a whole.
export const width = 4096;
export const most = 1 << 18;

export function element(name, className, text) {
	const e = document.createElement(name);
	e.className = className;
	if (text !== undefined) {
		e.textContent = text;
	}
	return e;
}

// seen is what is shown of a line: its pieces up to limit characters, and how many
// characters there are more. all: also what was written over.
export function seen(text, style, limit, all) {
	const now = all ? {text, style, over: 0} : shown(text, style);
	let cut = now.text.slice(0, limit);
	const code = cut.charCodeAt(cut.length - 1);
	if (cut.length < now.text.length && code >= 0xd800 && code < 0xdc00) {
		cut = cut.slice(0, -1); // half a character
	}
	return {pieces: pieces(cut, now.style), more: now.text.length - cut.length, over: now.over};
}

// fill puts pieces into an element, with places of [from, to] of their text
// highlighted, the nth of them as the current one.
export function fill(into, list, places, nth) {
	let at = 0, next = 0;
	for (const piece of list) {
		const end = at + piece.text.length;
		let from = at;
		while (from < end) {
			while (next < places.length && places[next][1] <= from) {
				next++;
			}
			const place = places[next];
			const inside = place !== undefined && place[0] <= from;
			const to = Math.min(end, place === undefined ? end : inside ? place[1] : place[0]);
			into.append(part(piece, piece.text.slice(from - at, to - at), inside, next === nth));
			from = to;
		}
		at = end;
	}
}

function part(piece, text, found, current) {
	if (piece.style === 0 && piece.title === undefined && !found) {
		return document.createTextNode(text);
	}
	const e = element(found ? "mark" : "span", "", text);
	if (piece.title !== undefined) {
		e.classList.add("log-mark");
		e.title = piece.title;
	}
	if (found && current) {
		e.classList.add("log-current");
	}
	dress(e, styleOf(piece.style));
	return e;
}

function dress(e, s) {
	for (const name of ["bold", "dim", "italic", "underline", "strike"]) {
		if (s[name]) {
			e.classList.add("ansi-" + name);
		}
	}
	const [fg, bg] = s.inverse ? [s.bg, s.fg] : [s.fg, s.bg];
	if (s.inverse && bg === 0) {
		e.classList.add("ansi-inverse");
	}
	colour(e, "f", fg);
	if (bg !== fg) { // else it could not be read
		colour(e, "b", bg);
	}
}

function colour(e, kind, value) {
	if (value === 0) {
		return;
	}
	e.classList.add("ansi-" + kind);
	if (value <= 16) {
		e.classList.add(`ansi-${kind}${value - 1}`);
	} else {
		e.style.setProperty("--" + kind, css(value));
	}
}

const clock = new Intl.DateTimeFormat(undefined, {hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false});

// blank is a line with nothing in it: components/logline.html, which the page has.
export function blank() {
	const row = document.querySelector("template[data-log=line]").content.firstElementChild.cloneNode(true);
	const line = row.querySelector(".log-line");
	return {row, line, number: line.querySelector(".log-number"), time: line.querySelector(".log-time"), text: line.querySelector(".log-text")};
}

// row is the element of line n. options: {limit, all, places, nth, times, head}.
export function row(lines, n, options) {
	const {row: r, line, number, time, text} = blank();
	r.dataset.line = n + 1;
	r.dataset.stream = lines.stream(n);
	if (lines.error(n)) {
		r.dataset.error = "";
	}
	if (options.head) {
		r.prepend(options.head);
	}
	if (options.hidden) {
		line.remove();
		return r;
	}
	number.textContent = n + 1;
	number.href = hashOf(lines, [n, n]); // its tabindex is -1, or a tab through the page is one through the log
	if (options.times) {
		const at = new Date(lines.time(n));
		if (!Number.isNaN(at.getTime())) {
			time.textContent = clock.format(at);
			time.dateTime = time.title = at.toISOString();
		}
	} else {
		time.remove();
	}
	const {pieces: list, more, over} = seen(lines.text(n), lines.style(n), options.limit, options.all);
	if (over > 0) {
		text.append(button("over", `${over}×`, `Overwritten ${over} times: show all`));
	}
	fill(text, list, options.places, options.nth);
	if (more > 0) {
		text.append(options.limit < most ? button("more", `… ${size(more)} more: show more`, "Show more of this line") : element("span", "log-cut", `… ${size(more)} more: download the log to see it`));
	}
	return r;
}

function button(what, text, label) {
	const b = element("button", "log-" + what, text);
	b.type = "button";
	b.dataset.log = what;
	b.title = label;
	return b;
}

export const size = (n) => n < 10000 ? `${n} characters` : `${Math.round(n / 1000)}k characters`;
