// The answer of a person who has done the work of a run. What is secret (data-seals) has
// no name in the form: it is sealed here, to the cluster's key and for this run's workspace
// and template, and only the sealed text is sent.
import {Num} from "./deploy/json.js";
import {seal} from "./deploy/sealing.js";

const sealed = new WeakMap(); // by form: what is sent beside its fields

document.addEventListener("submit", async (event) => {
	const form = event.target;
	if (!form.matches("form[data-input]") || sealed.has(form)) {
		return;
	}
	const secrets = [...form.querySelectorAll("[data-seals]")].filter((field) => field.value && isSent(field, event.submitter));
	if (secrets.length === 0) {
		return;
	}
	event.preventDefault();
	event.stopImmediatePropagation();
	const error = form.querySelector("[data-input-error]");
	error.hidden = true;
	try {
		const messages = [];
		for (const field of secrets) {
			messages.push([field.dataset.seals, await message(form.dataset, field)]);
		}
		sealed.set(form, messages);
		form.requestSubmit(event.submitter);
		if (!form.checkValidity()) {
			sealed.delete(form); // a field was changed meanwhile: what is sent next is sealed again
		}
	} catch (failed) {
		error.textContent = failed.message;
		error.hidden = false;
	}
}, {capture: true});

document.addEventListener("formdata", (event) => {
	for (const [name, text] of sealed.get(event.target) ?? []) {
		event.formData.set(`sealed.${name}`, text);
	}
});

// Of work that can't be done, only the machines that exist all the same are in the answer.
function isSent(field, submitter) {
	const exists = field.closest("fieldset")?.querySelector("[name$='.exists']");
	return submitter?.value === "true" || !exists || exists.checked;
}

async function message({cluster, workspace, repo, key}, field) {
	if (!key) {
		throw new Error("The cluster has no key yet, so nothing can be sealed to it. Start an agent there.");
	}
	const {seals, member, type} = field.dataset;
	const value = type === "number" ? new Num(field.value) : field.value;
	try {
		return await seal(await import("./vendor/age.js"), key, {cluster, workspace, repo, name: seals}, member ? new Map([[member, value]]) : value);
	} catch (failed) {
		throw new Error(`${field.labels[0]?.textContent ?? seals}: ${failed.message}`);
	}
}
