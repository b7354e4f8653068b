// Parts of a page that follow what happens: an element with data-live is sent
// the event "live" when something has changed, and fetches itself by
// hx-get="…" hx-trigger="live" hx-swap="morph:outerHTML". data-live="ID" follows one
// provision. Hints come by one event stream of the page; where that is blocked
// the parts are refreshed every 10 s instead. A page that nobody looks at holds
// no connection: browsers allow few to a server.
const every = 10_000;
const retry = 3_000;
let source = null;
let hinted = new Set();
let soon = 0;
let last = 0;
let lost = false;

const parts = () => [...document.querySelectorAll("[data-live]")];

function fire(wanted) {
	for (const part of parts()) if (wanted(part.dataset.live)) htmx.trigger(part, "live");
}

// Several hints within a moment are one: what follows a whole organisation is
// fetched every two seconds at most.
function hint(id) {
	hinted.add(id);
	soon ||= setTimeout(() => {
		const ids = hinted;
		hinted = new Set();
		soon = 0;
		last = Date.now();
		fire((follows) => !follows || ids.has(follows) || ids.has(""));
	}, Math.max(150, (parts().some((part) => !part.dataset.live) ? 2000 : 400) + last - Date.now()));
}

function connect() {
	if (source || document.hidden || !parts().length) return;
	const ids = [...new Set(parts().map((part) => part.dataset.live))];
	const query = ids.includes("") ? "" : `?${ids.map((id) => `provision=${encodeURIComponent(id)}`).join("&")}`;
	source = new EventSource(`/live${query}`);
	// What happened since the page was made, or while the stream was away, nobody
	// has told.
	source.addEventListener("open", () => {
		lost = false;
		hint("");
	});
	source.addEventListener("changed", (event) => {
		try {
			hint(String(JSON.parse(event.data).provision ?? ""));
		} catch {
			hint("");
		}
	});
	source.addEventListener("error", () => {
		if (!lost) hint(""); // and so the reader learns it
		lost = true;
		if (source?.readyState !== EventSource.CLOSED) return; // it tries again by itself
		disconnect();
		setTimeout(connect, retry * (1 + Math.random()) * 5);
	});
}

function disconnect() {
	source?.close();
	source = null;
}

// Lively reports whether hints arrive.
const lively = () => source?.readyState === EventSource.OPEN;

document.addEventListener("visibilitychange", () => {
	if (document.hidden) return disconnect();
	fire(() => true);
	connect();
});
addEventListener("pagehide", disconnect);
addEventListener("pageshow", (event) => event.persisted && connect());
addEventListener("online", () => {
	fire(() => true);
	connect();
});
setInterval(() => document.hidden || lively() || fire(() => true), every);
connect();
