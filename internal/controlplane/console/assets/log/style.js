// How text is to look, as SGR sequences say it: a small object that has a number,
// so that a line can say how it begins in four bytes.

// Styles are equal when their numbers are. Number 0 is plain text.
const known = [Object.freeze({fg: 0, bg: 0, bold: false, dim: false, italic: false, underline: false, strike: false, inverse: false})];
const numbers = new Map([[key(known[0]), 0]]);

// most is how many styles there are; a log that wants more gets plain text.
const most = 1 << 14;

function key(s) {
	return [s.fg, s.bg, s.bold, s.dim, s.italic, s.underline, s.strike, s.inverse].map(Number).join();
}

function numbered(style) {
	const k = key(style);
	let n = numbers.get(k);
	if (n === undefined) {
		if (known.length === most) {
			return 0;
		}
		n = known.push(Object.freeze(style)) - 1;
		numbers.set(k, n);
	}
	return n;
}

// styleOf is the style of that number.
export function styleOf(number) {
	return known[number];
}

// A colour is 0 for none, 1 + n for the n-th of 256, or rgb + 0x1000000.
const rgb = (r, g, b) => 0x1000000 + ((r & 255) << 16) + ((g & 255) << 8) + (b & 255);

// applied is the style's number after an SGR sequence of those parameters, such
// as "1;38;5;200" or "38:2::255:0:0".
export function applied(number, parameters) {
	const s = {...known[number]}, list = parameters.split(";", 64);
	for (let i = 0; i < list.length; i++) {
		const parts = list[i].split(":").map(Number), n = parts[0];
		if (n === 38 || n === 48) {
			const to = n === 38 ? "fg" : "bg";
			if (parts.length > 1) {
				const values = parts[1] === 2 ? parts.slice(-3) : parts.slice(2);
				s[to] = parts[1] === 5 ? 1 + (values[0] & 255) : parts[1] === 2 && values.length === 3 ? rgb(...values) : s[to];
			} else if (list[i + 1] === "5" && i + 2 < list.length) {
				s[to] = 1 + (Number(list[i + 2]) & 255);
				i += 2;
			} else if (list[i + 1] === "2" && i + 4 < list.length) {
				s[to] = rgb(...list.slice(i + 2, i + 5).map(Number));
				i += 4;
			} else {
				break; // cut short: what follows is no sequence of its own
			}
			continue;
		}
		simple(s, n, parts[1]);
	}
	return numbered(s);
}

function simple(s, n, more) {
	if (n === 0) {
		Object.assign(s, known[0]);
	} else if (n === 1) {
		s.bold = true;
	} else if (n === 2) {
		s.dim = true;
	} else if (n === 3) {
		s.italic = true;
	} else if (n === 4 || n === 21) {
		s.underline = more !== 0;
	} else if (n === 7) {
		s.inverse = true;
	} else if (n === 9) {
		s.strike = true;
	} else if (n === 22) {
		s.bold = s.dim = false;
	} else if (n === 23) {
		s.italic = false;
	} else if (n === 24) {
		s.underline = false;
	} else if (n === 27) {
		s.inverse = false;
	} else if (n === 29) {
		s.strike = false;
	} else if (n >= 30 && n <= 37) {
		s.fg = n - 29;
	} else if (n === 39) {
		s.fg = 0;
	} else if (n >= 40 && n <= 47) {
		s.bg = n - 39;
	} else if (n === 49) {
		s.bg = 0;
	} else if (n >= 90 && n <= 97) {
		s.fg = n - 81;
	} else if (n >= 100 && n <= 107) {
		s.bg = n - 91;
	}
	// Concealed (8) and blinking (5, 6) text is shown as any other.
}

// css is a colour of the 256 behind the first 16, or of all, as CSS has it. The
// first 16 are classes, for the theme says what they are.
export function css(colour) {
	const n = colour - 1;
	if (colour >= 0x1000000) {
		return `rgb(${(colour >> 16) & 255} ${(colour >> 8) & 255} ${colour & 255})`;
	}
	if (n >= 232) {
		const grey = 8 + (n - 232) * 10;
		return `rgb(${grey} ${grey} ${grey})`;
	}
	const level = (v) => v === 0 ? 0 : 55 + v * 40;
	return `rgb(${level(Math.floor((n - 16) / 36))} ${level(Math.floor((n - 16) / 6) % 6)} ${level((n - 16) % 6)})`;
}
