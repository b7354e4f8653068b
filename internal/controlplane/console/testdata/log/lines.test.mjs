// Tests of the log's modules; console's jstest_test.go runs them with node --test.
import assert from "node:assert/strict";
import test from "node:test";

import {endStyle, pieces, plain, shown} from "../../assets/log/ansi.js";
import {firstError} from "../../assets/log/errors.js";
import {Layout} from "../../assets/log/layout.js";
import {Lines} from "../../assets/log/lines.js";
import {extended, hashOf, places} from "../../assets/log/links.js";
import {finder} from "../../assets/log/search.js";
import {EventParser} from "../../assets/log/sse.js";
import {Stages} from "../../assets/log/stages.js";
import {applied, css, styleOf} from "../../assets/log/style.js";
import {seen} from "../../assets/log/row.js";

// random numbers that are the same each time.
function randomly(seed) {
	return () => {
		seed = Math.imul(seed ^ (seed >>> 15), seed | 1);
		seed ^= seed + Math.imul(seed ^ (seed >>> 7), seed | 61);
		return ((seed ^ (seed >>> 14)) >>> 0) / 4294967296;
	};
}

const row = (seq, text, stream = "STDOUT") => ({seq, stream, text, emitted_at: "2026-01-02T03:04:05Z"});

function made(rows) {
	const lines = new Lines();
	rows.forEach((r, i) => lines.append({...r, seq: i + 1}));
	return lines;
}

const told = (lines) => Array.from({length: lines.length}, (_, n) => [lines.stream(n), lines.text(n), lines.style(n), lines.error(n)]);

test("a text makes the same lines wherever it is cut", () => {
	const text = "plain\n\x1b[1;31mred\n still red\x1b[0m\r\n10%\r20%\r100%\n\n\u{1f600} end \x1b]8;;https://evil.example\x07link\x1b]8;;\x07\nError: no\n│ boxed\nlast";
	const want = told(made([row(1, text)]));
	assert.equal(want.length, 9);
	const characters = [...text];
	for (let i = 0; i <= characters.length; i++) {
		for (let j = i; j <= characters.length; j += 3) {
			const parts = [characters.slice(0, i), characters.slice(i, j), characters.slice(j)].map((p) => row(1, p.join("")));
			assert.deepEqual(told(made(parts)), want, `cut at ${i} and ${j}`);
		}
	}
});

test("streams take turns within a line", () => {
	const lines = made([row(1, "out 1 "), row(2, "err\n", "STDERR"), row(3, "goes on\nout 2"), row(4, "run\n", "SYSTEM"), row(5, "!\n")]);
	assert.deepEqual(told(lines).map(([s, t]) => s + " " + t), ["STDOUT out 1 goes on", "STDERR err", "STDOUT out 2!", "SYSTEM run"]);
	assert.equal(lines.seq(2), 3);
	assert.equal(lines.firstOf(4), 3);
});

test("append says from which line on something has changed", () => {
	const lines = new Lines();
	assert.equal(lines.append(row(1, "a\nb")), 0);
	assert.equal(lines.append(row(2, "c\nd\n")), 1);
	assert.equal(lines.append(row(3, "e\n")), 3);
	assert.equal(lines.text(1), "bc");
});

test("a line without an end does not grow for ever, and is parted at no half character", () => {
	const lines = new Lines();
	const piece = "\u{1f600}".repeat(1 << 19) + "x";
	for (let i = 1; i < 10; i++) {
		lines.append(row(i, piece));
	}
	assert.equal(told(lines).map(([, t]) => t).join(""), piece.repeat(9));
	assert.equal(lines.length, 3);
	for (let n = 0; n < lines.length; n++) {
		assert.ok(lines.text(n).isWellFormed?.() ?? true);
	}
});

const see = (text, style = 0) => pieces(text, style).map((p) => p.title === undefined ? p.text : `<${p.text}>`).join("");

