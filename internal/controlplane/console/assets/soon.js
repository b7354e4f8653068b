// Loads the page again once a template's version has been looked at. The server is
// asked for that, with longer and longer pauses; what cannot be reached is waited
// for.

// reloadOnceRead asks at url. It lets the page be while busy() says that something
// would be lost by it.
export function reloadOnceRead(url, busy) {
	const look = async (pause) => {
		const answer = await fetch(url, {headers: {Accept: "application/json"}}).catch(() => null);
		const soon = !answer?.ok || (await answer.json()).soon;
		soon || busy() ? setTimeout(look, pause, Math.min(2 * pause, 15000)) : location.reload();
	};
	setTimeout(look, 1000, 1000);
}
