// Runs the cases one after the other in one browser. Each has a context of its own, and its servers end with it.
// A case fails on any console error, policy violation, dialog, failed script or request to another origin.
import { readdirSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { cases } from "./case.mjs";
import { World } from "./world.mjs";

const CASE_MS = 120_000;
const load = createRequire(join(resolve(process.env.CANTRIP_TEST_BROWSER), "package.json"));
const { chromium } = load("playwright-core");
const axeSource = load.resolve("axe-core/axe.min.js");

const folder = fileURLToPath(new URL(".", import.meta.url));
const files = readdirSync(folder).filter((name) => name.endsWith(".mjs") && !["main.mjs", "case.mjs", "world.mjs", "scripts.mjs"].includes(name));
for (const name of files.sort()) await import(pathToFileURL(join(folder, name)).href);

const words = process.argv.slice(2).join(" ");
const chosen = cases.filter(({ name }) => name.includes(words));
if (!chosen.length) {
  console.error(`no case has the words ${words}`);
  process.exit(2);
}

const browser = await chromium.launch({ executablePath: process.env.CANTRIP_TEST_CHROMIUM, args: ["--no-sandbox", "--force-color-profile=srgb"] });
let failed = 0;
for (const { name, options, act } of chosen) {
  const began = Date.now();
  const world = await World.open(browser, axeSource, options);
  let timer;
  try {
    const late = new Promise((_, refuse) => { timer = setTimeout(() => refuse(new Error(`not done within ${CASE_MS / 1000} s`)), CASE_MS); });
    await Promise.race([act(world), late]);
    world.assertQuiet();
    console.log(`ok    ${String(Date.now() - began).padStart(6)} ms  ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL  ${String(Date.now() - began).padStart(6)} ms  ${name}\n${error.stack}\n${world.report()}`);
  } finally {
    clearTimeout(timer);
    await world.close();
  }
}
await browser.close();
console.log(failed ? `${failed} of ${chosen.length} cases failed` : `${chosen.length} cases passed`);
process.exit(failed ? 1 : 0);
