// To whom the agent is asked to seal sensitive outputs: the person's key in this
// browser, unless the reader chooses otherwise or the JSON says so.
import {el, say, select} from "./dom.js";
import {recipientOf} from "../personkey.js";

export class Requester {
	// asks is what this browser's key asks with, undefined for none; on has changed().
	constructor(asks, on) {
		Object.assign(this, {asks, on, path: "config_snapshot.requester_key", name: "requester_key"});
		this.error = el("p", {class: "error", id: "s-requester_key-error", hidden: true});
		this.element = el("div", {class: "field", "data-variable": this.name});
		this.draw();
	}

	read(snapshot) {
		const value = snapshot.get("requester_key") || undefined;
		if (value !== this.value || this.value === undefined) {
			this.value = value;
			this.other = value !== undefined && value !== this.asks ? value : this.other;
			this.draw();
		}
	}

	write(snapshot) {
		this.value === undefined ? snapshot.delete("requester_key") : snapshot.set("requester_key", this.value);
	}

	draw() {
		const choices = [
			this.asks && ["own", "Sealed to your key in this browser"],
			this.other && ["other", `Sealed to another key, ${short(recipientOf(this.other))}`],
			["none", "Not stored"],
		].filter(Boolean);
		const now = this.value === undefined ? "none" : this.value === this.asks ? "own" : "other";
		const help = {
			own: ["Only this browser can show them, if the agents trust your key. ", el("a", {href: "/account#key"}, "Your key")],
			other: ["Anyone with that key can read them."],
			none: this.asks ? ["Nobody can read them here. They are in the state."] : ["You have no key in this browser to seal them to. ", el("a", {href: "/account#key"}, "Create a key")],
		}[now];
		const about = el("p", {class: "help", id: "s-requester_key-help"}, ...help);
		if (choices.length === 1) {
			this.element.replaceChildren(el("div", {class: "label"}, "Sensitive outputs: not stored"), about, this.error);
			return;
		}
		this.input = select(choices, now, (chosen) => {
			this.value = {own: this.asks, other: this.other}[chosen];
			this.draw();
			this.input.focus();
			this.on.changed();
		}, {id: "s-requester_key", "aria-describedby": about.id});
		this.element.replaceChildren(el("label", {for: "s-requester_key"}, "Sensitive outputs"), this.input, about, this.error);
	}

	problems() {
		return [];
	}

	tell(text) {
		say(this.error, text);
		this.input?.setAttribute("aria-invalid", String(Boolean(text)));
	}

	// standing is what a draft remembers: that the key is this browser's, or that
	// somebody has chosen another or none although there is one.
	get standing() {
		return !this.asks ? "" : this.value === this.asks ? "own" : "chosen";
	}
}

// name puts the key that counts now into a snapshot; standing is as the draft has it
// that the snapshot comes from.
export function name(snapshot, asks, standing) {
	if (standing === "chosen") {
		return;
	}
	if (asks) {
		snapshot.set("requester_key", asks);
	} else if (standing === "own") {
		snapshot.delete("requester_key"); // it was removed since
	}
}

const short = (key) => (key.length > 24 ? `${key.slice(0, 20)}…` : key);
