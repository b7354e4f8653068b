// Sets the theme that was chosen before anything is drawn, so that no page
// flashes in the other one. No module: it has to run at once.
"use strict";
{
	let kept = null;
	try {
		kept = localStorage.getItem("theme");
	} catch {
		// Storage may be forbidden; then the system's theme it is.
	}
	if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
}
