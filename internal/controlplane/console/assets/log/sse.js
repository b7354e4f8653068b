// An event stream taken apart. EventSource would do that, but it tells neither of
// comments, which keep a silent stream from being taken for dead, nor of an
// answer's status.

export class EventParser {
	constructor() {
		this.rest = "";
		this.begin();
	}

	begin() {
		this.type = "";
		this.data = [];
	}

	// push takes the next piece of text, cut anywhere, and returns the events that
	// are whole: {type, id, data}.
	push(text) {
		const events = [];
		this.rest += text;
		for (;;) {
			const m = /\r\n|\n|\r(?!$)/.exec(this.rest);
			if (m === null) {
				return events;
			}
			const line = this.rest.slice(0, m.index);
			this.rest = this.rest.slice(m.index + m[0].length);
			if (line !== "") {
				this.field(line);
				continue;
			}
			if (this.data.length > 0) {
				events.push({type: this.type || "message", id: this.id, data: this.data.join("\n")});
			}
			this.begin();
		}
	}

	field(line) {
		const colon = line.indexOf(":");
		const name = colon < 0 ? line : line.slice(0, colon);
		const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
		if (name === "event") {
			this.type = value;
		} else if (name === "data") {
			this.data.push(value);
		} else if (name === "id") {
			this.id = value;
		}
		// A comment begins with a colon, and retry is ours to decide.
	}
}