test("what is hostile is shown, and does nothing", () => {
	for (const [text, want] of [
		["<script>alert(1)</script>", "<script>alert(1)</script>"],
		["\x1b[31mred\x1b[0m", "red"],
		["\x1b]0;title\x07text", "text"],
		["\x1b]8;;javascript:alert(1)\x1b\\click\x1b]8;;\x1b\\", "click"],
		["\x1b]8;;https://evil.example", "<␛>]8;;https://evil.example"],
		["\x1b[2J\x1b[H\x1b[1A\x1b[?25l\x1b[10Cgone?", "gone?"],
		["\x1bPq#0\x1b\\sixel\x1b_apc\x1b\\", "sixel"],
		["\x1bc\x1b(B\x1b7\x1b8reset", "reset"],
		["\x1b[31", "<␛>[31"],
		["\x1b", "<␛>"],
		["a\x07b\x08c\x7f", "a<␇>b<␈>c<U+007F>"],
		["\x9b31mC1", "<U+009B>31mC1"],
		["user\u202egpj.exe", "user<U+202E>gpj.exe"],
		["\u2066a\u2069", "<U+2066>a<U+2069>"],
		["zero\u200bwidth\ufeff\u00ad", "zero<U+200B>width<U+FEFF><U+00AD>"],
		["\u{e0041}tag", "<U+E0041>tag"],
		["a\u2028b", "a<U+2028>b"],
		["\u{1f468}\u200d\u{1f4bb} \u26a0\ufe0f", "\u{1f468}\u200d\u{1f4bb} \u26a0\ufe0f"],
		["a\u200db", "a<U+200D>b"],
		["\tindented", "\tindented"],
		["\x1b[8mconcealed\x1b[0m", "concealed"],
	]) {
		assert.equal(see(text), want, JSON.stringify(text));
	}
});

test("colours: 16, 256 and all, with commas of both kinds", () => {
	const after = (p) => styleOf(applied(0, p));
	assert.deepEqual([after("31").fg, after("97").fg, after("44").bg, after("107").bg], [2, 16, 5, 16]);
	assert.deepEqual([after("38;5;200").fg, after("38:5:200").fg, after("48;5;16").bg], [201, 201, 17]);
	assert.deepEqual(["38;2;1;2;3", "38:2::1:2:3", "38:2:1:2:3"].map((p) => css(after(p).fg)), Array(3).fill("rgb(1 2 3)"));
	assert.deepEqual([css(17), css(232), css(233), css(256)], ["rgb(0 0 0)", "rgb(255 255 255)", "rgb(8 8 8)", "rgb(238 238 238)"]);
	assert.equal(applied(applied(0, "1;4;7;31"), ""), 0);
	assert.equal(applied(applied(0, "1;3;9"), "22;23;29"), 0);
	assert.equal(applied(0, "38;5"), 0);
	assert.equal(applied(0, "38;2;1"), 0);
	assert.equal(applied(0, "nonsense"), 0);
});

