// Filters a diff by address, and unfolds it.
export function filter(input) {
	const wanted = input.value.trim().toLowerCase(), changes = input.closest(".changes");
	let any = false;
	for (const group of changes.querySelectorAll("[data-group]")) {
		let some = false;
		for (const resource of group.querySelectorAll("[data-address]")) {
			resource.hidden = !resource.dataset.address.toLowerCase().includes(wanted);
			some ||= !resource.hidden;
		}
		group.hidden = !some;
		any ||= some;
	}
	changes.querySelector("[data-none]").hidden = any;
}

document.addEventListener("input", ({target}) => target.matches?.("[data-filter]") && filter(target));
document.addEventListener("click", (event) => {
	const unfold = event.target.closest?.("[data-unfold]");
	if (unfold) {
		const on = unfold.getAttribute("aria-pressed") !== "true";
		unfold.setAttribute("aria-pressed", String(on));
		for (const d of unfold.closest(".changes").querySelectorAll("details")) {
			d.open = on;
		}
	}
});
