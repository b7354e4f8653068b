// The step Configure: a form drawn from what the template declares, and the
// snapshot as JSON beside it. Either may be edited; the other follows. While the
// JSON cannot be read, the form waits, and nothing of either is lost.
import {JSONError, parse, write} from "./json.js";
import {ofVariable, settings} from "./field.js";
import {SecretField} from "./secret.js";
import {parseType} from "./types.js";
import {seal} from "./sealing.js";
import * as drafts from "./draft.js";
import {layOut} from "./layout.js";
import {SealAny} from "./sealany.js";
import {Requester, name as nameRequester} from "./requester.js";
import {button, el, say} from "./dom.js";
import {reloadOnceRead} from "../soon.js";

export class Configure {
	// asks is what this browser's key asks with; undefined for no key.
	constructor(form, asks) {
		this.form = form;
		this.asks = asks;
		this.area = form.elements.config_snapshot;
		this.refused = JSON.parse(form.dataset.problems) ?? [];
		this.declared = form.dataset.variables ? parse(form.dataset.variables) : null;
		this.tried = this.refused.length > 0;
		// By variable: a message, and the cluster, workspace and repository that it is
		// for, as far as this page knows. It cannot scanned one.
		this.sealedFor = JSON.parse(form.dataset.sealedFor);
		this.source = parse(form.dataset.source);
		const on = {changed: () => this.fromForm(), remove: (name) => this.unseal(name)};
		this.secrets = (this.declared ?? []).filter((v) => v.get("sensitive")).map((v) => new SecretField(
			{name: v.get("name"), required: v.get("required"), description: v.get("description")}, parseType(v.get("type_json")), !form.dataset.key, on));
		this.variables = (this.declared ?? []).filter((v) => !v.get("sensitive")).map((v) => ofVariable(v, on));
		this.settings = settings(on);
		this.requester = new Requester(asks, on);
		this.fields = [...this.variables, ...this.secrets, this.settings.workspace, this.settings.reason, this.requester, ...this.settings.advanced];
		this.another = new SealAny(!form.dataset.key, {seal: (name, text) => this.sealText(name, text), remove: on.remove});
		this.begin();
		layOut(this, form.querySelector("#fields"));
		this.listen();
		this.fromJSON();
	}

	// begin takes what the tab has kept, unless something was just sent.
	begin() {
		const {draft: key, cluster, repo} = this.form.dataset;
		const kept = drafts.load(key);
		const posted = this.form.hasAttribute("data-posted");
		if (!posted) {
			const snapshot = parse(this.area.value); // the server's own
			nameRequester(snapshot, this.asks);
			this.area.value = write(snapshot);
		}
		const back = performance.getEntriesByType("navigation")[0]?.type === "back_forward";
		if (!kept || posted || (kept.sent && !back)) {
			return;
		}
		const snapshot = shaped(parse(kept.text), kept.text);
		snapshot.set("template_source", new Map(this.source));
		nameRequester(snapshot, this.asks, kept.requester);
		this.sealedFor = kept.sealedFor ?? {};
		const sealed = snapshot.get("sealed_vars");
		for (const [name, use] of Object.entries(this.sealedFor)) {
			if (use.cluster !== cluster || use.repo !== repo) {
				delete this.sealedFor[name];
				sealed?.get?.(name) === use.message && sealed.delete(name);
			}
		}
		if (sealed instanceof Map && !sealed.size) {
			snapshot.delete("sealed_vars");
		}
		if (write(snapshot) !== write(parse(this.area.value))) {
			this.begun = this.area.value;
			this.area.value = write(snapshot);
		}
	}

