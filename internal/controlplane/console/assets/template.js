// The page of a template: loads again once its variables have been read.
import {reloadOnceRead} from "./soon.js";

const waits = document.querySelector("[data-soon]");
if (waits) {
	reloadOnceRead(waits.dataset.soon, () => document.querySelector("details[open], input:focus"));
}
