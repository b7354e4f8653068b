// The page of a template: loads again once its variables have been read.
const waits = document.querySelector("[data-soon]");

async function look(pause) {
	const answer = await fetch(waits.dataset.soon, {headers: {Accept: "application/json"}}).catch(() => null);
	const soon = !answer?.ok || (await answer.json()).soon;
	soon || document.querySelector("details[open], input:focus") ? setTimeout(look, pause, Math.min(2 * pause, 15000)) : location.reload();
}
if (waits) {
	setTimeout(look, 1000, 1000);
}
