// Bundles each entry into one file that pages load as it is.
import {build} from "esbuild";

const shared = {bundle: true, minify: true, legalComments: "inline", target: "es2022", outdir: "../assets/vendor"};
await build({...shared, entryPoints: ["htmx.js"], format: "iife"});
await build({...shared, entryPoints: ["age.js"], format: "esm"});
