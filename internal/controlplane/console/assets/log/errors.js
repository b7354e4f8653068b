// Which lines tell of an error. Agents send what engines say of errors to STDERR,
// a boxed one ("│ Error: …") or one of another program may be on STDOUT, and the
// run's own last word is a SYSTEM line.

const begins = /^(?:\x1b\[[0-9;]*m|[\s│╷])*Error: /u;
const goesOn = /^(?:\x1b\[[0-9;]*m)*[│╵]/u;

// isError reports whether a line belongs to what "only errors" shows; after: the
// line of its stream before it does.
export function isError(stream, text, after) {
	switch (stream) {
	case "STDERR":
		return true;
	case "SYSTEM":
		return /^(?:Failed|Cancelled|Stopped)\b/.test(text);
	}
	// No more of a line than can matter, however long it is.
	const head = text.length > 200 ? text.slice(0, 200) : text;
	return begins.test(head) || after && goesOn.test(head);
}

// firstError finds the line to show first after a failure: the first that is
// headed "Error:", else what the run says itself, else the first on STDERR; -1
// for none.
export function firstError(lines) {
	let spoken = -1, any = -1;
	for (let n = 0; n < lines.length; n++) {
		if (!lines.error(n)) {
			continue;
		}
		const text = lines.text(n);
		if (begins.test(text.slice(0, 200))) {
			return n;
		}
		if (lines.stream(n) === "SYSTEM") {
			spoken = n; // the last of them
		} else if (any < 0 && text.trim() !== "") {
			any = n;
		}
	}
	return spoken >= 0 ? spoken : any;
}
