// When is a page painted, and when are the words of a crystal on the glass? Measured in one browser, on loopback.
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { Server } from "../tests/browser/world.mjs";

const TURNS = 1000, ROUNDS = 15, RATIO_MAX = 1.3, STREAMS = 5;
const load = createRequire(join(resolve(process.env.CANTRIP_TEST_BROWSER), "package.json"));
const { chromium } = load("playwright-core");
const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];

const folder = mkdtempSync(join(tmpdir(), "cantrip-paint-"));
const spell = (name, responses) => {
  writeFileSync(join(folder, `${name}.toml`), `name = "${name}"\ncrystal = "scripted/${name}.script.yaml"\n[gates.echo]\n[wards]\nmax_turns = 2000\n`);
  writeFileSync(join(folder, `${name}.script.yaml`), JSON.stringify({ responses }));
};
const end = { tool_calls: [{ id: "end", gate: "done", args: { answer: "over" } }] };
const turn = (n) => ({ thinking: "What comes next?", content: `Turn ${n} says a few words about **what** it does.`, tool_calls: [1, 2, 3, 4].map((call) => ({ id: `c${n}-${call}`, gate: "echo", args: { text: `text ${call} of turn ${n}` } })) });
spell("long", [...Array.from({ length: TURNS }, (_, n) => turn(n + 1)), end]);
spell("words", [{ content: "said now", delay_ms: 1500, tool_calls: [{ id: "c", gate: "echo", args: { text: "x" } }] }, end]);

const server = await Server.start(folder);
const browser = await chromium.launch({ executablePath: process.env.CANTRIP_TEST_CHROMIUM, args: ["--no-sandbox"] });
let status = 0;
try {
  const run = await server.cast("long");
  await server.until(run, "terminated");
  const context = await browser.newContext({ viewport: { width: 1360, height: 900 } });
  const page = await context.newPage();
  const paint = async (path) => {
    await page.goto(server.origin + path, { waitUntil: "load" });
    return page.evaluate(() => new Promise((done) => {
      const told = () => performance.getEntriesByName("first-contentful-paint")[0];
      if (told()) done(told().startTime);
      else new PerformanceObserver(() => told() && done(told().startTime)).observe({ type: "paint", buffered: true });
    }));
  };
  const paths = { empty: "/keys", full: `/runs/${run}` }, times = { empty: [], full: [] };
  for (const path of Object.values(paths)) await paint(path);
  for (let round = 0; round < ROUNDS; round += 1) for (const [name, path] of Object.entries(paths)) times[name].push(await paint(path));
  const [empty, full] = [median(times.empty), median(times.full)], ratio = full / empty;
  console.log("| first contentful paint | median | |\n| --- | --: | --- |");
  console.log(`| a page with nothing on it | ${empty.toFixed(1)} ms | |`);
  console.log(`| a window of a thread of ${TURNS} turns | ${full.toFixed(1)} ms | ${ratio.toFixed(2)} times, at most ${RATIO_MAX} |`);
  if (ratio > RATIO_MAX) status = 1;

  // The words come together after their delay, so the time of the record beside the time in the page is what showing took.
  const shown = [];
  for (let round = 0; round < STREAMS; round += 1) {
    const live = await server.cast("words");
    await page.goto(`${server.origin}/runs/${live}`, { waitUntil: "load" });
    const at = await page.evaluate(() => new Promise((done) => {
      const look = () => document.getElementById("thread").textContent.includes("said now") && done(Date.now());
      new MutationObserver(look).observe(document.getElementById("thread"), { subtree: true, childList: true, characterData: true });
      look();
    }));
    const begun = Date.parse((await server.run(live)).created_at);
    shown.push(at - begun - 1500);
  }
  console.log(`| from a word of the crystal to the glass | ${median(shown)} ms | the beginning of the cast is part of it |`);
} finally {
  await browser.close();
  await server.stop();
  rmSync(folder, { recursive: true, force: true });
}
process.exit(status);
