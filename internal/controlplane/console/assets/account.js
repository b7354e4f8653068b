// The part "Your key in this browser" of the page Account.
import {asks, fingerprint, kept, make, obstacle, read, remove, use} from "./personkey.js";
import {refresh} from "./times.js";
import {say} from "./deploy/dom.js";

const card = document.getElementById("key");
const part = (name) => card.querySelector(`[data-key=${name}]`);

// quoted is a text as a shell takes it for one word.
const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

// show shows the parts for how it stands: "none", "kept" or "impossible".
function show(standing) {
	for (const e of card.querySelectorAll("[data-when]")) {
		e.hidden = e.dataset.when !== standing;
	}
}

function command(name, text) {
	part(name).querySelector("code").textContent = text;
	part(name).querySelector(".copy").dataset.copy = text;
}

function moment(element, at) {
	element.dateTime = at.toISOString();
	element.dataset.relative = "";
}

async function showKey(own) {
	part("recipient").textContent = own.recipient;
	part("recipient").nextElementSibling.dataset.copy = own.recipient;
	part("fingerprint").textContent = await fingerprint(own.recipient);
	moment(part("made"), own.made);
	const {name} = card.dataset;
	command("certify", `trellis keys certify ${own.recipient} --name ${/^[\p{L}\p{M}\p{N} .,'@+_-]+$/u.test(name) ? quoted(name) : "NAME"} --workspaces '**' --days 90`);
	command("configure", `[policy]\nrequester_keys = ["${own.recipient}"]`);
	const certificate = own.certificate && read(own.certificate);
	part("certificate").hidden = !certificate;
	part("uncertified").hidden = Boolean(certificate);
	part("trust").open = asks(own) !== own.certificate;
	if (certificate) {
		part("id").textContent = certificate.id;
		part("workspaces").textContent = certificate.workspaces.join(", ");
		part("until").textContent = Date.now() < Date.parse(certificate.until) ? "ends" : "has expired:";
		moment(part("end"), new Date(certificate.until));
	}
	show("kept");
	refresh(card);
}

async function standing() {
	const own = await kept();
	if (own) {
		return showKey(own);
	}
	const why = await obstacle();
	part("why").textContent = why;
	show(why ? "impossible" : "none");
}

// doing does what a button or a form asks for, and says what went wrong.
const doing = (act) => async (event) => {
	event.preventDefault();
	const error = event.currentTarget.querySelector(".error");
	try {
		await act(event);
		say(error, "");
	} catch (wrong) {
		say(error, wrong.message);
	}
};

part("make").addEventListener("submit", doing(async () => {
	await showKey(await make());
	card.querySelector("h2").focus();
}));
part("use").addEventListener("submit", doing(async ({target}) => {
	await showKey(await use(target.elements.certificate.value));
	target.reset();
	part("certificate").focus();
}));
part("remove").addEventListener("submit", doing(async () => {
	await remove();
	await standing();
	card.querySelector("h2").focus();
}));
addEventListener("pageshow", (event) => event.persisted && standing());
await standing();
