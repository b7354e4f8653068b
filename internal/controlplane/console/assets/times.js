// Keeps what the server wrote as "5 minutes ago" true, and tells the exact time
// of the reader's own zone on hover. The words are those of Go's since().
const exact = new Intl.DateTimeFormat(undefined, {dateStyle: "medium", timeStyle: "long"});
const units = [
	["second", 60],
	["minute", 60],
	["hour", 24],
	["day", 30],
	["month", 12],
	["year", Infinity],
];

// words says how far an instant is from now.
export function words(then, now = Date.now()) {
	let n = Math.abs(now - then) / 1000;
	if (n < 5) return "just now";
	let i = 0;
	for (; n >= units[i][1]; i++) n /= units[i][1];
	n = Math.floor(n);
	const text = `${n} ${units[i][0]}${n === 1 ? "" : "s"}`;
	return then > now ? `in ${text}` : `${text} ago`;
}

export function refresh(root = document) {
	for (const element of root.querySelectorAll("time[data-relative]")) {
		const then = Date.parse(element.dateTime);
		if (Number.isNaN(then)) continue;
		const text = words(then);
		if (element.textContent !== text) element.textContent = text;
		const title = `${exact.format(then)}, ${new Date(then).toISOString().slice(0, 19).replace("T", " ")} UTC`;
		if (element.title !== title) element.title = title;
	}
}

refresh();
setInterval(() => document.hidden || refresh(), 15_000);
document.addEventListener("visibilitychange", () => document.hidden || refresh());
document.addEventListener("htmx:afterSettle", () => refresh());
