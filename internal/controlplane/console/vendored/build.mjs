// Bundles each entry into one file that pages load as it is.
import {build} from "esbuild";
import {writeLicenses} from "./licenses.mjs";

const shared = {bundle: true, minify: true, legalComments: "inline", target: "es2022", outdir: "../assets/vendor", metafile: true};
const htmx = await build({...shared, entryPoints: ["htmx.js"], format: "iife"});
const age = await build({...shared, entryPoints: ["age.js"], format: "esm"});
writeLicenses("licenses.json", htmx.metafile, age.metafile);
