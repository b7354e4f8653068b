// The log's parser against the cases that the command line is held to, too.
import assert from "node:assert/strict";
import {readFileSync} from "node:fs";
import test from "node:test";

import {pieces, plain, shown} from "../../assets/log/ansi.js";
import {styleOf} from "../../assets/log/style.js";

const cases = JSON.parse(readFileSync(new URL("cases.json", import.meta.url), "utf8"));

// piece is one as the file has it: without what it has not.
function piece({text, style, title}) {
	const looks = Object.fromEntries(Object.entries(styleOf(style)).filter(([, value]) => value));
	return {text, ...Object.keys(looks).length > 0 && {style: looks}, ...title !== undefined && {mark: true}};
}

for (const c of cases) {
	test(c.name, () => {
		const now = shown(c.line, 0);
		assert.deepEqual(pieces(now.text, now.style).map(piece), c.pieces);
		assert.equal(plain(c.line), c.pieces.map((p) => p.text).join(""));
	});
}
