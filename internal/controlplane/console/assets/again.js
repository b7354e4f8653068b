// Forms that ask for a run again (data-again) name the person's key in this browser,
// if there is one: what an agent seals is for who asks now. Forms that come with a
// later part of the page are included. One that is sent before the key is read waits.
import {asks, kept} from "./personkey.js";

let own, read = false;
const reading = kept().then((key) => { own = key; }).catch(() => {}).then(() => { read = true; });

document.addEventListener("submit", async (event) => {
	if (read || !event.target.matches("form[data-again]")) {
		return;
	}
	event.preventDefault();
	event.stopImmediatePropagation();
	const {target, submitter} = event;
	await reading;
	target.requestSubmit(submitter);
}, {capture: true});

document.addEventListener("formdata", (event) => {
	if (own && event.target.matches("form[data-again]")) {
		event.formData.set("requester_key", asks(own));
	}
});
