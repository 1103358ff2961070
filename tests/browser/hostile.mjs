// Hostile texts in every place that an entity, a gate or a caller can fill: they stay texts.
import { assert, test } from "./case.mjs";
import { HOSTILE, done } from "./scripts.mjs";
import { until } from "./world.mjs";

const ELEMENTS = "script:not([src]), img:not([src^='/bodies/']), iframe, object, embed, style, base, meta[http-equiv], link[href^='http'], form[action^='http'], a[href^='javascript:'], a[href^='data:'], a[href^='//'], [onerror], [onload], [onmouseover], math";

test("hostile texts are inert on every page, part and export, and no request leaves", async (world) => {
  const text = HOSTILE.join("\n\n");
  world.write("hostile.txt", text);
  const responses = [
    ...HOSTILE.map((one, n) => ({ thinking: one, content: one, pace_ms: 1, tool_calls: [{ id: `c${n}`, gate: "echo", args: { text: one, [one.slice(0, 20)]: one } }, { id: `r${n}`, gate: "read", args: { path: one } }] })),
    { tool_calls: [{ id: "f", gate: "read", args: { path: "hostile.txt" } }] },
    done({ answer: text, [HOSTILE[0]]: HOSTILE[1] }),
  ];
  world.spell("hostile", responses, '[gates.echo]\n[gates.read]\nroot = "."\n[wards]\nmax_turns = 60\n');
  const server = await world.serve();
  const run = await server.cast("hostile", text);
  const page = await world.page(`${server.origin}/runs/${run}`, { expects: [/status of 4\d\d/] });
  await until(page, () => document.getElementById("head").textContent.includes("terminated"));
  assert.ok((await page.title()).startsWith("<script>"), "the title is the text, and no script wrote it");
  const [turn] = await server.turns(run);
  const value = await server.run(run);
  const paths = ["/runs", `/runs?q=${encodeURIComponent(HOSTILE[1])}`, `/runs/${run}`, `/runs/${run}/tree`, `/runs/${run}/records`, `/runs/${run}/sent/${turn.id}`, `/looms/${value.loom_id}`, "/looms", `/turns/${turn.id}/fork`, `/runs/${encodeURIComponent(HOSTILE[1])}`, `/codes/${encodeURIComponent(HOSTILE[1])}`];
  for (const path of paths) {
    await page.goto(server.origin + path);
    const found = await page.evaluate((what) => [...document.querySelectorAll(what)].map((element) => element.outerHTML.slice(0, 200)), ELEMENTS);
    assert.deepEqual(found, [], path);
  }
  const exported = await (await world.context.request.get(`${server.origin}/runs/${run}/export?as=page`)).text();
  await page.goto("about:blank");
  const alone = await world.context.newPage();
  alone.on("request", (request) => world.faults.push(`request of the export: ${request.url()}`));
  await alone.setContent(exported);
  const found = await alone.evaluate((what) => [...document.querySelectorAll(what)].map((element) => element.outerHTML.slice(0, 200)), ELEMENTS.replace("meta[http-equiv], ", "").replace("style, ", ""));
  assert.deepEqual(found, []);
});

test("what a text says is what the page shows, letter by letter, with what is invisible made visible", async (world) => {
  world.spell("odd", [{ tool_calls: [{ id: "c", gate: "echo", args: { text: "<b>a\u202Eb\u001b[31mc</b>" } }] }, done()], "[gates.echo]\n[wards]\nmax_turns = 5\n");
  const server = await world.serve();
  const run = await server.cast("odd", "an <i>odd</i> & \"quoted\" 'intent' 🎉");
  await server.until(run, "terminated");
  const page = await world.page(`${server.origin}/runs/${run}`);
  assert.match(await page.locator("h1").textContent(), /an <i>odd<\/i> & "quoted" 'intent' 🎉/);
  const line = await page.locator("details.call .args").first().textContent();
  assert.match(line, /<b>a/);
  assert.doesNotMatch(line, /[\u202E\u001b]/, "no invisible character reaches a reader");
});
