// Characters that are there and cannot be seen, or that make others look like
// something else: control characters, what turns the direction of writing, what
// has no width. Each is shown as a mark with its number.

const names = new Map([
	[0x07, "bell"], [0x08, "backspace"], [0x0b, "vertical tab"], [0x0c, "form feed"], [0x1b, "escape"], [0x7f, "delete"],
	[0x85, "next line"], [0x9b, "control sequence"], [0x9d, "operating system command"], [0xad, "soft hyphen"],
	[0x34f, "grapheme joiner"], [0x61c, "Arabic letter mark"], [0x115f, "Hangul filler"], [0x1160, "Hangul filler"], [0x180e, "Mongolian vowel separator"],
	[0x200b, "zero width space"], [0x200c, "zero width non-joiner"], [0x200d, "zero width joiner"],
	[0x200e, "left-to-right mark"], [0x200f, "right-to-left mark"], [0x2028, "line separator"], [0x2029, "paragraph separator"],
	[0x202a, "left-to-right embedding"], [0x202b, "right-to-left embedding"], [0x202c, "pop direction"],
	[0x202d, "left-to-right override"], [0x202e, "right-to-left override"], [0x2060, "word joiner"],
	[0x2066, "left-to-right isolate"], [0x2067, "right-to-left isolate"], [0x2068, "first strong isolate"], [0x2069, "pop isolate"],
	[0x3164, "Hangul filler"], [0xfeff, "zero width no-break space"], [0xffa0, "Hangul filler"],
]);

// special finds what is not shown as it is, ESC and \r among it. A tab is shown.
// Joiners within an emoji, and the choice of how one looks, are left alone.
export const special =
	/(?<=\p{Extended_Pictographic}\ufe0f?\p{Emoji_Modifier}?)\u200d(?=\p{Extended_Pictographic})|(?<=[\p{Extended_Pictographic}0-9#*])[\ufe0e\ufe0f]|([\x00-\x08\x0a-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}\p{Cs}])/gu;

// odd finds whether a text needs a closer look, quickly.
export const odd = /[^\t\x20-\x7e\u00a1-\u00ac\u00ae-\u02ff\u2500-\u25ff]/;

// mark is how a character is shown: its label, and what it is.
export function mark(character) {
	const code = character.codePointAt(0), number = "U+" + code.toString(16).toUpperCase().padStart(4, "0");
	const name = names.get(code) ?? (code < 0x20 ? "control character" : code >= 0xe0000 ? "invisible tag" : "invisible character");
	return {label: code < 0x20 ? String.fromCharCode(0x2400 + code) : number, title: `${number}, ${name}`};
}
