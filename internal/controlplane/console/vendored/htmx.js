import "./global.js";
import "idiomorph/htmx";
