// How the fields of the step Configure are put on the page: what must be filled
// in first, what may be changed after it, how it is run last.
import * as drafts from "./draft.js";
import {button, el, say} from "./dom.js";

const FEW = 12; // variables that are shown without being asked for

export function layOut(page, into) {
	const {secrets, variables, settings, form} = page;
	const required = variables.filter((f) => f.required);
	const optional = variables.filter((f) => !f.required);
	page.elements = {strangers: el("div", {class: "alert stack tight", "data-kind": "warning", hidden: true}), other: el("div", {class: "alert", "data-kind": "warning", hidden: true}), usual, elsewhere};
	into.append(...[
		page.begun && begun(page),
		page.elements.other,
		section("About this deploy", settings.workspace.element, settings.reason.element, page.requester.element),
		required.length && section("Required", ...required.map((f) => f.element)),
		secrets.length && section("Secrets", sealing(form.dataset), ...secrets.map((f) => f.element)),
		optional.length && optionalSection(optional),
		form.dataset.key && page.another.element,
		el("details", {class: "fold"}, el("summary", {}, "Advanced"), el("div", {class: "stack"}, ...settings.advanced.map((f) => f.element))),
		page.elements.strangers,
	].filter(Boolean));
	into.hidden = false;
}

const section = (title, ...children) => el("section", {class: "card stack"}, el("h2", {}, title), ...children);

// usual shows the workspace that is taken where none is named.
function usual(page) {
	const {workspace} = page.settings;
	const input = workspace.element.querySelector("input");
	const name = page.snapshot.get("workspace") ? "" : page.workspace();
	if (input) {
		input.placeholder = name || "acme/prod";
	}
	say(workspace.note, name ? `If blank: ${name} (project_name/environment).` : "");
}

// elsewhere tells that the JSON names another template than this form's.
function elsewhere(page) {
	const {other} = page.elements;
	const [here, named] = [page.source, page.snapshot.get("template_source") ?? new Map()].map((source) => ["repo", "path", "version"].map((name) => source.get(name) ?? ""));
	other.hidden = here.join(" ") === named.join(" ");
	if (other.hidden) {
		return;
	}
	const url = new URL(location.href);
	url.searchParams.set("step", "configure");
	url.searchParams.set("version", named[2]);
	if (here[0] !== named[0] || here[1] !== named[1]) {
		url.searchParams.delete("template");
		url.searchParams.set("repo", named[0]);
		url.searchParams.set("path", named[1]);
	}
	other.replaceChildren(el("div", {}, el("p", {}, `The JSON names ${here[0] === named[0] && here[1] === named[1] ? `version ${named[2]}` : "another template"}, and this form is for ${here[2]}. What the JSON says is deployed. `),
		el("p", {}, el("a", {href: url.href}, "Go to its form"))));
}

function begun(page) {
	return el("div", {class: "alert", "data-kind": "info"}, el("div", {}, el("p", {}, "Restored your input from this tab."), el("p", {}, button("Start over", () => {
		drafts.drop(page.form.dataset.draft);
		page.form.reset();
		page.sealedFor = JSON.parse(page.form.dataset.sealedFor);
		page.area.value = page.begun;
		page.fromJSON();
	}))));
}

// sealing says to whose key, and how to find out whether it is theirs.
function sealing({key, fingerprint, cluster, repo}) {
	if (!key) {
		return el("div", {class: "alert", "data-kind": "warning"}, el("div", {}, el("p", {}, el("strong", {}, `The cluster ${cluster} has no key yet, so nothing can be sealed to it.`)),
			el("p", {}, "The first agent registers one. Start an agent there, then reload this page. Your input stays in this tab.")));
	}
	const other = drafts.remembered(cluster, fingerprint);
	return el("div", {class: "stack tight"},
		el("p", {class: "muted"}, "Sealed in this browser, so that only the agents of ", el("strong", {}, cluster), " can read them, and only for this workspace and template. Their key is"),
		el("p", {}, el("code", {class: "break", id: "fingerprint"}, fingerprint)),
		el("details", {}, el("summary", {class: "small"}, "Verify it:"), el("p", {class: "help"}, "Compare it with what ", el("code", {}, "tendril doctor"), " says on the agent's machine. ",
			"On the command line, ", el("code", {class: "break"}, `trellis seal NAME --cluster ${cluster} --workspace NAME --repo ${repo} --fingerprint ${fingerprint}`), " refuses any other key.")),
		other && el("div", {class: "alert", "data-kind": "error", role: "alert"}, el("div", {}, el("p", {}, el("strong", {}, "This key differs from the one that you sealed to before.")),
			el("p", {}, "It was ", el("code", {class: "break"}, other), ". Ask who runs the agents whether they have changed it, before you type a secret here."))));
}

// optionalSection can be searched where it is long.
function optionalSection(fields) {
	const list = el("div", {class: "stack"}, ...fields.map((f) => f.element));
	const none = el("p", {class: "muted", hidden: true}, "No variable matches.");
	const find = el("input", {type: "search", placeholder: "Find a variable", "aria-label": "Find a variable", autocomplete: "off"});
	find.addEventListener("input", () => {
		const wanted = find.value.trim().toLowerCase();
		fields.forEach((f) => (f.element.hidden = !`${f.name} ${f.help ?? ""}`.toLowerCase().includes(wanted)));
		none.hidden = fields.some((f) => !f.element.hidden);
	});
	find.addEventListener("keydown", (event) => event.key === "Enter" && event.preventDefault()); // not a step on
	return el("details", {class: "fold", open: fields.length <= FEW}, el("summary", {}, `Optional (${fields.length})`),
		el("div", {class: "stack"}, fields.length > FEW && find, list, none));
}