	listen() {
		this.area.addEventListener("input", () => this.fromJSON());
		this.form.addEventListener("submit", (event) => {
			if (event.submitter?.hasAttribute("formaction")) {
				return;
			}
			event.preventDefault();
			this.review();
		});
		const format = this.form.querySelector("[data-format]");
		format.hidden = false;
		format.addEventListener("click", () => {
			if (this.snapshot && !this.unread) {
				this.area.value = write(this.snapshot);
			}
		});
		const copy = this.form.querySelector(".copy");
		copy?.addEventListener("pointerdown", () => (copy.dataset.copy = this.area.value));
		copy?.addEventListener("focus", () => (copy.dataset.copy = this.area.value));
		const waits = this.form.querySelector("[data-soon]");
		if (waits) {
			reloadOnceRead(waits.dataset.soon, () => this.unread); // what is filled in is kept, but for JSON that cannot be read
		}
	}

	// fromJSON has the form follow the JSON.
	fromJSON() {
		try {
			this.snapshot = shaped(parse(this.area.value), this.area.value);
			this.unread = null;
		} catch (error) {
			if (!(error instanceof JSONError)) {
				throw error;
			}
			this.unread = error;
		}
		if (!this.unread) {
			this.fields.forEach((field) => field.read(this.snapshot));
		}
		this.show();
	}

	// fromForm has the JSON follow the form.
	fromForm() {
		this.refused = [];
		this.fields.forEach((field) => field.write(this.snapshot));
		this.area.value = write(this.snapshot);
		this.show();
	}

	unseal(name) {
		const sealed = this.snapshot.get("sealed_vars");
		sealed.delete(name);
		delete this.sealedFor[name];
		if (!sealed.size) {
			this.snapshot.delete("sealed_vars");
		}
		this.area.value = write(this.snapshot);
		this.fromJSON();
		document.getElementById(`v-${name}`)?.focus();
	}

	// problems are all there are, but for those that the database found.
	problems() {
		const found = this.fields.flatMap((field) => field.problems(this.snapshot).map((p) => ({...p, field})));
		const name = this.workspace();
		for (const [sealed, message] of this.snapshot.get("sealed_vars") ?? []) {
			const use = this.sealedFor[sealed];
			const field = this.secrets.find((f) => f.name === sealed);
			if (use?.message === message && !field?.text && (use.workspace !== name || !this.sameRepo())) {
				const only = use.workspace !== name ? `the workspace ${use.workspace}` : `templates of ${use.repo}`;
				found.push({path: `config_snapshot.sealed_vars.${sealed}`, message: `sealed for ${only} only: ${field ? "replace it" : "seal it again"}`, field});
			}
		}
		if (!name) {
			found.push({path: "config_snapshot.workspace", message: "Enter a workspace, for example acme/prod", missing: true, field: this.settings.workspace});
		}
		return [...found, ...this.strangers().map((stranger) => ({path: `config_snapshot.terraform_vars.${stranger}`, message: "the template has no such variable"}))];
	}

	// sameRepo reports whether the JSON names the repository that this form is for.
	sameRepo() {
		return this.snapshot.get("template_source")?.get("repo") === this.source.get("repo");
	}

	// strangers are variables in the JSON that the template does not declare.
	strangers() {
		const known = new Set((this.declared ?? []).map((v) => v.get("name")));
		return this.declared ? ["terraform_vars", "sealed_vars"].flatMap((part) => [...(this.snapshot.get(part)?.keys() ?? [])]).filter((name) => !known.has(name)) : [];
	}

	// workspace is the name that the database will take.
	workspace() {
		const vars = this.snapshot.get("terraform_vars");
		const parts = ["project_name", "environment"].map((name) => vars?.get(name));
		const usual = parts.every((part) => typeof part === "string" && part && !part.includes("/")) ? parts.join("/") : "";
		return this.snapshot.get("workspace") || usual;
	}

