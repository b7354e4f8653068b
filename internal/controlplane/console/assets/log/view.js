// The part of a log that is to be seen. Only rows in sight are elements, so a log
// of a million lines scrolls as one of a hundred.
//
// It must not know where lines come from.

import {Layout} from "./layout.js";
import {blank, most, row, width} from "./row.js";

const tallest = 8000000; // px: browsers have no room for more
const around = 12; // rows drawn above and below

export class View {
	// told is {following(), places(n), nth(n)}.
	constructor(scroller, lines, stages, told) {
		Object.assign(this, {scroller, lines, stages, told});
		this.space = scroller.querySelector(".log-space");
		this.layout = new Layout();
		this.drawn = new Map(); // line -> element
		this.limits = new Map(); // line -> characters, of what is shown longer
		this.whole = new Set(); // lines shown with what was written over
		this.heads = new Map();
		this.wrap = this.times = this.onlyErrors = false;
		this.following = true;
		this.selected = [0, -1];
		this.first = 0; // the first line that has changed since the last frame
		this.frame = 0;
		this.was = 0;
		this.measure();
		scroller.addEventListener("scroll", () => this.scrolled(), {passive: true});
		scroller.addEventListener("keydown", (event) => this.page(event));
		new ResizeObserver(() => this.resized()).observe(scroller);
	}

	measure() {
		const {row: probe, line, number, time, text} = blank();
		probe.classList.add("log-probe");
		number.textContent = this.lines.length;
		text.textContent = "0".repeat(100);
		if (this.times) {
			time.textContent = "00:00:00";
		} else {
			time.remove();
		}
		this.space.append(probe);
		const range = document.createRange();
		range.selectNodeContents(text);
		this.character = range.getBoundingClientRect().width / 100 || 8;
		text.textContent = "0";
		this.height = line.getBoundingClientRect().height || 20;
		this.columns = Math.max(10, Math.floor((this.scroller.clientWidth - text.getBoundingClientRect().left + this.scroller.getBoundingClientRect().left - 8) / this.character));
		probe.remove();
	}

	resized() {
		const before = this.columns;
		this.measure();
		if (this.wrap && this.columns !== before) {
			this.again();
		}
		this.draw();
	}

	// changed says that lines from first on are new or other than they were.
	changed(first) {
		this.first = Math.min(this.first, first);
		this.draw();
	}

	// again has all lines laid out anew; what is in sight stays there.
	again() {
		const [top, part] = this.topLine();
		this.layout.clear();
		this.first = 0;
		this.forget();
		this.lay();
		if (!this.following) {
			this.scroller.scrollTop = this.physical((this.layout.top(Math.min(top, this.lines.length)) + (this.rowsOf(top) > 0 ? part : 0)) * this.height);
			this.was = this.scroller.scrollTop;
		}
		this.draw();
	}

	// forget has what is in sight drawn anew.
	forget() {
		for (const e of this.drawn.values()) {
			e.remove();
		}
		this.drawn.clear();
	}

	hidden(n) {
		const stage = this.stages.of(this.lines.seq(n));
		return this.onlyErrors && !this.lines.error(n) || stage !== undefined && this.stages.folded.has(stage.key);
	}

	rowsOf(n) {
		if (n >= this.lines.length) {
			return 0;
		}
		let rows = this.heads.has(n) && !this.onlyErrors ? 1 : 0;
		if (!this.hidden(n)) {
			const length = Math.min(this.lines.texts[n].length, this.limits.get(n) ?? width);
			rows += this.wrap ? Math.max(1, Math.ceil(length / this.columns)) : 1;
		}
		return rows;
	}

	lay() {
		const heads = this.stages.heads(this.lines);
		for (const n of new Set([...this.heads.keys(), ...heads.keys()])) {
			if (this.heads.get(n) !== heads.get(n)) {
				this.first = Math.min(this.first, n);
			}
		}
		this.heads = heads;
		for (let n = Math.min(this.first, this.layout.length); n < this.lines.length; n++) {
			this.layout.set(n, this.rowsOf(n));
			this.drawn.get(n)?.remove();
			this.drawn.delete(n);
		}
		this.first = this.lines.length;
		this.space.style.height = `${Math.min(this.layout.total * this.height, tallest)}px`;
	}

	// A log that is taller than a browser can be is scrolled in larger steps.
	get scale() {
		const tall = this.layout.total * this.height, room = this.scroller.clientHeight;
		return tall > tallest ? (tall - room) / (tallest - room) : 1;
	}

