// What is filled in, kept in the browser's tab until it is deployed. Nothing that
// is secret is in it: sealed values as their messages, which this browser itself
// cannot open, and of a sensitive variable no plain value, wherever it was typed.
import {parse, write} from "./json.js";

const PREFIX = "trellis-deploy:";

// load returns {text, sealedFor, requester, sent}, or null.
export function load(key) {
	try {
		return JSON.parse(sessionStorage.getItem(PREFIX + key));
	} catch {
		return null; // storage is off, or another's
	}
}

export function save(key, draft) {
	try {
		sessionStorage.setItem(PREFIX + key, JSON.stringify(draft));
	} catch {
		// Storage is off or full: then nothing is kept.
	}
}

export function drop(key) {
	try {
		sessionStorage.removeItem(PREFIX + key);
	} catch {
		// There is none.
	}
}

// without is a snapshot as text, without the plain values of those variables.
export function without(snapshot, names) {
	const vars = snapshot.get("terraform_vars");
	if (!(vars instanceof Map) || !names.some((name) => vars.has(name))) {
		return write(snapshot);
	}
	const copy = parse(write(snapshot));
	names.forEach((name) => copy.get("terraform_vars").delete(name));
	return write(copy);
}

// remembered notes the key that this browser has sealed to, for a cluster, and
// returns the one that it noted before, if that was another.
export function remembered(cluster, fingerprint) {
	try {
		const before = localStorage.getItem("trellis-key:" + cluster);
		return before !== null && before !== fingerprint ? before : "";
	} catch {
		return "";
	}
}

export function remember(cluster, fingerprint) {
	try {
		localStorage.setItem("trellis-key:" + cluster, fingerprint);
	} catch {
		// Then the next time is the first one again.
	}
}
