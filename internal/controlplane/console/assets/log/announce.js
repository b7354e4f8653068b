// Tells people who listen to a page what is new in a log, as long as they could
// keep up: a flood is only counted.

const every = 1500; // ms
const most = 5; // lines at once

export class Announcer {
	constructor(element, textOf) {
		this.element = element;
		this.textOf = textOf;
		this.told = -1;
		this.timer = 0;
	}

	// grown says how many lines there are. on: whether it is wanted.
	grown(length, on) {
		this.length = length;
		if (!on || this.told < 0) {
			this.told = length;
		} else if (length > this.told && this.timer === 0) {
			this.timer = setTimeout(() => this.say(), every);
		}
	}

	say() {
		this.timer = 0;
		const from = this.told, count = this.length - from;
		this.told = this.length;
		if (count === 0) {
			return; // the reader has looked away since
		}
		if (count > most) {
			this.element.textContent = `${count} new lines`;
			return;
		}
		this.element.replaceChildren();
		for (let n = from; n < this.length; n++) {
			const p = document.createElement("p");
			p.textContent = this.textOf(n).slice(0, 300);
			this.element.append(p);
		}
	}
}
