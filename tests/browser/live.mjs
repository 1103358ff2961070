// A page that follows a run: in the end it shows what a page that is loaded shows, whatever happened meanwhile.
import { connect, createServer } from "node:net";
import { assert, test } from "./case.mjs";
import { ECHO, done, echo, words } from "./scripts.mjs";
import { threadOf, until } from "./world.mjs";

const CUT = [/net::ERR_/, /Failed to load resource/];
const turnsIn = (page) => page.evaluate(() => document.querySelectorAll("#thread > article").length);
const isOver = (page) => until(page, () => document.getElementById("head").textContent.includes("terminated") && !document.querySelector("article[data-open]"));
const hide = (page, hidden) => page.evaluate((is) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => is });
  document.dispatchEvent(new Event("visibilitychange"));
}, hidden);

const slowly = (turns, pace_ms = 15) => [...Array.from({ length: turns }, (_, n) => echo(n + 1, `t${n + 1}`, { thinking: "What comes next?", content: `Turn ${n + 1} says **${words(12)}**.`, pace_ms })), done()];

const assertAsLoaded = async (world, server, run, page) => {
  await isOver(page);
  const loaded = await world.page(`${server.origin}/runs/${run}`);
  const [followed, fresh] = [await threadOf(page), await threadOf(loaded)];
  assert.deepEqual(followed, fresh);
};

test("a page that followed a run to its end equals a page that is loaded", async (world) => {
  world.spell("slow", slowly(3, 40), ECHO);
  const server = await world.serve();
  const run = await server.cast("slow", "tell me slowly");
  const page = await world.page(`${server.origin}/runs/${run}`);
  await until(page, () => document.querySelector(".live")?.textContent.includes("word0"));
  assert.equal(await page.evaluate(() => document.querySelector(".live").childNodes.length), 1, "an unfinished text is one node");
  await assertAsLoaded(world, server, run, page);
});

/** Stands between the browser and the server, and cuts each feed after a few of its events: after one, two and so on to five. */
const cutter = async (world, server) => {
  const { hostname, port } = new URL(server.origin);
  const cuts = { count: 0 };
  const between = createServer((browser) => {
    const behind = connect(Number(port), hostname);
    const end = () => [browser, behind].forEach((socket) => socket.destroy());
    let left = Infinity;
    for (const socket of [browser, behind]) socket.on("error", end).on("close", end);
    browser.on("data", (asked) => {
      if (asked.includes("/parts?")) left = (cuts.count % 5) + 1;
      behind.write(asked);
    });
    behind.on("data", (told) => {
      // A browser comes back after the pause that the server names; here it does not wait as long.
      const text = told.toString("latin1").replace("retry: 2000", "retry: 0010");
      left -= text.split("event: part").length - 1;
      browser.write(text, "latin1", () => {
        if (left > 0) return;
        cuts.count += 1;
        end();
      });
    });
  });
  await new Promise((done) => between.listen(0, hostname, done));
  const close = world.close.bind(world);
  world.close = () => Promise.all([close(), new Promise((done) => between.close(done))]);
  return { origin: `http://${hostname}:${between.address().port}`, cuts };
};

test("a feed that is cut again and again ends in the same page", async (world) => {
  world.spell("slow", slowly(6, 20), ECHO);
  const server = await world.serve();
  const run = await server.cast("slow");
  const { origin, cuts } = await cutter(world, server);
  const page = await world.page(`${origin}/runs/${run}`, { expects: CUT });
  await isOver(page);
  assert.ok(cuts.count >= 6, `${cuts.count} cuts`);
  await assertAsLoaded(world, server, run, page);
});

test("a server that is started again in the middle leaves no trace in the page", async (world) => {
  world.spell("slow", slowly(6, 30), ECHO);
  const server = await world.serve();
  const run = await server.cast("slow");
  const page = await world.page(`${server.origin}/runs/${run}`, { expects: CUT });
  await until(page, () => document.querySelectorAll("#thread > article").length >= 2);
  await server.stop();
  await until(page, () => document.getElementById("connection").textContent.includes("not connected since"));
  const again = await world.serve("--bind", new URL(server.origin).host);
  await assertAsLoaded(world, again, run, page);
});

test("a hidden page has no feed and goes on where it was when it is shown", async (world) => {
  world.spell("slow", slowly(5), ECHO);
  const server = await world.serve();
  const run = await server.cast("slow");
  const page = await world.page(`${server.origin}/runs/${run}`);
  await until(page, () => document.querySelectorAll("#thread > article").length >= 2);
  const closed = page.waitForEvent("requestfailed", (request) => request.url().includes("/parts"));
  await hide(page, true);
  await closed;
  const before = await turnsIn(page);
  await server.until(run, "terminated");
  assert.equal(await turnsIn(page), before, "a hidden page stands still");
  await hide(page, false);
  await assertAsLoaded(world, server, run, page);
});

test("eight tabs of eight live runs all load, and those that were hidden catch up", async (world) => {
  world.spell("slow", slowly(4, 40), ECHO);
  const server = await world.serve();
  const tabs = [];
  for (let n = 0; n < 8; n += 1) {
    for (const { page } of tabs.slice(-1)) await hide(page, true);
    const run = await server.cast("slow", `run ${n}`);
    tabs.push({ run, page: await world.page(`${server.origin}/runs/${run}`) });
  }
  await until(tabs.at(-1).page, () => document.querySelector("#thread article"));
  for (const { run, page } of tabs) {
    await hide(page, false);
    await isOver(page);
    assert.equal(await turnsIn(page), 5, run);
    await hide(page, true);
  }
});

