// The field of a variable whose value only the cluster's agents are to read. What
// is typed stays here until it is sealed, and is forgotten then: it is never put
// into the snapshot, a draft, or a form that is sent.
import {JSONError, parse} from "./json.js";
import {problems, typeText} from "./types.js";
import {tooShort} from "./sealing.js";
import {button, el, say} from "./dom.js";

export class SecretField {
	// on has changed(), and remove(name) to take a sealed message away.
	constructor(variable, type, locked, on) {
		Object.assign(this, {name: variable.name, variable, type, locked, on, text: "", lines: !["string", "number"].includes(type.kind), message: undefined, replacing: false});
		this.path = `config_snapshot.sealed_vars.${this.name}`;
		this.body = el("div", {class: "stack tight"});
		this.error = el("p", {class: "error", id: `v-${this.name}-error`, hidden: true});
		this.element = el("div", {class: "field variable", "data-variable": this.name},
			el("div", {class: "variable-head"}, el("label", {for: `v-${this.name}`, class: "mono"}, this.name),
				el("span", {class: "chip mono"}, typeText(type)), el("span", {class: "chip"}, "sealed"), variable.required && el("span", {class: "chip required"}, "required")),
			variable.description && el("p", {class: "help"}, variable.description), this.body, this.error);
		this.draw();
	}

	// read takes over what the snapshot has.
	read(snapshot) {
		const message = snapshot.get("sealed_vars")?.get?.(this.name);
		if (message !== this.message) {
			this.message = message;
			this.draw();
		}
	}

	write() {} // a message is put into the snapshot by whoever seals

	draw() {
		const kept = this.message !== undefined && !this.replacing;
		this.body.replaceChildren(...(kept ? [this.kept()] : this.asking()));
	}

	kept() {
		return el("p", {class: "row", id: `v-${this.name}`, tabindex: "-1"}, el("span", {class: "muted"}, "A sealed value is set. It can't be shown."),
			button("Replace", () => this.ask(true), {disabled: this.locked, "aria-label": `Replace ${this.name}`}),
			button("Remove", () => this.on.remove(this.name), {"aria-label": `Remove ${this.name}`}));
	}

	asking() {
		const attributes = {id: `v-${this.name}`, autocomplete: "off", autocapitalize: "none", spellcheck: "false", disabled: this.locked, "aria-describedby": this.error.id,
			placeholder: this.variable.required || this.message !== undefined ? null : "default: the template's own"};
		const input = this.lines ? el("textarea", {...attributes, rows: 4, class: "mono"}) : el("input", {...attributes, type: "password"});
		input.value = this.text;
		input.addEventListener("input", () => {
			this.text = input.value;
			this.on.changed();
		});
		this.input = input;
		return [el("div", {class: "row nowrap"}, input,
			!this.lines && button("Show", (event) => {
				const shown = input.type === "password";
				input.type = shown ? "text" : "password";
				event.target.textContent = shown ? "Hide" : "Show";
				event.target.setAttribute("aria-label", shown ? `Hide ${this.name}` : `Show ${this.name} as you type`);
			}, {"aria-label": `Show ${this.name} as you type`}),
			!this.lines && this.type.kind === "string" && button("¶", () => {
				this.lines = true;
				this.draw();
				this.input.focus();
			}, {title: "Several lines, such as a key", "aria-label": `${this.name}: several lines`}),
			this.replacing && button("Keep current value", () => this.ask(false))),
			this.type.kind !== "string" && el("p", {class: "help"}, this.type.kind === "number" ? "A number with at least 8 digits." : "As JSON. Each text and number needs at least 8 characters.")].filter(Boolean);
	}

	ask(replacing) {
		this.replacing = replacing;
		this.text = "";
		this.draw();
		document.getElementById(`v-${this.name}`).focus();
		this.on.changed();
	}

	// value is what is to be sealed; undefined where nothing has been typed.
	value() {
		return this.text === "" ? undefined : this.type.kind === "string" ? this.text : parse(this.text);
	}

	problems(snapshot) {
		const plain = snapshot.get("terraform_vars")?.get?.(this.name);
		if (plain !== undefined && plain !== null) {
			return [{path: this.path, message: "sensitive, but in plain text in the JSON: remove it there and enter it here to seal it"}];
		}
		try {
			const value = this.value();
			if (value === undefined) {
				return this.variable.required && this.message === undefined ? [{path: this.path, message: "missing", missing: true}] : [];
			}
			const wrong = problems(this.type, value, this.name).filter((p) => !p.warning);
			const short = tooShort(value);
			return wrong.length ? wrong.map((p) => ({...p, path: this.path, message: `${p.path}: ${p.message}`})) : short ? [{path: this.path, message: short}] : [];
		} catch (error) {
			if (!(error instanceof JSONError)) {
				throw error;
			}
			return [{path: this.path, message: error.message}];
		}
	}

	// forget drops what was typed, for it has been sealed.
	forget() {
		this.text = "";
		this.replacing = false;
		this.draw();
	}

	tell(text) {
		say(this.error, text);
		this.input?.setAttribute("aria-invalid", String(Boolean(text)));
	}
}