	// page goes on by what is in sight, where the browser's own step would be larger.
	page(event) {
		const pages = {PageDown: 1, PageUp: -1, " ": event.shiftKey ? -1 : 1}[event.key];
		if (pages && this.scale > 1 && event.target === this.scroller && !event.ctrlKey && !event.altKey && !event.metaKey) {
			event.preventDefault();
			this.scroller.scrollTop += this.physical(pages * (this.scroller.clientHeight - 2 * this.height));
		}
	}

	physical(y) {
		return y / this.scale;
	}

	topLine() {
		const at = this.scroller.scrollTop * this.scale / this.height, [n, above] = this.layout.at(Math.floor(at));
		return [n, at - above];
	}

	get end() {
		return this.scroller.scrollHeight - this.scroller.clientHeight;
	}

	scrolled() {
		const top = this.scroller.scrollTop;
		const follow = top >= this.end - this.height * 1.5 || this.following && top >= this.was - 1;
		this.was = top;
		if (follow !== this.following) {
			this.following = follow;
			this.told.following();
		}
		this.draw();
	}

	follow() {
		this.following = true;
		this.told.following();
		this.draw();
	}

	// show brings a line into sight, in the middle.
	show(n) {
		const stage = this.stages.of(this.lines.seq(n));
		if (stage && this.stages.folded.delete(stage.key)) {
			this.again();
		}
		this.lay();
		this.following = false;
		this.scroller.scrollTop = this.physical((this.layout.top(n) + this.layout.rows[n] / 2) * this.height - this.scroller.clientHeight / 2);
		this.was = this.scroller.scrollTop;
		this.told.following();
		this.draw();
	}

	// longer shows more of a line; all: also what was written over.
	longer(n, all) {
		if (all) {
			this.whole.add(n);
		}
		this.limits.set(n, Math.min(most, (this.limits.get(n) ?? width) * (all ? 1 : 8)));
		this.layout.set(n, this.rowsOf(n));
		this.forget();
		this.draw();
	}

	draw() {
		this.frame ||= requestAnimationFrame(() => {
			this.frame = 0;
			this.paint();
		});
	}

	paint() {
		if (this.first < this.lines.length || this.layout.length === 0) {
			this.lay();
		}
		if (this.following) {
			this.scroller.scrollTop = this.end;
			this.was = this.scroller.scrollTop;
		}
		const scroll = this.scroller.scrollTop, top = scroll * this.scale, room = this.scroller.clientHeight;
		let [n, above] = this.layout.at(Math.max(0, Math.floor(top / this.height) - around));
		const keep = new Set(), last = (top + room) / this.height + around;
		for (; n < this.lines.length && above < last; n++) {
			if (this.layout.rows[n] > 0) {
				keep.add(n);
				const e = this.drawn.get(n) ?? this.place(n);
				e.style.top = `${above * this.height - top + scroll}px`;
				above += this.layout.rows[n];
			}
		}
		for (const [n, e] of this.drawn) {
			if (!keep.has(n)) {
				e.remove();
				this.drawn.delete(n);
			}
		}
		if (this.wrap) {
			this.correct(top);
		}
	}

	place(n) {
		const head = this.heads.get(n);
		const e = row(this.lines, n, {
			limit: this.limits.get(n) ?? width, all: this.whole.has(n), times: this.times, hidden: this.hidden(n),
			places: this.told.places(n), nth: this.told.nth(n), head: head && !this.onlyErrors ? this.told.head(head) : null,
		});
		e.classList.toggle("log-selected", n >= this.selected[0] && n <= this.selected[1]);
		let next = null; // in the order of the log, for whoever reads or copies it
		for (const [m, other] of this.drawn) {
			if (m > n && (next === null || m < next[0])) {
				next = [m, other];
			}
		}
		this.space.insertBefore(e, next?.[1] ?? null);
		this.drawn.set(n, e);
		return e;
	}

	// correct sets right what was guessed of wrapped lines: wide characters and
	// marks take more room than their number says.
	correct(top) {
		let moved = 0, changed = false;
		for (const [n, e] of this.drawn) {
			const rows = Math.max(1, Math.round(e.offsetHeight / this.height));
			if (rows !== this.layout.rows[n]) {
				const above = this.layout.top(n) * this.height < top;
				const more = this.layout.set(n, rows);
				changed = true;
				moved += above ? more : 0;
			}
		}
		if (!changed) {
			return;
		}
		this.space.style.height = `${Math.min(this.layout.total * this.height, tallest)}px`;
		if (moved !== 0 && !this.following) {
			this.scroller.scrollTop += this.physical(moved * this.height);
			this.was = this.scroller.scrollTop;
		}
		this.draw();
	}
}
