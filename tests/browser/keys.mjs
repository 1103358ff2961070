// Every job by keyboard alone, and keys that stay out of the way.
import { assert, test } from "./case.mjs";
import { ECHO, done, echo } from "./scripts.mjs";
import { until } from "./world.mjs";

const steps = async (world) => {
  world.spell("steps", [echo(1), echo(2), echo(3), done()], ECHO);
  const server = await world.serve();
  const run = await server.cast("steps", "walk");
  await server.until(run, "terminated");
  return { server, run };
};

test("a run is found, read, opened and forked by keyboard alone", async (world) => {
  const { server, run } = await steps(world);
  const page = await world.page(`${server.origin}/runs`);
  await page.keyboard.press("j");
  assert.equal(await page.evaluate(() => document.activeElement.closest("tr")?.id), run);
  await Promise.all([page.waitForURL(new RegExp(run)), page.keyboard.press("Enter")]);
  await page.keyboard.press("j");
  await page.keyboard.press("j");
  assert.equal(await page.evaluate(() => document.activeElement.dataset.sequence), "2");
  await page.keyboard.press("k");
  assert.equal(await page.evaluate(() => document.activeElement.dataset.sequence), "1");
  const isOpen = () => page.evaluate(() => document.querySelector("#thread > article details").open);
  const before = await isOpen();
  await page.keyboard.press("o");
  assert.equal(await isOpen(), !before);
  await Promise.all([page.waitForURL(/\/fork$/), page.keyboard.press("e")]);
  await Promise.all([page.waitForURL(/\/runs/), page.keyboard.press("u")]);
  await Promise.all([page.waitForURL(/\/keys$/), page.keyboard.press("?")]);
});

test("the command and the link of a turn are copied by a key", async (world) => {
  const { server, run } = await steps(world);
  await world.context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: server.origin });
  const page = await world.page(`${server.origin}/runs/${run}`);
  const said = () => until(page, () => document.getElementById("announce").textContent === "Copied");
  // A page may not read the clipboard; this notes what it writes.
  await page.evaluate(() => {
    const write = navigator.clipboard.writeText.bind(navigator.clipboard);
    navigator.clipboard.writeText = (text) => { window.copied = text; return write(text); };
  });
  await page.keyboard.press("j");
  await page.keyboard.press("x");
  await said();
  assert.match(await page.evaluate(() => window.copied), /^cantrip loom show /);
  await page.keyboard.press("y");
  await until(page, () => /\/turns\/turn_/.test(window.copied));
});

test("keys do nothing in a field, and nothing at all where they are switched off", async (world) => {
  const { server } = await steps(world);
  const page = await world.page(`${server.origin}/runs`);
  await page.keyboard.press("/");
  assert.equal(await page.evaluate(() => document.activeElement.type), "search");
  await page.keyboard.type("jk?t");
  assert.equal(await page.evaluate(() => document.activeElement.value), "jk?t");
  await page.goto(`${server.origin}/settings`);
  await page.locator("input[name=keys][value=off]").check();
  await page.getByRole("button", { name: "Save" }).click();
  await until(page, () => document.documentElement.dataset.keys === "off");
  await page.goto(`${server.origin}/runs`);
  await page.keyboard.press("?");
  await page.keyboard.press("j");
  assert.ok(page.url().endsWith("/runs"));
  assert.equal(await page.evaluate(() => document.activeElement.tagName), "BODY");
});

test("times are in the reader's zone, with the other in the title, and in UTC where that is set", async (world) => {
  const { server, run } = await steps(world);
  const page = await world.page(`${server.origin}/runs/${run}/records`);
  const time = () => page.evaluate(() => {
    const one = document.querySelector("time[datetime]:not([data-ago])");
    return one && [one.dateTime, one.textContent, one.title];
  });
  const [utc, shown, title] = await time();
  assert.notEqual(shown, utc.slice(0, 16).replace("T", " "), "Berlin is never at UTC");
  assert.ok(title.includes(utc.slice(0, 10)), title);
  await page.goto(`${server.origin}/settings`);
  await page.locator("input[name=zone][value=utc]").check();
  await page.getByRole("button", { name: "Save" }).click();
  await until(page, () => document.documentElement.dataset.zone === "utc");
  await page.goto(`${server.origin}/runs/${run}/records`);
  assert.deepEqual((await time()).slice(0, 2), [utc, utc.slice(0, 16).replace("T", " ")]);
});

test("times that pass are kept right", async (world) => {
  const { server } = await steps(world);
  await world.context.clock.install();
  const page = await world.page(`${server.origin}/looms`);
  const ago = () => page.locator("time[data-ago]").first().textContent();
  assert.equal(await ago(), "just now");
  await page.clock.fastForward("03:05");
  assert.equal(await ago(), "3 min ago");
  await page.clock.fastForward("26:00:00");
  assert.equal(await ago(), "26 h ago");
});