	// show tells what is wrong where it is, and how it stands.
	show() {
		const status = this.form.querySelector("#standing");
		this.form.querySelector("#fields").inert = Boolean(this.unread);
		this.form.classList.toggle("waits", Boolean(this.unread));
		this.area.setAttribute("aria-invalid", String(Boolean(this.unread)));
		const error = this.form.querySelector("#snapshot-error");
		say(error, this.unread ? this.unread.message : "");
		if (this.unread) {
			error.append(" ", button("Show where", () => this.goTo(this.unread.offset)), this.snapshot ? button("Discard the JSON changes", () => {
				this.area.value = write(this.snapshot);
				this.fromJSON();
			}) : "");
			status.textContent = "The JSON has an error.";
			return;
		}
		const all = [...this.problems(), ...this.refused];
		for (const field of this.fields) {
			const own = all.filter((p) => p.field === field || (!p.field && this.fieldOf(p.path) === field));
			const shown = own.filter((p) => !p.missing || this.tried || field.touched);
			field.tell(shown.map((p) => told(p, field.path)).join("\n"), shown.map((p) => p.path));
		}
		const strangers = this.strangers();
		this.elements.strangers.hidden = !strangers.length;
		this.elements.strangers.replaceChildren(...(strangers.length ? [el("p", {}, el("strong", {}, "Not variables of this template")),
			...strangers.map((name) => el("p", {class: "row"}, el("code", {}, name), button("Remove", () => this.remove(name), {"aria-label": `Remove ${name}`})))] : []));
		const missing = all.filter((p) => p.missing).length;
		const wrong = all.filter((p) => !p.missing && !p.warning).length;
		status.textContent = [missing && `${missing} required`, wrong && `${wrong} error${wrong === 1 ? "" : "s"}`].filter(Boolean).join(", ");
		this.elements.usual(this);
		this.elements.elsewhere(this);
		const own = new Set(this.secrets.map((s) => s.name));
		this.preview();
		this.another.show([...(this.snapshot.get("sealed_vars")?.keys() ?? [])].filter((name) => !own.has(name)));
		this.keep();
	}

	// preview asks where the machines would go, once nobody has typed for a moment.
	preview() {
		const into = this.form.querySelector("#placement");
		const text = this.area.value;
		if (!into || text === this.previewed) {
			return;
		}
		into.closest("section").hidden = false;
		clearTimeout(this.previewing);
		this.previewing = setTimeout(() => this.askForPreview(into), 400);
	}

	// askForPreview has one request at a time: on a slow server the next waits for its answer.
	async askForPreview(into) {
		if (this.asking) {
			return;
		}
		this.asking = true;
		while (!this.unread && this.area.value !== this.previewed) {
			this.previewed = this.area.value;
			// Not from within the form, of which a secret's text would go with it.
			await window.htmx.ajax("POST", into.dataset.preview, {source: "#previews", target: into, swap: "innerHTML", values: {config_snapshot: this.previewed}}).catch(() => {}); // the page says it
		}
		this.asking = false;
	}

	fieldOf(path) {
		const plain = path.replace(/^config_snapshot\.sealed_vars\./, "config_snapshot.terraform_vars.");
		return this.fields.find((field) => {
			const own = field.path.replace("sealed_vars", "terraform_vars");
			return plain === own || plain.startsWith(own + ".") || plain.startsWith(own + "[");
		});
	}

	remove(name) {
		this.snapshot.get("terraform_vars")?.delete(name);
		this.snapshot.get("sealed_vars")?.delete(name);
		this.area.value = write(this.snapshot);
		this.fromJSON();
	}

	keep(more = {}) {
		drafts.save(this.form.dataset.draft, {text: drafts.without(this.snapshot, this.secrets.map((s) => s.name)), sealedFor: this.sealedFor, requester: this.requester.standing, ...more});
	}

	goTo(offset) {
		this.area.focus();
		this.area.setSelectionRange(offset, offset + 1);
	}

