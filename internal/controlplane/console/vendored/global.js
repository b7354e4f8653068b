// Extensions look for htmx in the window.
import htmx from "htmx.org";

window.htmx = htmx;
