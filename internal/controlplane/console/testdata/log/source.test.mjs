// Tests of where rows come from, on a server that is made for the bad days.
import assert from "node:assert/strict";
import test from "node:test";

import {Source, patience} from "../../assets/log/source.js";

Object.assign(patience, {retry: [1, 2], silence: 30, first: 30, poll: 5, streamAgain: 20, answer: 30, short: 0});

const rowOf = (seq) => ({seq, stream: "STDOUT", text: `${seq}\n`, emitted_at: "2026-01-02T03:04:05Z"});

const ofStreams = ["breaks", "closes", "repeats", "skips", "silent", "204"];

// server has a log that grows to count rows, by some with each stream, and answers
// as its moods say: each is used for one request, those that only a stream can have
// for a stream, and the last for all further ones.
function server(count, moods) {
	let there = 1, asked = 0;
	const end = (controller) => controller.enqueue(new TextEncoder().encode("event: end\ndata: {}\n\n"));
	return async (url, {signal}) => {
		const after = Number(/after=(\d+)/.exec(url)?.[1] ?? 0), mood = moods[Math.min(asked, moods.length - 1)];
		if (url.includes("/stream") || !ofStreams.includes(mood)) {
			asked++;
		}
		if (url.includes("/stream")) {
			there = mood === "fine" ? count : Math.min(count, there + 3);
		}
		if (mood === "refuses") {
			throw new TypeError("fetch failed");
		} else if (mood === "fails") {
			return {ok: false, status: 503};
		} else if (mood === "ended") {
			return {ok: false, status: 401};
		} else if (mood === "hangs") {
			return new Promise((_, no) => signal.addEventListener("abort", () => no(new Error("aborted"))));
		}
		if (!url.includes("/stream")) {
			const items = [];
			for (let s = after + 1; s <= there && items.length < 2; s++) {
				items.push(rowOf(s));
			}
			return {ok: true, status: 200, json: async () => ({items, last_seq: there})};
		}
		if (mood === "204") {
			return {ok: true, status: 204, headers: new Headers()};
		}
		const body = new ReadableStream({
			start(controller) {
				signal.addEventListener("abort", () => {
					try {
						controller.error(new Error("aborted"));
					} catch {
						return; // it has ended
					}
				});
				const first = mood === "repeats" ? Math.max(1, after - 2) : mood === "skips" ? after + 2 : after + 1;
				let text = ": hello\n\n";
				for (let s = first; s <= there; s++) {
					text += `id: ${s}\nevent: log\ndata: ${JSON.stringify(rowOf(s))}\n\n`;
				}
				const bytes = new TextEncoder().encode(text);
				for (let i = 0; i < bytes.length; i += 7) {
					controller.enqueue(bytes.slice(i, i + 7));
				}
				if (mood === "breaks") {
					controller.error(new TypeError("network error"));
				} else if (mood === "closes") {
					controller.close();
				} else if (there === count && mood !== "silent") {
					end(controller);
				}
			},
		});
		return {ok: true, status: 200, headers: new Headers({"Content-Type": "text/event-stream"}), body};
	};
}

async function told(count, moods) {
	const real = globalThis.fetch, seen = [], states = [];
	globalThis.fetch = server(count, moods);
	try {
		const source = new Source("/logs", {row: (r) => seen.push(r.seq), status() {}, state: (s, why) => states.push(why ? `${s}: ${why}` : s), caught() {}, end: () => states.push("end")});
		await source.run();
	} finally {
		globalThis.fetch = real;
	}
	return {seen, states};
}

const all = (n) => Array.from({length: n}, (_, i) => i + 1);

for (const moods of [["fine"], ["fine", "breaks", "fine", "closes", "fine"], ["refuses", "fails", "refuses", "fine", "repeats", "fine"], ["fine", "skips", "fine", "repeats"],
	["fine", "silent", "fine"], ["fine", "hangs", "fine", "hangs", "fine"], ["fine", "hangs", "refuses", "hangs", "breaks", "fine"]]) {
	test(`each row is told once when the server is: ${moods.join(", ")}`, async () => {
		const {seen, states} = await told(40, moods);
		assert.deepEqual(seen, all(40));
		assert.equal(states.at(-1), "end");
		assert.equal(states.includes("reconnecting: rows are missing"), moods.includes("skips"), states.join());
	});
}

test("any order of moods", async () => {
	let seed = 11;
	const next = (n) => (seed = Math.imul(seed, 1103515245) + 12345 & 0x7fffffff) % n;
	const kinds = ["fine", "breaks", "closes", "repeats", "skips", "refuses", "fails"];
	for (let i = 0; i < 40; i++) {
		const moods = Array.from({length: 12}, () => kinds[next(kinds.length)]);
		assert.deepEqual((await told(30, [...moods, "fine"])).seen, all(30), moods.join());
	}
});

test("what is over, and what is not for the reader, is not asked for again", async () => {
	assert.deepEqual((await told(4, ["fine", "fine", "204", "fine"])).states.at(-1), "end");
	const {states} = await told(4, ["fine", "ended"]);
	assert.match(states.at(-1), /^failed: your session has ended/);
});

test("of a long log that goes on the end is there before the rest, of one that is over nothing is asked twice", async () => {
	const real = globalThis.fetch;
	for (const over of [false, true]) {
		const said = [];
		globalThis.fetch = async (url) => {
			const after = Number(/after=(\d+)/.exec(url)?.[1] ?? 3), items = after < 4 ? [rowOf(after + 1)] : [];
			return url.includes("/stream") ? {ok: true, status: 204, headers: new Headers()} : {ok: true, status: 200, json: async () => ({items, last_seq: 4})};
		};
		try {
			const source = new Source("/logs", {row: (r) => said.push(r.seq), glance: (rows) => said.push(`end ${rows[0].seq}`), status() {}, state() {}, caught() {}, end() {}});
			source.over = over;
			await source.run();
		} finally {
			globalThis.fetch = real;
		}
		assert.deepEqual(said, over ? [1, 2, 3, 4] : [1, "end 4", 2, 3, 4]);
	}
});

test("a tab that nobody looks at holds no stream, and has missed nothing when somebody does", async () => {
	const real = globalThis.fetch, answer = server(20, ["fine"]), asked = [], seen = [];
	const page = globalThis.document = Object.assign(new EventTarget(), {hidden: true});
	globalThis.fetch = (url, o) => {
		asked.push(url.includes("/stream") ? "stream" : "page");
		return answer(url, o);
	};
	try {
		const source = new Source("/logs", {row: (r) => seen.push(r.seq), status() {}, state() {}, caught() {}, end() {}});
		const done = source.run();
		// Until there are rows, and then some turns of the event loop in which a stream would be asked for.
		for (let turns = 0; turns < 20; turns += seen.length > 0) await new Promise((resolve) => setTimeout(resolve));
		assert.ok(seen.length > 0 && !asked.includes("stream"), `asked for ${asked} while hidden`);
		page.hidden = false;
		page.dispatchEvent(new Event("visibilitychange"));
		await done;
		assert.deepEqual(seen, all(20));
		assert.ok(asked.includes("stream"));
	} finally {
		globalThis.fetch = real;
		delete globalThis.document;
	}
});
