// Seals a variable's value to a cluster's key as "trellis seal" does: an armoured
// age message of {"v":2,"cluster":…,"workspace":…,"repo":…,"name":…,"value":…}.
// Only the cluster's agents can open it, and only for that variable, in that
// workspace, for a template of that repository. Knows nothing of the page, and
// where the message goes.
import {Num, write} from "./json.js";

const MOST = 16 << 10; // bytes of a message: seal.MaxVariable
const LEAST = 8; // bytes of a text or number: seal.MinSecret

// tooShort says why a value cannot be kept out of logs; "" if it can. It names no
// part of the value.
export function tooShort(value) {
	const counted = {leaves: 0};
	const problem = leaf("the value", value, counted);
	return problem || (counted.leaves ? "" : "the value is empty");
}

function leaf(at, value, counted) {
	if (value === null) {
		return "";
	}
	if (Array.isArray(value)) {
		return first(value, (v, i) => leaf(`${at}[${i}]`, v, counted));
	}
	if (value instanceof Map) {
		return first([...value.values()], (v, i) => leaf(`${at}: its member ${i + 1} of ${value.size}`, v, counted));
	}
	counted.leaves++;
	if (typeof value === "boolean") {
		return `${at} is a boolean, which cannot be masked in a log, so it cannot be sealed`;
	}
	const bytes = value instanceof Num ? value.text.length : new TextEncoder().encode(value.trim()).length;
	return bytes >= LEAST ? "" : `${at} is a ${value instanceof Num ? "number" : "text"} of less than ${LEAST} bytes, too short to be masked in a log, so it cannot be sealed: make it longer`;
}

function first(values, problem) {
	for (const [i, value] of values.entries()) {
		const found = problem(value, i);
		if (found) {
			return found;
		}
	}
	return "";
}

// seal makes the message. age is the module of that name; use has the cluster's
// name, the workspace's, the template's repository in its canonical form, and the
// variable's name.
export async function seal(age, key, use, value) {
	for (const part of ["cluster", "workspace", "repo", "name"]) {
		if (!use[part]) {
			throw new Error(`nothing is sealed without the ${part === "repo" ? "template's repository" : part} that it is for`);
		}
	}
	const problem = tooShort(value);
	if (problem) {
		throw new Error(problem);
	}
	const {cluster, workspace, repo, name} = use;
	const inside = new Map([["v", new Num("2")], ...Object.entries({cluster, workspace, repo, name, value})]);
	const to = new age.Encrypter();
	to.addRecipient(key);
	const message = age.armor.encode(await to.encrypt(write(inside, "")));
	if (message.length > MOST) {
		throw new Error(`the value is too long: sealed it has ${message.length} bytes, at most ${MOST} are allowed`);
	}
	return message.endsWith("\n") ? message : message + "\n";
}
