// The log of a provision on its page: rows from the server made into lines, lines
// into what is to be seen, and the controls above it. Nothing is kept here that is
// not in the database: a tab that is opened again shows the same.

import {plain} from "./ansi.js";
import {Announcer} from "./announce.js";
import {firstError} from "./errors.js";
import {Lines} from "./lines.js";
import {extended, hashOf, places} from "./links.js";
import {Search} from "./search.js";
import {Source} from "./source.js";
import {Stages} from "./stages.js";
import {toolbar} from "./toolbar.js";
import {View} from "./view.js";
import {element} from "./row.js";

export class Viewer {
	constructor(section) {
		this.section = section;
		this.part = (name) => section.querySelector(`[data-log="${name}"]`);
		this.lines = new Lines();
		this.stages = new Stages();
		this.seen = 0; // lines when it was last followed
		this.hurried = 0; // the step that waits for a match
		this.state = "loading";
		this.search = new Search(this.lines, (n) => !this.view?.onlyErrors || this.lines.error(n), () => this.found());
		this.view = new View(this.part("lines"), this.lines, this.stages, {
			following: () => this.tell(),
			places: (n) => this.search.places(n),
			nth: (n) => this.match?.line === n ? this.match.nth : -1,
			head: (stage) => this.head(stage),
		});
		this.announcer = new Announcer(this.part("announce"), (n) => plain(this.lines.text(n)));
		this.wanted = places(location.hash);
		if (this.wanted) {
			this.view.following = false;
		} else if (section.dataset.over !== undefined) {
			this.view.following = false; // one begins to read at the top
		}
		this.source = new Source(section.dataset.url, {
			row: (row) => this.row(row),
			loading: (part) => this.become("loading", part),
			glance: (rows) => this.glance(rows),
			caught: () => this.caught(),
			state: (state, why) => this.become(state, why),
			status: () => section.dispatchEvent(new CustomEvent("log:status", {bubbles: true})),
			end: () => this.over(),
		});
		this.source.over = section.dataset.over !== undefined;
		toolbar(this);
		this.part("lines").addEventListener("click", (event) => this.clicked(event));
		addEventListener("hashchange", () => {
			this.wanted = places(location.hash);
			this.select(null, false);
			this.reveal(true);
		});
		this.restage();
		this.tell();
		this.done = this.source.run();
	}

	row(row) {
		const first = this.lines.append(row);
		this.view.changed(first);
		this.search.since(first);
		this.reveal(false);
		this.soon ||= requestAnimationFrame(() => {
			this.soon = 0;
			this.tell();
		});
	}

	// reveal selects and shows the lines that the page's address names, once they
	// are here. whole: nothing more will come for now.
	reveal(whole) {
		const range = this.wanted && this.lines.range(this.wanted, whole);
		if (range) {
			this.wanted = null;
			this.select(range, true);
		}
	}

	// glance shows the end of a log of which the rest is still to come, without
	// numbers, for nobody knows them yet.
	glance(rows) {
		if (!this.view.following) {
			return;
		}
		const lines = rows.map((row) => row.text).join("").trimEnd().split("\n");
		this.part("end-lines").textContent = lines.slice(lines.length > 1 ? 1 : 0).slice(-12).map((line) => plain(line.slice(-2000)).slice(0, 300)).join("\n");
		this.part("end").hidden = false;
	}

	caught() {
		this.part("end").hidden = true;
		if (this.state === "loading" || this.state === "reconnecting") {
			this.state = "";
		}
		this.reveal(true);
		if (this.section.dataset.over !== undefined) {
			this.seen = this.lines.length; // none of it is new
		}
		this.announcer.grown(this.lines.length, true);
		this.tell();
	}

	over() {
		this.section.dataset.over = "";
		this.become("");
		this.section.dispatchEvent(new CustomEvent("log:status", {bubbles: true}));
	}

	become(state, why) {
		this.state = state;
		this.why = why;
		this.tell();
	}

	// restage takes from the page which stages there are.
	restage() {
		const list = [...document.querySelectorAll("[data-stage-seq]")].map((e) => ({key: e.dataset.stageKey, name: e.dataset.stageName, took: e.dataset.stageTook, seq: Number(e.dataset.stageSeq)}));
		const changed = this.stages.set(list);
		if (changed && this.lines.length > 0) {
			this.view.again();
		}
	}

	head(stage) {
		const b = element("button", "log-stage"), folded = this.stages.folded.has(stage.key);
		b.type = "button";
		b.dataset.log = "stage";
		b.dataset.key = stage.key;
		b.setAttribute("aria-expanded", String(!folded));
		b.append(element("span", "log-stage-name", stage.name));
		if (stage.took) {
			b.append(element("span", "log-stage-took", stage.took));
		}
		return b;
	}

	clicked(event) {
		const at = event.target.closest("[data-log], .log-number"), line = Number(event.target.closest(".log-row")?.dataset.line) - 1;
		if (at === null) {
			return;
		}
		if (at.classList.contains("log-number")) {
			event.preventDefault();
			this.select(extended(this.view.selected, line, event.shiftKey), false);
			history.replaceState(history.state, "", hashOf(this.lines, this.view.selected));
		} else if (at.dataset.log === "stage") {
			this.stages.toggle(at.dataset.key);
			this.view.again();
		} else if (at.dataset.log === "more" || at.dataset.log === "over") {
			this.view.longer(line, at.dataset.log === "over");
		}
	}

	select(range, show) {
		this.view.selected = range ?? [0, -1];
		this.view.forget();
		if (range && show && this.lines.length > range[0]) {
			this.view.show(range[0]);
		}
		this.view.draw();
	}

	// step goes to another match.
	step(by) {
		const [top] = this.view.topLine();
		this.match = this.search.step(by, top);
		this.hurried = !this.match && this.search.looking ? by : 0; // as soon as one is found
		if (this.match) {
			const {line, nth} = this.match, place = this.search.places(line)[nth];
			while (place && place[1] > (this.view.limits.get(line) ?? 4096) && (this.view.limits.get(line) ?? 0) < 1 << 18) {
				this.view.longer(line, false);
			}
			this.view.forget();
			this.view.show(line);
		}
	}

	look(query, options) {
		this.match = null;
		this.hurried = 0;
		this.search.set(query, options);
		this.view.forget();
		this.view.draw();
	}

	onlyErrors(on) {
		this.view.onlyErrors = on;
		this.view.again();
		this.search.restart();
		this.tell();
	}

	firstError() {
		const n = firstError(this.lines);
		if (n >= 0) {
			this.select([n, n], true);
			history.replaceState(history.state, "", hashOf(this.lines, [n, n]));
		}
		return n >= 0;
	}

	found() {
		this.told?.found();
		const by = this.hurried;
		if (by && this.search.at.length > 0) {
			this.hurried = 0;
			this.step(by);
		}
	}

	tell() {
		if (this.view.following) {
			this.seen = this.lines.length;
		}
		this.announcer.grown(this.lines.length, this.view.following && this.state !== "loading");
		this.told?.state();
	}
}

for (const section of document.querySelectorAll("section.log")) {
	section.viewer = new Viewer(section);
}
