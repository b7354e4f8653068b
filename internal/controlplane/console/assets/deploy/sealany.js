// Seals the value of a variable that the template does not declare sensitive, or
// of a template that nobody has looked at.
import {el, button, say} from "./dom.js";

export class SealAny {
	// on has seal(name, text), which answers what is wrong, and remove(name).
	constructor(locked, on) {
		this.name = el("input", {id: "seal-name", class: "mono", autocomplete: "off", spellcheck: "false", disabled: locked});
		this.value = el("input", {id: "seal-value", type: "password", autocomplete: "off", disabled: locked});
		this.error = el("p", {class: "error", role: "alert", hidden: true});
		this.list = el("ul", {class: "plain stack tight"});
		this.on = on;
		const go = button("Seal it", () => this.go(), {disabled: locked});
		for (const input of [this.name, this.value]) {
			input.addEventListener("keydown", (event) => {
				if (event.key === "Enter") { // not a step on
					event.preventDefault();
					this.go();
				}
			});
		}
		this.element = el("details", {class: "fold"}, el("summary", {}, "Seal another variable"), el("div", {class: "stack"},
			el("p", {class: "help"}, "A text that only the cluster's agents can read, for this workspace and template. The template should declare the variable sensitive, or Terraform itself shows it in plans."),
			el("div", {class: "field"}, el("label", {for: "seal-name"}, "Variable"), this.name),
			el("div", {class: "field"}, el("label", {for: "seal-value"}, "Its value"), this.value), this.error, el("p", {class: "actions"}, go), this.list));
	}

	async go() {
		const wrong = await this.on.seal(this.name.value.trim(), this.value.value);
		say(this.error, wrong);
		if (!wrong) {
			this.name.value = this.value.value = "";
			this.name.focus();
		}
	}

	// show lists those that are sealed.
	show(names) {
		this.list.replaceChildren(...names.map((name) => el("li", {class: "row"}, el("code", {}, name), el("span", {class: "muted"}, "is sealed"), button("Remove", () => this.on.remove(name), {"aria-label": `Remove ${name}`}))));
	}
}
