// The credentials of a workspace's machines, opened with the key that this browser keeps.
// What is opened is in this page alone: on slips to print and, when asked for, in a file that
// the browser writes. Neither is sent or kept, and leaving the page ends both.
import {el} from "./deploy/dom.js";
import {kept, open} from "./personkey.js";
import {fill} from "./unseen.js";

let machines = null; // what is shown now

const sealed = () => document.querySelector("[data-handout]");
const part = (name) => document.querySelector(`[data-part=${name}]`);

// cell is one that no spreadsheet takes for a formula, as provision.HandOutCSV has it.
const cell = (text) => `"${(/^[=+\-@\t\r\n]/.test(text) ? "'" + text : text).replaceAll('"', '""')}"`;

function csv(list) {
	const others = [...new Set(list.flatMap((m) => Object.keys(m.others)))].sort();
	const rows = [["name", "address", "ssh_port", "user", "password", "ssh_command", ...others]];
	for (const m of list) {
		rows.push([m.name, m.address, String(m.port), m.user, m.password, m.command, ...others.map((name) => m.others[name] ?? "")]);
	}
	return rows.map((row) => row.map(cell).join(",") + "\r\n").join("");
}

// slip is what the user of one machine gets.
function slip(m) {
	const facts = [["Address", m.address], ["SSH port", String(m.port)], ["User", m.user], ["Password", m.password], ["Sign in", m.command], ...Object.entries(m.others).sort()];
	return el("article", {class: "card slip"}, named("h2", "break", m.name),
		el("dl", {}, ...facts.filter(([, value]) => value).map(([name, value]) => el("div", {}, named("dt", "", name), named("dd", "mono break", value)))));
}

function named(tag, classes, text) {
	const element = el(tag, {class: classes});
	fill(element, text);
	return element;
}

async function draw() {
	const own = await kept();
	const mine = Boolean(sealed()) && own?.recipient === sealed().dataset.to;
	part("show").hidden = !mine;
	part("show").classList.toggle("btn-primary", !machines);
	part("show").textContent = machines ? "Hide" : "Show credentials";
	part("print").hidden = part("csv").hidden = !machines;
	part("slips").replaceChildren(...(machines ?? []).map(slip));
	for (const help of document.querySelectorAll("[data-sealed-to]")) {
		help.hidden = mine;
	}
}

// forget takes everything out of the page.
function forget() {
	machines = null;
	part("slips").replaceChildren();
	return draw();
}

part("show").addEventListener("click", async () => {
	if (machines) {
		return forget();
	}
	try {
		machines = JSON.parse(await open(await kept(), sealed().dataset.handout));
	} catch {
		part("wrong").hidden = false;
	}
	await draw();
});

part("print").addEventListener("click", () => print());

part("csv").addEventListener("click", () => {
	const url = URL.createObjectURL(new Blob([csv(machines)], {type: "text/csv"}));
	const link = el("a", {href: url, download: `${sealed().dataset.name}.csv`});
	link.click();
	URL.revokeObjectURL(url);
});

document.addEventListener("htmx:afterSwap", draw);
addEventListener("pagehide", forget);
addEventListener("pageshow", (event) => event.persisted && draw());
draw();
