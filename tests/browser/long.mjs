// Long threads and long outputs: a page is bounded, windows come and go, and the spine shows the whole of it.
import { assert, test } from "./case.mjs";
import { done, echo } from "./scripts.mjs";
import { until } from "./world.mjs";

const TURNS = 210;
const GATES = '[gates.echo]\n[gates.read]\nroot = "."\n[wards]\nmax_turns = 1000\n';
const missing = (n) => ({ content: `Turn ${n} looks for a file.`, tool_calls: [{ id: `c${n}`, gate: "read", args: { path: "nowhere.txt" } }] });
const sequences = (page) => page.evaluate(() => [...document.querySelectorAll("#thread > article")].map((turn) => Number(turn.dataset.sequence)));

const longRun = async (world) => {
  const script = Array.from({ length: TURNS }, (_, n) => ([40, 160].includes(n + 1) ? missing(n + 1) : echo(n + 1, `token${n + 1}token`)));
  world.spell("long", [...script, done()], GATES);
  const server = await world.serve();
  const run = await server.cast("long");
  await server.until(run, "terminated");
  return { server, run };
};

test("a long thread opens at its end, goes both ways, and never has more than 160 turns in the page", async (world) => {
  const { server, run } = await longRun(world);
  const page = await world.page(`${server.origin}/runs/${run}`);
  const first = await sequences(page);
  assert.ok(first.length <= 40 && first.at(-1) === TURNS + 1, `${first.length} turns up to ${first.at(-1)}`);
  await page.mouse.move(600, 500);
  for (let most = 0; (await sequences(page))[0] > 1;) {
    const [before] = await sequences(page);
    await page.evaluate(() => scrollTo(0, 400));
    const place = () => page.evaluate(() => {
      const turn = [...document.querySelectorAll("#thread > article")].find((one) => one.getBoundingClientRect().bottom > 60);
      return { id: turn.id, top: turn.getBoundingClientRect().top };
    });
    const { id, top } = await place();
    await page.mouse.wheel(0, -1);
    await until(page, (was) => Number(document.querySelector("#thread > article").dataset.sequence) < was, before);
    const moved = await page.evaluate((turn) => document.getElementById(turn).getBoundingClientRect().top, id);
    assert.ok(Math.abs(moved - top) < 40, `the reading position moved from ${top} to ${moved}`);
    most = Math.max(most, (await sequences(page)).length);
    assert.ok(most <= 160, `${most} turns`);
  }
  assert.ok(await page.evaluate(() => window.find("token1token")), "the browser finds the first turn that is loaded");
  while (!(await sequences(page)).includes(TURNS + 1)) {
    const last = (await sequences(page)).at(-1);
    await page.evaluate(() => scrollTo(0, document.documentElement.scrollHeight));
    await page.mouse.wheel(0, 50);
    await until(page, (was) => Number([...document.querySelectorAll("#thread > article")].at(-1).dataset.sequence) > was, last);
    assert.ok((await sequences(page)).length <= 160);
  }
  const shown = await sequences(page);
  assert.deepEqual(shown, [...shown].sort((a, b) => a - b), "the turns are in order");
  assert.equal(new Set(shown).size, shown.length, "no turn is there twice");
});

test("a thread opens at a turn in its middle, by number, by link and by the keys", async (world) => {
  const { server, run } = await longRun(world);
  const page = await world.page(`${server.origin}/runs/${run}?at=130`);
  assert.ok((await sequences(page)).includes(130));
  await page.keyboard.press("g");
  for (const key of ["2", "0", "5", "Enter"]) await page.keyboard.press(key);
  await until(page, () => location.search.includes("at=205") && document.querySelector("#thread > article[data-sequence='205']"));
  const turns = await server.turns(run);
  const turn = turns.find(({ sequence }) => sequence === 77).id;
  await page.goto(`${server.origin}/turns/${turn}`);
  await until(page, (id) => location.hash === `#${id}` && document.getElementById(id)?.matches(":target"), turn);
  const top = await page.evaluate((id) => document.getElementById(id).getBoundingClientRect().top, turn);
  assert.ok(top >= 0 && top < 400, `the turn stands at ${top}`);
});

test("the spine names the failures of the whole thread, and [ and ] walk them", async (world) => {
  const { server, run } = await longRun(world);
  const page = await world.page(`${server.origin}/runs/${run}`);
  await until(page, () => document.querySelectorAll("#spine a:not([tabindex])").length === 2);
  const failure = () => page.evaluate(() => document.activeElement.closest("article")?.dataset.sequence ?? document.querySelector("article:target")?.dataset.sequence);
  await page.keyboard.press("[");
  await until(page, () => document.querySelector("#thread > article[data-sequence='160']"));
  await until(page, () => document.querySelectorAll("#spine a:not([tabindex])").length === 2);
  await page.keyboard.press("[");
  await until(page, () => document.querySelector("#thread > article[data-sequence='40']"));
  await until(page, () => document.querySelectorAll("#spine a:not([tabindex])").length === 2);
  assert.equal(await failure(), "40");
  await page.keyboard.press("]");
  await until(page, () => document.querySelector("#thread > article[data-sequence='160']"));
  await page.locator("#spine a:not([tabindex])").first().click();
  await until(page, () => document.querySelector("#thread > article[data-sequence='40']"));
});

test("a long output is cut on the page, shown whole on demand, and downloads byte for byte", async (world) => {
  const text = Array.from({ length: 2500 }, (_, n) => `line ${n} of a long file with some words`).join("\n");
  world.write("long.txt", text);
  world.write("line.txt", "x".repeat(120_000));
  const read = (n, path) => ({ tool_calls: [{ id: `c${n}`, gate: "read", args: { path } }] });
  world.spell("reader", [read(1, "long.txt"), read(2, "line.txt"), done()], GATES);
  const server = await world.serve();
  const run = await server.cast("reader");
  await server.until(run, "terminated");
  const response = await world.context.request.get(`${server.origin}/runs/${run}`);
  assert.ok((await response.body()).length < 150 * 1024, `${(await response.body()).length} bytes`);
  const page = await world.page(`${server.origin}/runs/${run}`);
  await page.locator("details.call > summary").first().click();
  const all = page.locator("a.all").first();
  const address = await all.getAttribute("href");
  if ((await all.getAttribute("data-part")) === "output") {
    await all.click();
    await until(page, () => document.querySelector(".out.whole")?.textContent.includes("line 2499 of"));
  }
  const [turn] = await server.turns(run);
  const whole = await world.context.request.get(`${server.origin}${address}`);
  assert.equal(whole.status(), 200);
  const recorded = turn.gate_calls[0].result;
  assert.equal((await whole.body()).toString(), typeof recorded === "string" ? recorded : JSON.stringify(recorded));
});
