// A file's text goes into a field of the form, where a person sees it before it is sent.
for (const chooser of document.querySelectorAll("[data-textfile]")) {
	const field = document.getElementById(chooser.dataset.textfile);
	const input = chooser.querySelector("input[type=file]");
	chooser.hidden = false;
	input.addEventListener("change", async () => {
		const [file] = input.files;
		if (!file) return;
		field.value = await file.text();
		field.focus();
	});
}
