// Rows of a log made into lines. A row may be cut anywhere, in a line, in an
// escape sequence, between \r and \n, and rows of several streams take turns; so
// each stream has a line of its own that is still open, and a line keeps the place
// where its first character came.
//
// It must not know how a line is shown: it keeps the text as it came, with all
// that is hostile in it.

import {endStyle} from "./ansi.js";
import {isError} from "./errors.js";

export const STREAMS = ["STDOUT", "STDERR", "SYSTEM"];

// longest is the most characters of a line; what is beyond begins another one, or
// a log that has no newline would be copied whole with each row.
const longest = 1 << 22;

// judged is how many characters of a line may say that it tells of an error.
const judged = 256;

// Numbers is a list of numbers that grows, a few bytes each.
class Numbers {
	constructor(Type) {
		this.values = new Type(1024);
		this.length = 0;
	}

	push(value) {
		if (this.length === this.values.length) {
			const wider = new this.values.constructor(this.length * 2);
			wider.set(this.values);
			this.values = wider;
		}
		this.values[this.length++] = value;
	}
}

// whole is at, or one less where that would part a character.
function whole(text, at) {
	const code = text.charCodeAt(at - 1);
	return code >= 0xd800 && code < 0xdc00 ? at - 1 : at;
}

export class Lines {
	constructor() {
		this.texts = []; // without the newline
		this.streams = new Numbers(Uint8Array); // index into STREAMS
		this.seqs = new Numbers(Uint32Array); // of the row that it began in
		this.times = new Numbers(Float64Array); // of that row, in ms
		this.styles = new Numbers(Uint32Array); // in force at its start, see ansi.js
		this.errors = new Numbers(Uint8Array); // 1: tells of an error
		this.errorCount = 0;
		this.last = 0; // seq of the newest row
		this.characters = 0;
		this.open = STREAMS.map(() => -1);
		this.carried = STREAMS.map(() => 0);
		this.before = STREAMS.map(() => false); // the stream's line before is of an error
	}

	get length() {
		return this.texts.length;
	}

	// append takes the next row. It returns the first line that has changed; those
	// after length have not been there before.
	append(row) {
		const stream = Math.max(0, STREAMS.indexOf(row.stream)), text = row.text, at = Date.parse(row.emitted_at);
		let first = this.length;
		this.last = row.seq;
		this.characters += text.length;
		for (let from = 0; from < text.length;) {
			let n = this.open[stream];
			if (n < 0) {
				n = this.open[stream] = this.begin(stream, row.seq, at);
			}
			first = Math.min(first, n);
			const newline = text.indexOf("\n", from), before = this.texts[n].length;
			let end = newline < 0 ? text.length : newline;
			const full = end - from > longest - before;
			if (full) {
				end = whole(text, from + longest - before);
			}
			this.texts[n] += text.slice(from, end);
			const ended = newline >= 0 || full;
			if (ended || before < judged) { // to look into a long line costs a copy of it
				this.judge(n, stream, ended);
			}
			if (ended) {
				this.open[stream] = -1;
			}
			from = full ? end : end + 1;
		}
		return first;
	}

	begin(stream, seq, at) {
		this.streams.push(stream);
		this.seqs.push(seq);
		this.times.push(at);
		this.styles.push(this.carried[stream]);
		this.errors.push(0);
		return this.texts.push("") - 1;
	}

	// judge says whether a line tells of an error, and when it is whole with which
	// style the next of its stream begins.
	judge(n, stream, whole) {
		const text = this.texts[n], error = isError(STREAMS[stream], text, this.before[stream]) ? 1 : 0;
		this.errorCount += error - this.errors.values[n];
		this.errors.values[n] = error;
		if (whole) {
			this.before[stream] = error === 1;
			if (text.includes("\x1b")) {
				this.carried[stream] = endStyle(text, this.carried[stream]);
			}
		}
	}

	text(n) {
		const text = this.texts[n];
		return text.endsWith("\r") ? text.slice(0, -1) : text;
	}

	stream(n) {
		return STREAMS[this.streams.values[n]];
	}

	seq(n) {
		return this.seqs.values[n];
	}

	time(n) {
		return this.times.values[n];
	}

	style(n) {
		return this.styles.values[n];
	}

	error(n) {
		return this.errors.values[n] === 1;
	}

	// place says where a line is in the log: it is the nth that began in that row.
	place(n) {
		const seq = this.seq(n);
		return {seq, nth: n - this.firstOf(seq) + 1};
	}

	// range is the lines between two places (see links.js), in order; null while
	// one of them is not here. whole: nothing more will come for now.
	range(places, whole) {
		const ends = places.map(({line, seq, nth}) => {
			const here = line !== undefined ? line <= this.length : seq <= this.last;
			if (!here && !whole || this.length === 0) {
				return -1;
			}
			let n = line - 1;
			if (line === undefined) {
				const first = this.firstOf(seq);
				n = Math.max(first, Math.min(first + nth, this.firstOf(seq + 1)) - 1);
			}
			return Math.min(n, this.length - 1);
		});
		return ends.includes(-1) ? null : [Math.min(...ends), Math.max(...ends)];
	}

	// firstOf is the first line that began in that row or a later one.
	firstOf(seq) {
		let low = 0, high = this.length;
		while (low < high) {
			const middle = (low + high) >> 1;
			if (this.seqs.values[middle] < seq) {
				low = middle + 1;
			} else {
				high = middle;
			}
		}
		return low;
	}
}
