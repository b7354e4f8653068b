// The log's keys. They work while the log has the focus; "/" also while nothing
// has. The page's own switch for shortcuts is theirs, too.

export function keys(section, does) {
	document.addEventListener("keydown", (event) => {
		const at = document.activeElement, inside = section.contains(at);
		if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) {
			return;
		}
		if (at?.matches("input, textarea, select, [contenteditable]") || !inside && (event.key !== "/" || at !== document.body && at?.id !== "main")) {
			return;
		}
		const act = does[event.key];
		if (act && !off() && !document.querySelector("dialog[open]")) {
			event.preventDefault();
			event.stopImmediatePropagation();
			act();
		}
	}, true);
}

function off() {
	try {
		return localStorage.getItem("keys") === "off";
	} catch {
		return false;
	}
}
