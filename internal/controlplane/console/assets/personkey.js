// A person's own key in this browser, to which agents seal what that person asks
// for. The browser makes it, X25519 by WebCrypto, and keeps it in its database of
// this site, under the person's id. The key is not extractable: no script reads it,
// this one included, but any script of this site can open messages with it. Beside
// it is the certificate that somebody has issued for it, if there is one. Neither
// key nor what it opens leaves the browser.
//
// It must not know pages, snapshots or outputs.

const STORE = "keys";
const KIND = "tendril-certificate-1";

// me is the signed-in person's id.
const me = () => document.body.dataset.person;

const settled = (request) => new Promise((resolve, reject) => {
	request.onsuccess = () => resolve(request.result);
	request.onerror = () => reject(request.error);
});

// stored does one thing with the keys, and answers once it is on disk.
async function stored(mode, act) {
	const opening = indexedDB.open("trellis", 1);
	opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
	const database = await settled(opening);
	try {
		const transaction = database.transaction(STORE, mode, {durability: "strict"});
		const done = new Promise((resolve, reject) => {
			transaction.oncomplete = resolve;
			transaction.onabort = () => reject(transaction.error);
		});
		const [answer] = await Promise.all([settled(act(transaction.objectStore(STORE))), done]);
		return answer;
	} finally {
		database.close();
	}
}

// kept is the person's {key, recipient, made, certificate}; null for none.
export async function kept() {
	try {
		return (await stored("readonly", (keys) => keys.get(me()))) ?? null;
	} catch {
		return null; // a browser that keeps nothing has kept no key
	}
}

// obstacle says why this browser cannot keep a key; "" if it can.
export async function obstacle() {
	if (!globalThis.isSecureContext || !globalThis.crypto?.subtle) {
		return "Browsers keep keys only for pages served over HTTPS. This page was served over HTTP.";
	}
	try {
		await fresh();
	} catch {
		return "This browser is too old to keep a key of this kind (X25519) that no script can read.";
	}
	try {
		await stored("readonly", (keys) => keys.count());
	} catch {
		return "This browser keeps nothing for this site. Private windows and strict settings do that.";
	}
	return "";
}

const fresh = async () => (await crypto.subtle.generateKey({name: "X25519"}, false, ["deriveBits"])).privateKey;

const age = () => import("./vendor/age.js");

// make makes the key, or returns the one that another tab has made meanwhile. It is
// read back before anybody seals to it.
export async function make() {
	const key = await fresh();
	const recipient = await (await age()).identityToRecipient(key);
	try {
		await stored("readwrite", (keys) => keys.add({key, recipient, made: new Date(), certificate: ""}, me()));
	} catch (error) {
		if (error?.name !== "ConstraintError") {
			throw new Error(`This browser has not kept the key: ${error?.message}`);
		}
	}
	const own = await kept();
	if (!own || own.key.extractable || (await (await age()).identityToRecipient(own.key)) !== own.recipient) {
		throw new Error("This browser has not kept the key as it was made.");
	}
	navigator.storage?.persist?.().catch(() => false); // asks not to be cleared when the disk is full
	return own;
}

// remove forgets the key. There is no copy.
export const remove = () => stored("readwrite", (keys) => keys.delete(me()));

// use keeps a certificate for the key, as somebody has sent it.
export async function use(text) {
	const own = await kept();
	if (!own) {
		throw new Error("You have no key in this browser. Create one first.");
	}
	own.certificate = certificateFor(own.recipient, text);
	await stored("readwrite", (keys) => keys.put(own, me()));
	return own;
}

// asks is what a deploy names: the certificate while it counts, else the key.
export function asks(own) {
	return own.certificate && Date.now() < Date.parse(read(own.certificate).until) ? own.certificate : own.recipient;
}

// recipientOf is the key that a certificate is for; another text is a key itself.
export function recipientOf(asked) {
	try {
		return read(asked).recipient;
	} catch {
		return asked;
	}
}

// certificateFor finds the certificate in a text, however its lines were broken on
// the way, and refuses one that is not for this key. Agents check its signature.
function certificateFor(recipient, text) {
	const found = new RegExp(`${KIND}\\.[\\w-]+\\.[\\w-]+`).exec(text.replace(/\s+/g, ""))?.[0];
	if (!found) {
		throw new Error(`This is not a certificate. Certificates begin with ${KIND}.`);
	}
	const content = read(found);
	if (content.recipient !== recipient) {
		throw new Error(`The certificate is for another key, ${content.recipient}.`);
	}
	if (!(Date.now() < Date.parse(content.until))) {
		throw new Error("The certificate has expired. Ask for a new one.");
	}
	return found;
}

// read is what a certificate says.
export function read(certificate) {
	const [kind, content, signature] = certificate.split(".");
	try {
		if (kind !== KIND || bytes(signature).length !== 64) {
			throw new Error();
		}
		return JSON.parse(new TextDecoder("utf-8", {fatal: true}).decode(bytes(content)));
	} catch {
		throw new Error("The certificate is incomplete or was changed.");
	}
}

const bytes = (base64url) => Uint8Array.from(atob(base64url.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));

// open opens an armoured message that is sealed to the key.
export async function open(own, message) {
	const {Decrypter, armor} = await age();
	const decrypter = new Decrypter();
	decrypter.addIdentity(own.key);
	return decrypter.decrypt(armor.decode(message), "text");
}

// fingerprint is what agents call the key by in their messages.
export async function fingerprint(recipient) {
	const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(recipient)));
	return `SHA256:${btoa(String.fromCharCode(...digest)).replace(/=+$/, "")}`;
}
