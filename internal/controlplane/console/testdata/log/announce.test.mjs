// Tests of what people hear who listen to a log.
import assert from "node:assert/strict";
import test from "node:test";

import {Announcer} from "../../assets/log/announce.js";

// listening is an announcer of lines "line 0", "line 1", …, with what it says, and
// a clock that goes on when pass is called.
function listening(t) {
	const due = [], real = {timer: globalThis.setTimeout, document: globalThis.document};
	globalThis.setTimeout = (f) => due.push(f);
	globalThis.document = {createElement: () => ({textContent: ""})};
	t.after(() => Object.assign(globalThis, {setTimeout: real.timer, document: real.document}));
	const place = {
		said: [],
		set textContent(text) { this.said = [text]; },
		replaceChildren() { this.said = []; },
		append(p) { this.said.push(p.textContent); },
	};
	const announcer = new Announcer(place, (n) => `line ${n}` + (n === 90 ? "x".repeat(1000) : ""));
	return {announcer, place, due, pass: () => due.splice(0).forEach((f) => f())};
}

test("what is there at first is not said, and what is new a while later, once", (t) => {
	const {announcer, place, due, pass} = listening(t);
	announcer.grown(10, true);
	assert.equal(due.length, 0);
	announcer.grown(11, true);
	announcer.grown(13, true);
	assert.deepEqual([place.said, due.length], [[], 1], "before its time, and by one timer");
	pass();
	assert.deepEqual(place.said, ["line 10", "line 11", "line 12"]);
	announcer.grown(13, true);
	assert.equal(due.length, 0, "nothing is new");
	announcer.grown(14, true);
	pass();
	assert.deepEqual(place.said, ["line 13"]);
});

test("a flood is counted, and a line that is long is cut", (t) => {
	const {announcer, place, pass} = listening(t);
	announcer.grown(0, true);
	announcer.grown(5, true);
	pass();
	assert.equal(place.said.length, 5);
	announcer.grown(90, true);
	pass();
	assert.deepEqual(place.said, ["85 new lines"]);
	announcer.grown(91, true);
	pass();
	assert.deepEqual([place.said.length, place.said[0].length], [1, 300]);
});

test("who reads elsewhere in the log is told nothing, nor afterwards what came meanwhile", (t) => {
	const {announcer, place, due, pass} = listening(t);
	announcer.grown(3, true);
	announcer.grown(4, true);
	announcer.grown(10, false); // before that was said
	pass();
	assert.deepEqual(place.said, []);
	announcer.grown(11, true);
	pass();
	assert.deepEqual(place.said, ["line 10"]);
	announcer.grown(20, false);
	assert.equal(due.length, 0);
	announcer.grown(21, true);
	pass();
	assert.deepEqual(place.said, ["line 20"]);
});
