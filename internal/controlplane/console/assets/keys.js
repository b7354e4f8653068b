// Shortcuts: "g" and a letter goes to a page, "/" to the search, "?" shows them
// all. They can be switched off there: single keys get in the way of speech input.
const help = document.getElementById("keys");
const off = help?.querySelector("[data-keys-off]");
let waiting = 0;

function disabled() {
	try {
		return localStorage.getItem("keys") === "off";
	} catch {
		return false;
	}
}

document.addEventListener("keydown", (event) => {
	if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
	if (event.target.closest?.("input, textarea, select, [contenteditable], dialog[open]") || disabled()) return;
	if (event.timeStamp < waiting) {
		waiting = 0;
		const link = document.querySelector(`[data-go="${CSS.escape(event.key)}"]`);
		if (link) {
			event.preventDefault();
			location.assign(link.href);
		}
		return;
	}
	if (event.key === "g") {
		waiting = event.timeStamp + 1200;
	} else if (event.key === "/") {
		const search = document.querySelector("main input[type=search]");
		if (!search) return;
		event.preventDefault();
		search.focus();
		search.select();
	} else if (event.key === "?" && help && !document.querySelector("dialog[open]")) {
		event.preventDefault();
		help.showModal();
	}
});
document.addEventListener("click", (event) => {
	if (help && event.target.closest?.("[data-show-keys]")) help.showModal();
});
// Escape leaves a menu that is open.
document.addEventListener("keydown", (event) => {
	if (event.key !== "Escape") return;
	for (const menu of document.querySelectorAll("details.org[open], details.top[open]")) {
		menu.open = false;
		menu.querySelector("summary").focus();
	}
});
for (const button of document.querySelectorAll("[data-show-keys]")) button.hidden = false;
if (off) {
	off.checked = !disabled();
	off.addEventListener("change", () => {
		try {
			localStorage.setItem("keys", off.checked ? "on" : "off");
		} catch {
			// Then it cannot be kept.
		}
	});
}
