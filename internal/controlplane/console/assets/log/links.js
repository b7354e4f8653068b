// Links to lines: #L12, and #L12-L20 for several. They are in the page's address,
// so that they survive a reload and can be handed on.

export function selection(hash) {
	const m = /^#L(\d{1,9})(?:-L(\d{1,9}))?$/.exec(hash);
	if (m === null) {
		return null;
	}
	const a = Number(m[1]), b = Number(m[2] ?? m[1]);
	return a > 0 && b > 0 ? [Math.min(a, b) - 1, Math.max(a, b) - 1] : null;
}

export function hashOf([from, to]) {
	return from === to ? `#L${from + 1}` : `#L${from + 1}-L${to + 1}`;
}

// extended is a selection after a click on a line; shift: from the first one on.
export function extended([from, to], line, shift) {
	return shift && to >= from ? [Math.min(from, line), Math.max(from, line)] : [line, line];
}
