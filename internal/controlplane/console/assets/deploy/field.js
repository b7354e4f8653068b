// A field of the form: one variable, or one of the snapshot's own settings. It
// reads its value from a snapshot and writes it back.
import {broken, fill, slotOf, valueOf} from "./slots.js";
import {same} from "./json.js";
import {draw, oneLine, preview, stateSelect} from "./draw.js";
import {member, parseType, problems, typeText} from "./types.js";
import {el, say} from "./dom.js";

export class Field {
	// where is the path within the snapshot, such as ["terraform_vars", "size"].
	constructor(where, type, options, on) {
		Object.assign(this, {where, type, on, ...options, touched: false});
		this.name = where.at(-1);
		this.path = ["config_snapshot", ...where].join(".");
		this.id = `${where[0] === "terraform_vars" ? "v" : "s"}-${this.name}`;
		this.slot = slotOf(type, undefined, {unset: true, null: options.nullable ?? false});
		Object.assign(this.slot, {fallback: options.fallback, ...options.slot});
		this.head = el("div", {class: "variable-head"});
		this.body = el("div", {class: "slot"});
		this.error = el("p", {class: "error", id: `${this.id}-error`, hidden: true});
		this.note = el("p", {class: "help", hidden: true});
		this.element = el("div", {class: `field${options.plain ? "" : " variable"}`, "data-variable": this.name}, this.head, options.help && el("p", {class: "help"}, options.help), this.body, this.note, this.error);
		this.draw();
	}

	draw() {
		const on = {
			changed: () => this.edited(),
			shape: (focus) => {
				this.draw();
				if (focus !== null) {
					(document.getElementById(focus) ?? document.getElementById(this.id))?.focus();
				}
				this.edited();
			},
		};
		const at = {id: this.id, path: this.path, label: this.label ?? this.name};
		const labelled = this.slot.type.kind === "bool" && this.slot.state !== "json" ? `${this.id}-state` : this.id;
		this.head.replaceChildren(...[
			el("label", {for: labelled, class: this.plain ? null : "mono"}, at.label),
			!this.plain && el("span", {class: "chip mono truncate", title: typeText(this.type)}, typeText(this.type)),
			this.required && el("span", {class: "chip required"}, "required"),
			!this.plain && stateSelect(this.slot, at, this.required ? "not given" : "default", on),
		].filter(Boolean));
		this.body.replaceChildren(...[draw(this.slot, at, on)].filter(Boolean));
		this.describe();
	}

	edited() {
		this.touched = true;
		const state = document.getElementById(`${this.id}-state`);
		if (state && this.slot.state !== "json" && this.type.kind !== "bool") { // typing gives a value
			state.value = this.slot.state;
		}
		this.describe();
		this.on.changed();
	}

	// describe says what counts now, where that is not plain to see.
	describe() {
		const empty = this.slot.state === "value" && this.slot.type.kind === "string" && this.slot.text === "" && !this.plain;
		const usesDefault = this.slot.state === "unset" && this.fallback !== undefined && !this.plain;
		const shown = ["string", "number"].includes(this.type.kind) && oneLine(this.fallback ?? "") !== ""; // in the input
		say(this.note, this.sealed ? "A sealed value is set. It can't be shown." : empty ? "An empty text." : usesDefault && !shown ? `Default: ${preview(this.fallback)}` : "");
	}

	read(snapshot) {
		const sealed = this.where[0] === "terraform_vars" && Boolean(snapshot.get("sealed_vars")?.has?.(this.name));
		if (sealed !== Boolean(this.sealed)) {
			this.sealed = sealed;
			this.describe();
		}
		let value = snapshot;
		for (const step of this.where) {
			value = value instanceof Map ? value.get(step) : undefined;
		}
		if (this.plain && value === null) {
			value = undefined; // as the database takes it
		}
		const now = valueOf(this.slot);
		if (value === undefined || now === undefined ? value !== now : !same(value, now)) {
			fill(this.slot, value);
			this.draw();
		}
	}

