// Short words at the page's edge, when something in the background goes wrong:
// nothing that matters is said only there.
const place = document.getElementById("toasts");
let offline = null;

// toast shows words; returns how to take them away. Errors stay until closed.
export function toast(kind, text, link) {
	if (!place) return () => {};
	for (const other of place.children) if (other.dataset.text === text) return () => other.remove();
	const box = document.createElement("div");
	box.className = "alert";
	box.dataset.kind = kind;
	box.dataset.text = text;
	const words = document.createElement("div");
	words.textContent = text;
	if (link) {
		const a = document.createElement("a");
		a.href = link.href;
		a.textContent = link.text;
		words.append(" ", a);
	}
	const close = document.createElement("button");
	close.type = "button";
	close.className = "btn btn-quiet btn-small";
	close.textContent = "Close";
	close.addEventListener("click", () => box.remove());
	box.append(words, close);
	place.append(box);
	if (kind !== "error") setTimeout(() => box.remove(), 8000);
	return () => box.remove();
}

document.addEventListener("htmx:responseError", (event) => {
	const status = event.detail.xhr.status;
	if (status === 401) {
		toast("error", "Your session has ended.", {href: `/signin?to=${encodeURIComponent(location.pathname + location.search)}`, text: "Sign in again"});
	} else if (status === 429) {
		toast("warning", "Too many requests. This page continues in a moment.");
	} else if (status >= 500) {
		toast("warning", "This page could not be updated. Trying again.");
	} else {
		toast("warning", "This part of the page is gone. Reload the page.");
	}
});
function away() {
	offline ??= toast("error", navigator.onLine ? "The server is not responding. Running work continues. Trying again." : "You are offline. Running work continues. This page catches up when you are back.");
}
function back() {
	offline?.();
	offline = null;
}
document.addEventListener("htmx:sendError", away);
document.addEventListener("htmx:timeout", away);
document.addEventListener("htmx:afterOnLoad", back);
addEventListener("offline", away);
addEventListener("online", back);
