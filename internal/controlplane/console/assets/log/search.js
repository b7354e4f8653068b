// What is looked for in a log, a few milliseconds at a time so that the page goes
// on living: how often it is there, and where.

import {plain} from "./ansi.js";

const slice = 6; // ms
const most = 100000; // matches that are kept
const deep = 1 << 16; // characters of a line that a pattern is tried on: it may be a slow one

// finder returns the function that finds all places of a query in a text, as
// [from, to]; it throws where the query is no pattern.
export function finder(query, {cased, pattern}) {
	const expression = new RegExp(pattern ? query : query.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"), cased ? "gu" : "giu");
	return (text) => {
		const places = [];
		for (const m of (pattern && text.length > deep ? text.slice(0, deep) : text).matchAll(expression)) {
			if (m[0] !== "") {
				places.push([m.index, m.index + m[0].length]);
			}
		}
		return places;
	};
}

export class Search {
	// counts(n) says whether a line is one to look at; changed is called when there
	// is more to tell.
	constructor(lines, counts, changed) {
		this.lines = lines;
		this.counts = counts;
		this.changed = changed;
		this.timer = 0;
		this.set("", {});
	}

	set(query, options) {
		this.query = query;
		this.options = options;
		this.problem = "";
		this.find = null;
		if (query !== "") {
			try {
				this.find = finder(query, options);
			} catch {
				this.problem = "not a pattern";
			}
		}
		this.restart();
	}

	restart() {
		this.at = []; // the line of each match
		this.done = 0; // lines looked at
		this.current = -1;
		this.more();
		this.changed();
	}

	// since says that lines from there on are new, or other than they were.
	since(first) {
		if (first < this.done) {
			while (this.at.length > 0 && this.at[this.at.length - 1] >= first) {
				this.at.pop();
			}
			this.done = first;
			this.current = Math.min(this.current, this.at.length - 1);
		}
		this.more();
	}

	more() {
		if (this.find && this.timer === 0 && this.done < this.lines.length) {
			this.timer = setTimeout(() => this.look());
		}
	}

	look() {
		this.timer = 0;
		const until = performance.now() + slice;
		for (let n = 0; this.find && this.done < this.lines.length && this.at.length < most; n++) {
			if (n % 64 === 63 && performance.now() > until) {
				this.more();
				break;
			}
			if (this.counts(this.done)) {
				for (let i = this.places(this.done).length; i > 0; i--) {
					this.at.push(this.done);
				}
			}
			this.done++;
		}
		this.changed();
	}

	// places are where a line has it, in the text that is shown of it.
	places(n) {
		return this.find ? this.find(plain(this.lines.text(n))) : [];
	}

	get looking() {
		return this.find !== null && this.done < this.lines.length && this.at.length < most;
	}

	get full() {
		return this.at.length >= most;
	}

	// step goes to the next match, or with -1 to the one before, and round at the
	// end. The first step goes to the first match from a line on. It returns the
	// match, {line, nth}, or null.
	step(by, from) {
		if (this.at.length === 0) {
			return null;
		}
		if (this.current < 0) {
			let i = this.at.findIndex((n) => n >= from);
			if (by < 0) {
				i = (i < 0 ? this.at.length : i) - 1;
			}
			this.current = i < 0 ? (by < 0 ? this.at.length - 1 : 0) : i;
		} else {
			this.current = (this.current + by + this.at.length) % this.at.length;
		}
		this.changed();
		return this.match();
	}

	match() {
		if (this.current < 0 || this.current >= this.at.length) {
			return null;
		}
		const line = this.at[this.current];
		let first = this.current;
		while (first > 0 && this.at[first - 1] === line) {
			first--;
		}
		return {line, nth: this.current - first};
	}
}