	write(snapshot) {
		let value = valueOf(this.slot);
		if (this.slot.emptyIsUnset && value?.length === 0) {
			value = undefined;
		}
		let holder = snapshot;
		for (const step of this.where.slice(0, -1)) {
			if (!holder.has(step) && value !== undefined) {
				holder.set(step, new Map());
			}
			holder = holder.get(step);
			if (!holder) {
				return;
			}
		}
		value === undefined ? holder.delete(this.name) : holder.set(this.name, value);
		if (this.where.length > 1 && holder.size === 0 && this.where[0] !== "terraform_vars") {
			snapshot.delete(this.where[0]);
		}
	}

	problems() {
		const value = valueOf(this.slot);
		if (this.sealed && value !== undefined) {
			return [{path: this.path, message: "also sealed: remove one of the two"}];
		}
		if (value === undefined) {
			return this.required && !this.sealed ? [{path: this.path, message: "missing", missing: true}] : [];
		}
		if (value === null && !this.nullable && this.required) {
			return [{path: this.path, message: "must not be null"}];
		}
		const found = [...broken(this.slot, this.path, member), ...problems(this.type, value, this.path)];
		const wrong = this.check?.(value);
		return wrong ? [...found, {path: this.path, message: wrong}] : found;
	}

	// tell shows what is wrong, and marks the inputs at those paths; all of them,
	// where none is at one.
	tell(text, paths = []) {
		say(this.error, text);
		const inputs = [...this.element.querySelectorAll("[data-path]")];
		const wrong = inputs.filter((input) => paths.includes(input.dataset.path));
		for (const input of inputs) {
			const marked = Boolean(text) && (wrong.length ? wrong.includes(input) : true);
			input.setAttribute("aria-invalid", String(marked));
			marked ? input.setAttribute("aria-describedby", this.error.id) : input.removeAttribute("aria-describedby");
		}
	}
}

// ofVariable is the field of a declared variable.
export function ofVariable(variable, on) {
	const offered = `offered-${variable.get("name")}`; // what agents have reported, for machines: pools and images
	return new Field(["terraform_vars", variable.get("name")], parseType(variable.get("type_json")), {
		slot: document.getElementById(offered) ? {list: offered} : {},
		required: variable.get("required"), nullable: variable.get("nullable"), help: variable.get("description"), fallback: variable.get("default"),
	}, on);
}

const texts = {kind: "list", of: {kind: "string"}};
const string = {kind: "string"};
const number = {kind: "number"};

// settings are the snapshot's own, the workspace and the reason first.
export function settings(on) {
	const setting = (where, type, label, help, more = {}) => new Field(where, type, {plain: true, label, help, ...more, slot: {emptyIsUnset: true, oneLine: true, ...more.slot}}, on);
	const whole = (most) => (value) => (/^[0-9]+$/.test(value.text ?? "") && Number(value.text) >= 1 && Number(value.text) <= most ? "" : `must be a whole number from 1 to ${most}`);
	return {
		workspace: setting(["workspace"], string, "Workspace", "The Terraform state to use. Deploying again to the same workspace updates it.", {slot: {list: "workspaces"}}),
		reason: setting(["meta", "reason"], string, "Why", "Shown in the history and to approvers."),
		advanced: [
			setting(["targets"], texts, "Targets", "Limit the run to these resource addresses (-target)."),
			setting(["replace"], texts, "Replace", "Replace these resource addresses (-replace)."),
			setting(["timeout_seconds"], number, "Time limit in seconds", "Default and maximum: the agent's own limit.", {check: whole(604800)}),
			setting(["max_attempts"], number, "Attempts", "Attempts if the run fails before anything changed. Default: 1.", {check: whole(10)}),
			setting(["terraform", "engine"], string, "Engine", "terraform or tofu. Default: what the template and the agent say.", {slot: {placeholder: "terraform"}, check: (v) => (["terraform", "tofu"].includes(v) ? "" : 'must be "terraform" or "tofu"')}),
			setting(["terraform", "version"], string, "Engine version", "One exact version.", {slot: {placeholder: "1.11.4"}, check: (v) => (/^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$/.test(v) ? "" : "must be one exact version, such as 1.11.4")}),
		],
	};
}
