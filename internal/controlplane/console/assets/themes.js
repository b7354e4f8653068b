// The switch between the system's theme, light and dark. theme.js has applied
// what is kept.
const root = document.documentElement;

function show() {
	const now = root.dataset.theme ?? "auto";
	for (const button of document.querySelectorAll("[data-set-theme]")) {
		button.setAttribute("aria-pressed", String(button.dataset.setTheme === now));
	}
}

document.addEventListener("click", (event) => {
	const button = event.target.closest?.("[data-set-theme]");
	if (!button) return;
	const theme = button.dataset.setTheme;
	if (theme === "auto") delete root.dataset.theme;
	else root.dataset.theme = theme;
	try {
		localStorage.setItem("theme", theme);
	} catch {
		// Then it lasts as long as the page.
	}
	show();
});
// Other tabs follow.
addEventListener("storage", (event) => {
	if (event.key !== "theme") return;
	if (event.newValue === "light" || event.newValue === "dark") root.dataset.theme = event.newValue;
	else delete root.dataset.theme;
	show();
});
for (const group of document.querySelectorAll(".themes")) group.hidden = false;
show();