	// review seals what is to be sealed, asks the server what it finds wrong, and
	// goes on if that is nothing.
	async review() {
		this.tried = true;
		this.refused = [];
		this.show();
		if (this.unread) {
			return this.goTo(this.unread.offset);
		}
		const wrong = this.problems().filter((p) => !p.warning);
		if (wrong.length) {
			return this.reveal(wrong[0].field ?? this.fieldOf(wrong[0].path));
		}
		const status = this.form.querySelector("#standing");
		status.textContent = "Checking…";
		if (!(await this.sealAll())) {
			return;
		}
		// Of the form's elements these alone: in others stands what is to be sealed.
		const body = new URLSearchParams({config_snapshot: this.area.value, org_id: this.form.elements.org_id?.value ?? ""});
		const answer = await fetch(this.form.action, {method: "POST", body, headers: {Accept: "application/json"}}).catch(() => null);
		if (!answer?.ok) {
			status.textContent = answer?.status === 401 ? "Your session has ended: sign in again in another tab, then try again." : "The server is not responding. Nothing is lost: try again.";
			return;
		}
		this.refused = (await answer.json()).problems;
		this.show();
		if (this.refused.length) {
			return this.reveal(this.fieldOf(this.refused[0].path), this.refused[0]);
		}
		this.keep();
		location.assign(this.form.dataset.review);
	}

	reveal(field, problem) {
		if (!field) {
			say(this.form.querySelector("#snapshot-error"), problem ? told(problem, "config_snapshot") : "");
			return this.area.focus();
		}
		field.element.closest("details")?.setAttribute("open", "");
		field.element.hidden = false;
		const {element} = field;
		(element.querySelector("[aria-invalid=true]") ?? element.querySelector(".slot :is(input, textarea, select, button)") ?? element.querySelector("input, textarea, select, button"))?.focus();
	}

	// sealAll puts what was typed into secret fields into the snapshot, sealed.
	async sealAll() {
		const typed = this.secrets.filter((field) => field.value() !== undefined);
		for (const field of typed) {
			const wrong = await this.sealOne(field.name, field.value());
			if (wrong) {
				field.tell(wrong);
				this.reveal(field);
				return false;
			}
		}
		typed.forEach((field) => field.forget());
		if (typed.length) {
			this.area.value = write(this.snapshot);
			this.fromJSON();
		}
		return true;
	}

	// sealText seals a text for any variable, and answers what is wrong.
	async sealText(name, text) {
		if (this.unread || !/^[A-Za-z_][A-Za-z0-9_-]{0,199}$/.test(name)) {
			return this.unread ? "The JSON has an error. Fix it first." : "This is not the name of a variable.";
		}
		if (this.declared && !this.declared.some((v) => v.get("name") === name)) {
			return "The template has no such variable.";
		}
		const wrong = await this.sealOne(name, text);
		if (!wrong) {
			this.area.value = write(this.snapshot);
			this.fromJSON();
		}
		return wrong;
	}

	// sealOne puts a value into the snapshot, sealed, and answers what is wrong.
	async sealOne(name, value) {
		const {key, cluster, repo, fingerprint} = this.form.dataset;
		const use = {cluster, workspace: this.workspace(), repo, name};
		if (!use.workspace) {
			return "Enter a workspace first: a value is sealed for one.";
		}
		if (!this.sameRepo()) {
			return "The JSON names another template: go to its form, and seal the value there.";
		}
		try {
			const message = await seal(await import("../vendor/age.js"), key, use, value);
			this.snapshot.set("sealed_vars", (this.snapshot.get("sealed_vars") ?? new Map()).set(name, message));
			this.sealedFor[name] = {...use, message};
		} catch (error) {
			return error.message;
		}
		this.snapshot.get("terraform_vars")?.delete(name);
		drafts.remember(cluster, fingerprint);
		return "";
	}
}

// shaped refuses JSON that has no place for what a form says.
function shaped(snapshot, text) {
	if (!(snapshot instanceof Map)) {
		throw new JSONError("the snapshot is an object, { … }", text, 0);
	}
	for (const part of ["template_source", "terraform_vars", "sealed_vars", "terraform", "meta"]) {
		const value = snapshot.get(part) ?? new Map();
		if (!(value instanceof Map)) {
			throw new JSONError(`${part} is an object, { … }`, text, text.indexOf(`"${part}"`));
		}
		if (snapshot.get(part) === null) {
			snapshot.delete(part);
		}
	}
	return snapshot;
}

// told is a problem beside its field: of the path, what is below it.
const told = ({path, message}, own) => (path.startsWith(own) && path !== own ? `${path.slice(own.length).replace(/^\./, "")}: ${message}` : message);