test("any text is taken apart into pieces that hold nothing unseen, and ends in one style", () => {
	const next = randomly(7);
	const bits = ["\x1b", "[", "]", "0", ";", "31", "m", "\x07", "\\", "P", "x", "<b>", "\r", "\u202e", "\u{1f600}", "\u200d", " ", "\x9b", "?", "8;;u", "\t", "\ud800"];
	for (let i = 0; i < 20000; i++) {
		const text = Array.from({length: 1 + Math.floor(next() * 14)}, () => bits[Math.floor(next() * bits.length)]).join("");
		const list = pieces(text.replaceAll("\r", ""), 0);
		for (const p of list) {
			assert.ok(p.text !== "" && !/[\x00-\x08\x0a-\x1f\x7f-\x9f\u202e\ud800]/u.test(p.text), JSON.stringify(text));
		}
		// Where Z does not itself end a sequence.
		if (!/\x1b[\[ -/0-9;?]*$/.test(text.replaceAll("\r", ""))) {
			const last = pieces(text.replaceAll("\r", "") + "Z", 0).at(-1);
			assert.deepEqual([last.text.at(-1), last.style], ["Z", endStyle(text.replaceAll("\r", ""), 0)], JSON.stringify(text));
		}
		shown(text, 0);
		plain(text);
	}
});

test("of what is written over, the last is shown, and all of it can be", () => {
	for (const [text, want, over] of [
		["10%\r20%\r100%", "100%", 2], ["same\r", "same", 0], ["a\r\r", "a", 0], ["work\r\x1b[K", "work", 0], ["\rb", "b", 0], ["rm -rf /\rharmless", "harmless", 1],
		["a\r   \r", "a", 0], ["\r", "", 0], ["", "", 0],
	]) {
		const s = shown(text, 0);
		assert.deepEqual([s.text, s.over], [want, over], JSON.stringify(text));
	}
	const red = shown("\x1b[31ma\rb", 0);
	assert.equal(styleOf(red.style).fg, 2);
	assert.equal(seen("a\rb", 0, 100, true).pieces.map((p) => p.text).join(""), "a␍b");
});

test("a long line is cut, and not within a character", () => {
	const s = seen("x".repeat(9) + "\u{1f600}y", 0, 10, false);
	assert.deepEqual([s.pieces[0].text, s.more], ["x".repeat(9), 3]);
	assert.equal(seen("x".repeat(10), 0, 10, false).more, 0);
});

test("errors: what is on STDERR, what is headed so, and the run's last word", () => {
	const lines = made([row(1, "Error: not at once\n│\n│ detail\n╵\nfine\nno Error: here\n"), row(2, "oops\n", "STDERR"), row(3, "Failed (apply_failed): x\nUsing terraform\n", "SYSTEM")]);
	assert.deepEqual(told(lines).map(([,,, e]) => e), [true, true, true, true, false, false, true, true, false]);
	assert.equal(lines.errorCount, 6);
	assert.equal(firstError(lines), 0);
	assert.equal(firstError(made([row(1, "warn\n", "STDERR"), row(2, "Failed (x): y\n", "SYSTEM")])), 1);
	assert.equal(firstError(made([row(1, "fine\n")])), -1);
});

test("the layout finds each line by its row", () => {
	const next = randomly(3), layout = new Layout(), rows = [];
	for (let n = 0; n < 5000; n++) {
		rows.push(Math.floor(next() * 4));
		layout.set(n, rows[n]);
	}
	for (let i = 0; i < 500; i++) {
		const n = Math.floor(next() * rows.length);
		rows[n] = Math.floor(next() * 6);
		layout.set(n, rows[n]);
	}
	let top = 0;
	for (let n = 0; n < rows.length; n++) {
		if (n % 97 === 0) {
			assert.equal(layout.top(n), top);
		}
		for (let r = 0; r < rows[n]; r++) {
			if (n % 31 === 0) {
				assert.deepEqual(layout.at(top + r), [n, top]);
			}
		}
		top += rows[n];
	}
	assert.equal(layout.total, top);
	assert.deepEqual(layout.at(top), [5000, top]);
});

test("a line belongs to the last stage that began at its row", () => {
	const stages = new Stages(), lines = made([row(1, "a\nb\n"), row(2, "c\n"), row(3, "d\n")]);
	assert.equal(stages.set([{key: "p", name: "Plan", seq: 2}, {key: "c", name: "Checkout", seq: 1}, {key: "q", seq: 0}, {key: "a", name: "Apply", seq: 9}]), true);
	assert.equal(stages.set([{key: "c", name: "Checkout", seq: 1}, {key: "p", name: "Plan", seq: 2}, {key: "a", name: "Apply", seq: 9}]), false);
	const known = [...stages.heads(lines).values()];
	assert.equal(stages.set([{key: "c", name: "Checkout", seq: 1}, {key: "p", name: "Plan", seq: 2}, {key: "a", name: "Apply", seq: 9}]), false);
	assert.ok([...stages.heads(lines).values()].every((s, i) => s === known[i]), "the stages that nothing has happened to are others");
	assert.deepEqual([1, 2, 3, 9].map((s) => stages.of(s).key), ["c", "p", "p", "a"]);
	assert.deepEqual([...stages.heads(lines)].map(([n, s]) => [n, s.key]), [[0, "c"], [2, "p"]]);
});

test("links name lines", () => {
	assert.deepEqual(places("#L12.3"), [{seq: 12, nth: 3}, {seq: 12, nth: 3}]);
	assert.deepEqual(places("#L14.1-L12.3"), [{seq: 14, nth: 1}, {seq: 12, nth: 3}]);
	assert.deepEqual(places("#L9-L4"), [{line: 9}, {line: 4}]);
	assert.deepEqual(["#L0", "#L0.1", "#L1.0", "#Lx", "", "L1", "#L1-L2-L3"].map(places), Array(7).fill(null));
	assert.deepEqual([extended([0, -1], 4, true), extended([4, 4], 2, true), extended([4, 4], 2, false)], [[4, 4], [2, 4], [2, 2]]);
});

test("a link to a line lands on it however much of the log is here", () => {
	const rows = [row(1, "one\ntw"), row(2, "warned\n", "STDERR"), row(3, "o\nthree\nfour\n"), row(4, "five\n")];
	const lines = made(rows);
	for (let n = 0; n < lines.length; n++) {
		for (let to = n; to < lines.length; to++) {
			assert.deepEqual(lines.range(places(hashOf(lines, [n, to])), false), [n, to], hashOf(lines, [n, to]));
		}
	}
	assert.equal(hashOf(lines, [3, 4]), "#L3.1-L3.2");
	const some = made(rows.slice(0, 2));
	assert.equal(some.range(places("#L3.1"), false), null); // not here yet
	assert.deepEqual(made(rows.slice(0, 3)).range(places("#L3.1"), false), [3, 3]);
	assert.deepEqual(some.range(places("#L3.1"), true), [2, 2]); // and will not come
	assert.deepEqual(lines.range(places("#L3.9"), true), [4, 4]); // the row has fewer lines
	assert.deepEqual([lines.range(places("#L2"), false), lines.range(places("#L9"), false), lines.range(places("#L9"), true)], [[1, 1], null, [5, 5]]);
	assert.equal(new Lines().range(places("#L1.1"), true), null);
});

test("search takes a query by its letters unless it is a pattern", () => {
	assert.deepEqual(finder("a.b", {})("A.B axb a.b"), [[0, 3], [8, 11]]);
	assert.deepEqual(finder("a.b", {cased: true})("A.B a.b"), [[4, 7]]);
	assert.deepEqual(finder("a.b", {pattern: true})("axb"), [[0, 3]]);
	assert.deepEqual(finder("x*", {pattern: true})("aaa"), []);
	assert.deepEqual(finder("[31]-/{}", {})("[31]-/{}"), [[0, 8]]);
	assert.throws(() => finder("(", {pattern: true}));
});

test("an event stream cut anywhere tells the same", () => {
	const text = ": hello\n\nid: 1\nevent: log\ndata: {\"a\":\ndata: 1}\n\n: keep-alive\r\n\r\nevent: end\r\ndata: {}\r\n\r\ndata: \u{1f600}\n\n";
	const want = [{type: "log", id: "1", data: "{\"a\":\n1}"}, {type: "end", id: "1", data: "{}"}, {type: "message", id: "1", data: "\u{1f600}"}];
	for (let i = 0; i <= text.length; i++) {
		const p = new EventParser();
		assert.deepEqual([...p.push(text.slice(0, i)), ...p.push(text.slice(i))], want, `cut at ${i}`);
	}
});
