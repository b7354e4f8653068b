// Where each line stands, counted in rows of equal height: a line has none when it
// is hidden, more than one when it is wrapped or a stage begins with it. Any line
// of a million is found in a few hundred steps.

const block = 1024;

export class Layout {
	constructor() {
		this.length = 0;
		this.total = 0; // rows of all lines
		this.rows = new Uint16Array(block);
		this.sums = []; // of the rows of each block
	}

	// set says how many rows a line has; the next line may be set to add it.
	set(n, rows) {
		rows = Math.min(rows, 0xffff);
		if (n === this.length) {
			if (n === this.rows.length) {
				const wider = new Uint16Array(this.rows.length * 2);
				wider.set(this.rows);
				this.rows = wider;
			}
			this.length++;
		}
		const b = Math.floor(n / block), change = rows - this.rows[n];
		this.rows[n] = rows;
		this.sums[b] = (this.sums[b] ?? 0) + change;
		this.total += change;
		return change;
	}

	// top is how many rows stand above a line.
	top(n) {
		const b = Math.floor(n / block);
		let rows = 0;
		for (let i = 0; i < b; i++) {
			rows += this.sums[i];
		}
		for (let i = b * block; i < n; i++) {
			rows += this.rows[i];
		}
		return rows;
	}

	// at is the line in which a row is, and how many rows stand above that line.
	at(row) {
		let above = 0, b = 0;
		while (b < this.sums.length && above + this.sums[b] <= row) {
			above += this.sums[b++];
		}
		let n = Math.min(b * block, this.length);
		while (n < this.length && above + this.rows[n] <= row) {
			above += this.rows[n++];
		}
		return [n, above];
	}

	// clear forgets all lines.
	clear() {
		this.length = this.total = 0;
		this.rows.fill(0);
		this.sums = [];
	}
}
