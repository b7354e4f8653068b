// Asks before what cannot be taken back: a submit button with data-confirm="text"
// is asked about in a dialog; with data-confirm-type="NAME" that must be typed
// first, and is sent as the form's field "confirm". data-confirm-title and
// data-confirm-action say more than the button's own words where that helps.
const dialog = document.getElementById("confirm");
const typed = dialog?.querySelector("input");
const go = dialog?.querySelector("[value=yes]");
let pending = null;

function ask(button, form) {
	pending = {button, form};
	const words = button.textContent.trim();
	dialog.querySelector("h2").textContent = button.dataset.confirmTitle ?? `${words}?`;
	dialog.querySelector("p").textContent = button.dataset.confirm;
	go.textContent = button.dataset.confirmAction ?? words;
	go.classList.toggle("btn-danger", button.classList.contains("btn-danger"));
	const name = button.dataset.confirmType ?? "";
	const field = dialog.querySelector(".field");
	field.hidden = !name;
	field.querySelector("code").textContent = name;
	typed.value = "";
	typed.disabled = !name;
	go.disabled = Boolean(name);
	dialog.showModal();
	(name ? typed : dialog.querySelector("[value=no]")).focus();
}

if (dialog) {
	// In the capture phase, before htmx sees it.
	document.addEventListener("submit", (event) => {
		const button = event.submitter;
		if (!button?.dataset.confirm) return;
		if (pending?.sure === button) {
			pending = null;
			return;
		}
		event.preventDefault();
		event.stopPropagation();
		ask(button, event.target);
	}, true);
	typed.addEventListener("input", () => {
		go.disabled = typed.value.trim() !== pending.button.dataset.confirmType;
	});
	// No button that submits: Enter in the field is for the one that says yes, and
	// does nothing while that cannot be pressed.
	dialog.querySelector("[value=no]").addEventListener("click", () => dialog.close("no"));
	dialog.addEventListener("close", () => {
		if (dialog.open) return; // who is quick has asked again by now: this is of before
		const {button, form} = pending ?? {};
		if (!button || dialog.returnValue !== "yes") {
			pending = null;
			button?.focus();
			return;
		}
		if (button.dataset.confirmType) {
			const field = form.elements.namedItem("confirm") ?? document.createElement("input");
			if (!field.isConnected) {
				Object.assign(field, {type: "hidden", name: "confirm"});
				form.append(field);
			}
			field.value = button.dataset.confirmType;
		}
		pending = {sure: button};
		form.requestSubmit(button);
	});
	// Escape closes without a value of this time's own.
	dialog.addEventListener("cancel", () => (dialog.returnValue = "no"));
	dialog.addEventListener("submit", (event) => {
		if (go.disabled && event.submitter === go) event.preventDefault();
	});
}

// A form is sent once, however often its button is pressed.
document.addEventListener("submit", (event) => {
	const form = event.target;
	if (event.defaultPrevented || form.method !== "post" || form.target) return;
	if (form.getAttribute("aria-busy") === "true") event.preventDefault();
	form.setAttribute("aria-busy", "true");
	setTimeout(() => form.removeAttribute("aria-busy"), 8000); // should the answer be a download, or nothing
});
addEventListener("pageshow", () => {
	for (const form of document.querySelectorAll("form[aria-busy]")) form.removeAttribute("aria-busy");
});
