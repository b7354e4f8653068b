// Which stage of a run a line belongs to. The page says with which row of the log
// each stage began (the database compares its own two clocks for that), so a line
// belongs to the last stage that began at its row or before.
//
// What comes before the first stage belongs to none.

export class Stages {
	constructor() {
		this.list = []; // {key, name, seq}, by seq
		this.folded = new Set(); // keys
	}

	// set takes what the page says. It reports whether something is new.
	set(list) {
		const stages = list.filter((s) => s.seq > 0).sort((a, b) => a.seq - b.seq);
		const same = stages.length === this.list.length && stages.every((s, i) => ["key", "seq", "took"].every((what) => s[what] === this.list[i][what]));
		if (!same) {
			this.list = stages; // else the ones that are known: rows are drawn for them
		}
		return !same;
	}

	// of is the stage of a row; undefined for none.
	of(seq) {
		let found;
		for (const s of this.list) {
			if (s.seq > seq) {
				break;
			}
			found = s;
		}
		return found;
	}

	// heads are the lines that a stage begins with, by their number. A stage in
	// which nothing was printed has none.
	heads(lines) {
		const found = new Map();
		for (let i = 0; i < this.list.length; i++) {
			const s = this.list[i], n = lines.firstOf(s.seq), next = this.list[i + 1];
			if (n < lines.length && (!next || lines.seq(n) < next.seq)) {
				found.set(n, s);
			}
		}
		return found;
	}

	toggle(key) {
		if (!this.folded.delete(key)) {
			this.folded.add(key);
		}
	}
}