test("a selection in a text that streams stays, and so do an opened call and what was typed", async (world) => {
  world.spell("slow", [echo(1), { content: words(60), pace_ms: 30, tool_calls: [{ id: "c2", gate: "echo", args: { text: "x" } }] }, done()], ECHO);
  const server = await world.serve();
  const run = await server.cast("slow");
  const page = await world.page(`${server.origin}/runs/${run}`);
  await until(page, () => document.querySelector("article:not([data-open]) details.call"));
  await page.locator("article:not([data-open]) details.call > summary").first().click();
  await until(page, () => document.querySelector(".live")?.textContent.includes("word5 "));
  await page.evaluate(() => {
    const text = document.querySelector(".live").firstChild, range = document.createRange();
    range.setStart(text, 0);
    range.setEnd(text, 11);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    window.liveLength = text.length;
  });
  await until(page, () => document.querySelector(".live")?.firstChild.length > window.liveLength + 20);
  assert.equal(await page.evaluate(() => getSelection().toString()), "word0 word1");
  await page.evaluate(() => getSelection().removeAllRanges());
  await isOver(page);
  assert.equal(await page.locator("#thread > article").first().locator("details.call").first().getAttribute("open"), "", "the call is still open");
});

test("following ends with a scroll upwards, a reader is never moved, and f follows again", async (world) => {
  const tall = (n) => echo(n, `t${n}`, { content: Array.from({ length: 14 }, (_, line) => `Line ${line} of turn ${n}.`).join("\n\n"), pace_ms: 3 });
  world.spell("slow", [...Array.from({ length: 12 }, (_, n) => tall(n + 1)), done()], ECHO);
  const server = await world.serve();
  const run = await server.cast("slow");
  const page = await world.page(`${server.origin}/runs/${run}`);
  const follow = page.locator("#follow span");
  await until(page, () => document.querySelectorAll("#thread > article").length >= 5 && scrollY > 300);
  assert.equal(await follow.textContent(), "Following");
  await page.mouse.move(600, 500);
  await page.mouse.wheel(0, -900);
  await until(page, () => document.querySelector("#follow span").textContent.startsWith("Follow") && document.querySelector("#follow span").textContent !== "Following");
  const place = () => page.evaluate(() => {
    const turn = [...document.querySelectorAll("#thread > article")].find((one) => one.getBoundingClientRect().bottom > 60);
    return [turn.id, Math.round(turn.getBoundingClientRect().top), document.querySelectorAll("#thread > article").length];
  });
  const [turn, top, count] = await place();
  await until(page, (before) => document.querySelectorAll("#thread > article").length >= before + 3, count);
  const [later, laterTop] = await place();
  assert.equal(later, turn);
  assert.ok(Math.abs(laterTop - top) <= 2, `moved from ${top} to ${laterTop}`);
  assert.match(await follow.textContent(), /Follow, \d+ new/);
  await page.keyboard.press("f");
  await until(page, () => document.querySelector("#follow span").textContent === "Following" || document.getElementById("follow").hidden);
  await until(page, () => innerHeight + scrollY >= document.documentElement.scrollHeight - 120);
  await isOver(page);
});

test("the list of runs moves by itself and keeps the focus", async (world) => {
  world.spell("hello", [done()], ECHO);
  world.spell("careful", [echo(1), done()], `${ECHO}require_approval = ["echo"]\n`);
  const server = await world.serve();
  const first = await server.cast("hello", "the first run");
  await server.until(first, "terminated");
  const page = await world.page(`${server.origin}/runs`);
  await page.locator(`#${first} a`).first().focus();
  const second = await server.cast("careful", "the second run");
  await until(page, (run) => document.getElementById(run)?.textContent.includes("waiting"), second);
  await server.ask("POST", `/v1/runs/${second}/approve`, { decision: "approve" });
  await until(page, (run) => document.getElementById(run)?.textContent.includes("terminated"), second);
  assert.equal(await page.evaluate(() => document.activeElement.closest("tr")?.id), first);
});

test("a live region says one line for a turn, and no words of a text", async (world) => {
  world.spell("slow", slowly(2, 20), ECHO);
  const server = await world.serve();
  const run = await server.cast("slow");
  const page = await world.page(`${server.origin}/runs/${run}`);
  await until(page, () => /^Turn \d+: \d+ calls?/.test(document.getElementById("announce").textContent));
  assert.doesNotMatch(await page.locator("#announce").textContent(), /word/);
});

test("a parent lists its children while they work and afterwards, each with a link to its thread", async (world) => {
  world.write("family.toml", 'name = "family"\ncrystal = "scripted/family.script.yaml"\nmedium = "javascript"\n[call]\nrequire_done_tool = true\n[gates.call_agent_batch]\n[wards]\nmax_turns = 5\n');
  world.write("family.script.yaml", JSON.stringify({ responses: [{ code: "var all = call_agent_batch([{intent: 'count the first'}, {intent: 'count the second'}]); done(all.length)" }, { code: "done(1)", delay_ms: 300 }, { code: "done(2)", delay_ms: 300 }] }));
  const server = await world.serve();
  const run = await server.cast("family", "count with children");
  const page = await world.page(`${server.origin}/runs/${run}`);
  await until(page, () => document.querySelectorAll("#thread .child").length >= 2);
  await isOver(page);
  const child = page.locator("#thread .child a", { hasText: "count the first" }).first();
  await Promise.all([page.waitForURL(/entity=/), child.click()]);
  assert.match(await page.locator("#head").textContent(), /thread of another entity/);
  assert.equal(await turnsIn(page), 1);
});
