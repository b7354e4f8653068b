// Where rows of a log come from: what is old in pages, what is new from an event
// stream, and in pages again where a stream cannot be had. Each row is told once
// and in its order, whatever happens to the connection: rows are numbered without
// a gap, so what is there already is passed over, and what is missing fetched.
//
// It must not know what is done with a row.

import {EventParser} from "./sse.js";

// Times in milliseconds; a test may have others.
export const patience = {
	retry: [300, 1000, 2000, 5000], // before the next try, the last for all further ones
	silence: 40000, // a stream says something each 15 s
	first: 5000, // and at once when it is opened, unless something keeps it back
	poll: 2000,
	streamAgain: 60000, // at most, after one was kept back
	answer: 20000, // for a page
	short: 5000, // a stream that ends before was a failure
	unseen: 5000, // a tab that nobody looks at gives its connection up: browsers have few for a server
};

const page = 1000;
const glance = 5; // rows of the end, of a log that takes a while to load

export class Source {
	// url is that of the log; told is {row, status, state, loading, glance, caught, end}:
	// functions.
	constructor(url, told) {
		this.url = url;
		this.told = told;
		this.last = 0;
		this.over = false; // the page says that the run has ended
		this.ended = false; // all is told
		this.failures = 0;
		this.keptBack = 0; // streams, one after another
		this.noStreamUntil = 0;
		this.closed = new AbortController();
		this.wake = () => {};
		this.online = () => this.wake();
		this.looked = () => this.look();
		this.stop = () => {}; // ends the request that goes on
	}

	// run goes on until the log has ended or close is called.
	async run() {
		globalThis.addEventListener?.("online", this.online);
		globalThis.document?.addEventListener("visibilitychange", this.looked);
		while (!this.ended && !this.closed.signal.aborted) {
			try {
				const over = this.over;
				await this.pages();
				this.told.caught();
				if (over) {
					this.ended = true;
					this.told.end();
				} else if (globalThis.document?.hidden) {
					await this.sleep(2 ** 31 - 1); // until somebody looks, or the run is over
				} else if (Date.now() >= this.noStreamUntil) {
					await this.stream();
				} else {
					this.told.state("polling");
					this.failures = 0;
					await this.sleep(patience.poll);
				}
			} catch (problem) {
				if (this.closed.signal.aborted) {
					break;
				}
				if (problem.final) {
					this.told.state("failed", problem.message);
					break;
				}
				const wait = patience.retry[Math.min(this.failures++, patience.retry.length - 1)];
				this.told.state("reconnecting", problem.message);
				await this.sleep(wait);
			}
		}
		globalThis.removeEventListener?.("online", this.online);
		globalThis.document?.removeEventListener("visibilitychange", this.looked);
	}

	look() {
		clearTimeout(this.unseen);
		if (document.hidden) {
			this.unseen = setTimeout(() => this.stop(), patience.unseen);
		} else {
			this.wake();
		}
	}

	// finish says that the run has ended: what is there now is all.
	finish() {
		this.over = true;
		this.wake();
	}

	close() {
		this.closed.abort();
		this.wake();
	}

	sleep(ms) {
		return new Promise((resolve) => {
			const timer = setTimeout(resolve, ms);
			this.wake = () => {
				clearTimeout(timer);
				resolve();
			};
		});
	}

	// get asks, and gives up when nothing is heard for so long.
	async get(path, accept, limit, take) {
		const giveUp = new AbortController(), abort = () => giveUp.abort();
		this.stop = abort;
		this.closed.signal.addEventListener("abort", abort);
		let timer = setTimeout(abort, limit);
		const alive = (next = limit) => {
			clearTimeout(timer);
			timer = setTimeout(abort, next);
		};
		try {
			const answer = await fetch(this.url + path, {headers: {Accept: accept}, signal: giveUp.signal, cache: "no-store"});
			if (!answer.ok) {
				const problem = new Error(await reason(answer));
				problem.final = answer.status === 401 || answer.status === 403 || answer.status === 404;
				throw problem;
			}
			return await take(answer, alive);
		} finally {
			clearTimeout(timer);
			this.closed.signal.removeEventListener("abort", abort);
			giveUp.abort(); // a stream that was left early
		}
	}

	// pages tells all rows that are there.
	async pages() {
		for (;;) {
			const after = this.last;
			const found = await this.get(`?after=${after}&limit=${page}`, "application/json", patience.answer, (answer) => answer.json());
			for (const row of found.items) {
				this.take(row);
			}
			// A page has as many rows as fit into it.
			if (this.last === after || this.last >= found.last_seq) {
				return;
			}
			this.told.loading?.(this.last / found.last_seq);
			if (after === 0 && !this.over) { // of what runs, its end is what one comes for
				const end = await this.get(`?tail=${glance}&limit=${glance}`, "application/json", patience.answer, (answer) => answer.json());
				this.told.glance?.(end.items);
			}
			await new Promise((resolve) => setTimeout(resolve)); // the page lives meanwhile
		}
	}

	take(row) {
		if (row.seq === this.last + 1) {
			this.last = row.seq;
			this.told.row(row);
		} else if (row.seq > this.last) {
			throw new Error("rows are missing");
		}
	}

	// stream tells rows as they come, until the connection breaks. One that is
	// silent from the beginning is kept back by something between: then what is new
	// is asked for now and then.
	async stream() {
		const parser = new EventParser(), decoder = new TextDecoder();
		const began = Date.now();
		let heard = false;
		try {
			await this.get(`/stream?after=${this.last}`, "text/event-stream", patience.first, async (answer, alive) => {
				if (answer.status === 204) { // nothing more will come
					heard = this.over = true;
					return;
				}
				if (!/^text\/event-stream/.test(answer.headers.get("Content-Type") ?? "")) {
					throw new Error("the answer is no event stream");
				}
				const reader = answer.body.getReader();
				for (;;) {
					const {value, done} = await reader.read();
					if (done) {
						if (Date.now() - began > patience.short) {
							return; // as the server does after some minutes
						}
						throw new Error("the connection was closed");
					}
					if (!heard) {
						heard = true;
						this.keptBack = 0;
						this.told.state("live");
					}
					if (Date.now() - began > patience.short) {
						this.failures = 0;
					}
					alive(patience.silence);
					for (const event of parser.push(decoder.decode(value, {stream: true}))) {
						if (this.event(event)) {
							return;
						}
					}
				}
			});
		} catch (problem) {
			if (globalThis.document?.hidden) {
				return;
			}
			if (!heard && !this.closed.signal.aborted && navigator.onLine !== false) {
				this.noStreamUntil = Date.now() + Math.min(patience.streamAgain, patience.poll * 2 ** this.keptBack++);
				if (!problem.final) {
					return;
				}
			}
			throw problem;
		}
	}

	// event reports whether the stream is over.
	event({type, data}) {
		if (type === "log") {
			this.take(JSON.parse(data));
		} else if (type === "status") {
			this.told.status(JSON.parse(data));
		} else if (type === "end") {
			this.ended = true;
			this.told.end();
		} else if (type === "gone") {
			throw Object.assign(new Error("it is gone, or you no longer have access"), {final: true});
		}
		return this.ended;
	}
}

async function reason(answer) {
	switch (answer.status) {
	case 401:
		return "your session has ended: load the page again to sign in";
	case 403:
	case 404:
		return "this log is gone, or you no longer have access to it";
	}
	return `the server answered ${answer.status}`;
}
