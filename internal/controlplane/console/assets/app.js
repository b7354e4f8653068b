// What every page does. Each part stands by itself: a page without what it
// looks for is left alone, and without script pages work all the same.
import "./themes.js";
import "./times.js";
import "./copy.js";
import "./confirm.js";
import "./toasts.js";
import "./keys.js";
import "./live.js";
