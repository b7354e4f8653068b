// Says which packages a bundle consists of, with the texts of their licences:
// what "make licenses" judges and a release ships.
import {readFileSync, readdirSync, writeFileSync} from "node:fs";
import {join} from "node:path";

const legal = /^(licen[cs]e|copying|notice)/i;

// packageOf is the directory of the package that a file belongs to.
function packageOf(file) {
  const parts = file.split("/");
  const at = parts.lastIndexOf("node_modules");
  if (at < 0) return undefined;
  return parts.slice(0, at + (parts[at + 1].startsWith("@") ? 3 : 2)).join("/");
}

export function writeLicenses(path, ...metafiles) {
  const packages = new Map();
  for (const file of metafiles.flatMap((m) => Object.keys(m.inputs))) {
    const directory = packageOf(file);
    if (!directory || packages.has(directory)) continue;
    const {name, version} = JSON.parse(readFileSync(join(directory, "package.json"), "utf8"));
    const texts = {};
    for (const entry of readdirSync(directory).filter((e) => legal.test(e)).sort()) {
      texts[entry] = readFileSync(join(directory, entry), "utf8");
    }
    packages.set(directory, {name, version, texts});
  }
  const key = (p) => `${p.name} ${p.version}`;
  const sorted = [...packages.values()].sort((a, b) => (key(a) < key(b) ? -1 : 1));
  writeFileSync(path, JSON.stringify(sorted, null, 2) + "\n");
}
