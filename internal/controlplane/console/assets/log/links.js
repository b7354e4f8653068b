// Links to lines: #L12.3 is the third line that begins in row 12 of the log, and
// #L12.3-L14.1 is a range. A row keeps its number for ever, whatever is shown,
// folded or archived; the number that a line has on the page does not. #L12 and
// #L12-L20 are counted from the top, as links once were.

const place = /^L(\d{1,9})(?:\.(\d{1,9}))?$/;

// places are the two ends that an address names; null where it names none.
export function places(hash) {
	const ends = hash.slice(1).split("-").map((end) => place.exec(end));
	if (!hash.startsWith("#") || ends.length > 2 || ends.includes(null)) {
		return null;
	}
	const found = ends.map((m) => m[2] === undefined ? {line: Number(m[1])} : {seq: Number(m[1]), nth: Number(m[2])});
	return found.some((p) => p.line === 0 || p.seq === 0 || p.nth === 0) ? null : [found[0], found.at(-1)];
}

export function hashOf(lines, [from, to]) {
	const end = (n) => {
		const {seq, nth} = lines.place(n);
		return `L${seq}.${nth}`;
	};
	return from === to ? `#${end(from)}` : `#${end(from)}-${end(to)}`;
}

// extended is a selection after a click on a line; shift: from the first one on.
export function extended([from, to], line, shift) {
	return shift && to >= from ? [Math.min(from, line), Math.max(from, line)] : [line, line];
}
