// Asks the form's modules, which the page loads as they are, what a test wants
// to know of them: one JSON object in, one out.
import {readFileSync} from "node:fs";
import {pathToFileURL} from "node:url";

const {directory, cases, texts, secrets, key} = JSON.parse(readFileSync(0, "utf8"));
const load = (name) => import(pathToFileURL(`${directory}/${name}`));
const {parse, write, JSONError} = await load("deploy/json.js");
const {parseType, problems, typeText} = await load("deploy/types.js");
const {slotOf, valueOf, choose, broken} = await load("deploy/slots.js");
const {seal} = await load("deploy/sealing.js");
const age = await load("vendor/age.js");

// What a form makes of a value: as it was read, and after each part of it has
// been looked at as JSON and back.
function round(type, value) {
	const slot = slotOf(type, value);
	const same = write(valueOf(slot), "");
	choose(slot, "json");
	return [same, write(valueOf(slotOf(type, valueOf(slot))), "")];
}

const answer = {cases: [], texts: [], secrets: []};
for (const {type, value} of cases ?? []) {
	const parsed = parseType(parse(type));
	const read = parse(value);
	answer.cases.push({
		wrong: [...problems(parsed, read, "v"), ...broken(slotOf(parsed, read), "v", (p, k) => `${p}.${k}`)].filter((p) => !p.warning).map((p) => `${p.path}: ${p.message}`),
		written: [write(read, ""), write(read), ...round(parsed, read)],
		type: typeText(parsed),
	});
}
for (const text of texts ?? []) {
	try {
		answer.texts.push({value: write(parse(text), "")});
	} catch (error) {
		if (!(error instanceof JSONError)) {
			throw error;
		}
		answer.texts.push({error: error.message});
	}
}
for (const {value, ...use} of secrets ?? []) {
	try {
		answer.secrets.push({message: await seal(age, key, use, parse(value))});
	} catch (error) {
		answer.secrets.push({error: error.message});
	}
}
process.stdout.write(JSON.stringify(answer));
