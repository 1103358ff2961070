// Every page: its policy, its access, its width, its looks, and what it says when there is nothing.
import { createServer } from "node:http";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { assert, test } from "./case.mjs";
import { ECHO, done, echo } from "./scripts.mjs";
import { until } from "./world.mjs";

const POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types cantrip";

/** A store with runs of every state, and the addresses of all pages. */
const everyPage = async (world) => {
  world.write("note.txt", "one\ntwo\n");
  world.spell("careful", [{ content: "Let me see.", tool_calls: [{ id: "e", gate: "edit", args: { path: "note.txt", old: "two", new: "zwei" } }] }, done()], '[gates.edit]\nroot = "."\n[wards]\nmax_turns = 9\nrequire_approval = ["edit"]\n');
  const mixed = [
    echo(1, "plain", { thinking: "I should look first.", content: "I will *look*, then `say`:\n\n| a | b |\n| - | - |\n| 1 | 2 |\n\n- one\n- two" }),
    { tool_calls: [{ id: "r1", gate: "read", args: { path: "nowhere.txt" } }, { id: "r2", gate: "read", args: { path: "../../etc/passwd" } }] },
    { tool_calls: [{ id: "w", gate: "write", args: { path: "made.txt", content: "new\n" } }] },
    done({ risk: "high", files: 3 }),
    // The fork says these.
    echo(5, "another"), done({ risk: "low", files: 1 }),
  ];
  world.spell("mixed", mixed, '[gates.echo]\n[gates.read]\nroot = "."\n[gates.write]\nroot = "."\n[wards]\nmax_turns = 9\n');
  world.spell("short", [echo(1), echo(2)], "[gates.echo]\n[wards]\nmax_turns = 1\n");
  const server = await world.serve();
  const run = await server.cast("mixed", "which module has the most risk?");
  const asks = await server.cast("careful", "translate the note");
  const cut = await server.cast("short", "go on for ever");
  await Promise.all([server.until(run, "terminated"), server.until(asks, "waiting"), server.until(cut, "truncated")]);
  const turns = await server.turns(run);
  const [first, last] = [turns[0].id, turns.at(-1).id];
  const loom = (await server.run(run)).loom_id;
  const forked = (await server.ask("POST", `/v1/runs/${run}/fork`, { turn: first, intent: "another way" })).data.run_id;
  await server.until(forked, "terminated", "truncated", "failed");
  const other = (await server.turns(forked)).at(-1).id;
  const [{ approval_id }] = (await server.run(asks)).approvals;
  const paths = [
    "/runs", `/runs/${run}`, `/runs/${asks}`, `/runs/${cut}`, `/runs/${run}/tree`, `/runs/${run}/files`, `/runs/${run}/records`, `/runs/${run}/sent/${last}`,
    "/looms", `/looms/${loom}`, `/compare?a=${last}&b=${other}`, "/approvals", `/approvals/${approval_id}?run=${asks}`, "/spells", "/spells/mixed", `/turns/${first}/fork`, `/turns/${first}/rewind`,
    `/runs/${asks}/cancel`, `/runs/${cut}/continue`, "/codes/WA-READ-I-001", "/settings", "/keys", "/runs?q=nothing-has-this", `/turns/${first}`, "/runs/run_06cyf9k2vtd3m8x1q7hbz4n5rw",
  ];
  return { server, paths, run, asks };
};
const shotName = (path, at) => `${String(at).padStart(2, "0")}-${path.slice(1).replace(/[?&=/]/g, "-").replace(/(run|turn|loom|apr)_\w+/g, "$1")}`;
const QUIET = { expects: [/status of 404/] };

test("every page has exactly the policy, and no inline script, style or handler", async (world) => {
  const { server, paths } = await everyPage(world);
  for (const path of [...paths, "/sign-in"]) {
    const answer = await world.context.request.get(server.origin + path);
    const headers = answer.headers(), html = await answer.text();
    assert.equal(headers["content-security-policy"], POLICY, path);
    assert.equal(headers["x-frame-options"], "DENY", path);
    assert.equal(headers["cache-control"], "no-store", path);
    assert.equal(headers["referrer-policy"], "same-origin", path);
    assert.equal(headers["x-content-type-options"], "nosniff", path);
    assert.doesNotMatch(html, /<style|style=|<script(?![^>]* src=)|\son[a-z]+=/i, path);
    assert.ok(Buffer.byteLength(html) < 110 * 1024, `${path} has ${Buffer.byteLength(html)} bytes`);
  }
});

test("axe finds nothing on any page, in both themes and at both widths", async (world) => {
  const { server, paths } = await everyPage(world);
  const shots = process.env.CANTRIP_TEST_SHOTS;
  if (shots) mkdirSync(shots, { recursive: true });
  // The policy is the subject of another case; axe itself breaks its rule about markup.
  const context = await world.newContext({ bypassCSP: true, reducedMotion: "reduce" });
  await context.addInitScript({ path: world.axeSource });
  const found = [], left = [...paths];
  const look = async (origin, next) => {
    const page = await world.page(`${origin}/keys`, { context, ...QUIET });
    for (let path = next(); path; path = next()) {
      await page.goto(origin + path);
      for (const width of [1360, 390]) {
        await page.setViewportSize({ width, height: 900 });
        // The narrow page has everything open, except what lies over other things.
        if (width === 390) await page.evaluate(() => document.querySelectorAll("main details").forEach((one) => one.matches(".command, .menu") || (one.open = true)));
        for (const colorScheme of ["light", "dark"]) {
          await page.emulateMedia({ colorScheme });
          found.push(...(await world.faultsOfAccess(page)).map((fault) => `${path}, ${colorScheme}, ${width} px: ${fault}`));
          if (shots) await page.screenshot({ path: join(shots, `${shotName(path, paths.indexOf(path) + 1)}-${colorScheme}-${width}.png`), fullPage: true });
        }
      }
    }
  };
  world.write("tokens.txt", "ann = ann-0123456789abcdef\n");
  const signedOut = await world.serve("--tokens", "tokens.txt", "--store", "sqlite:kept/other.db");
  const [signIn, next] = [["/sign-in"], () => left.shift()];
  await Promise.all([look(server.origin, next), look(server.origin, next).then(() => look(signedOut.origin, () => signIn.shift()))]);
  assert.deepEqual(found, []);
});

test("at 320 px nothing scrolls sideways but programs, tables and drawings", async (world) => {
  const { server, paths } = await everyPage(world);
  const page = await world.page(`${server.origin}/runs`, QUIET);
  await page.setViewportSize({ width: 320, height: 640 });
  for (const path of paths) {
    await page.goto(server.origin + path);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= 320, `${path} is ${wide} px wide`);
  }
});

test("with forced colours every state has its own shape and word, and a printed run has its turns", async (world) => {
  const { server, run } = await everyPage(world);
  const context = await world.newContext({ forcedColors: "active" });
  const page = await world.page(`${server.origin}/runs`, { context });
  const marks = await page.evaluate(() => [...document.querySelectorAll("#rows .st")].map((mark) => [mark.textContent.trim().split(":")[0], mark.querySelector("svg").innerHTML]));
  const byWord = new Map(marks);
  assert.ok(byWord.size >= 3, JSON.stringify([...byWord.keys()]));
  assert.equal(new Set(byWord.values()).size, byWord.size, "two states look alike");
  await page.goto(`${server.origin}/runs/${run}`);
  await page.emulateMedia({ media: "print" });
  assert.ok(await page.locator("#thread > article").first().isVisible());
  assert.ok(!(await page.locator("#follow").first().isVisible().catch(() => false)));
});

test("the theme is the reader's, changes by a key, and is there before the first paint", async (world) => {
  const { server } = await everyPage(world);
  const page = await world.page(`${server.origin}/runs`);
  const saved = page.waitForResponse((response) => response.url().endsWith("/settings"));
  await page.keyboard.press("t");
  await saved;
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
  const html = await (await world.context.request.get(`${server.origin}/runs`)).text();
  assert.match(html, /<html[^>]* data-theme="dark"/, "the server writes it");
});

test("an empty store says what would stand there and which command makes it", async (world) => {
  world.spell("hello", [done()], ECHO);
  const server = await world.serve();
  const page = await world.page(`${server.origin}/`);
  assert.match(await page.locator("#rows").textContent(), /No run yet[\s\S]*cantrip .*cast/);
  for (const path of ["/looms", "/approvals"]) {
    await page.goto(server.origin + path);
    assert.ok((await page.locator(".empty").textContent()).length > 20, path);
  }
});

test("a missing id has a page with its code, advice and trace, and the frame works", async (world) => {
  const server = await world.serve();
  const page = await world.page(`${server.origin}/runs/run_06cyf9k2vtd3m8x1q7hbz4n5rw`, QUIET);
  const text = await page.locator("main").textContent();
  assert.match(text, /WA-RES-I-002/);
  assert.match(text, /[0-9a-f]{16,32}/, "the trace id");
  await Promise.all([page.waitForURL(/\/spells$/), page.getByRole("link", { name: "Spells" }).first().click()]);
});

test("a page of another origin can neither read nor act, nor hold a page in a frame", async (world) => {
  const { server, asks } = await everyPage(world);
  const page = await world.page(`${server.origin}/runs/${asks}`);
  const cancel = `${server.origin}/runs/${asks}/cancel`;
  const attack = `<iframe src="${server.origin}/runs"></iframe><form method=post action="${cancel}"><input name=token value=x><input name=key value=y></form>
    <script>fetch("${server.origin}/runs", {credentials: "include"}).then((r) => r.text()).then(() => { document.title = "read"; }, () => { document.title = "not read"; });</script>`;
  const evil = createServer((_, answer) => answer.setHeader("content-type", "text/html").end(attack));
  await new Promise((done) => evil.listen(0, "127.0.0.1", done));
  try {
    // Another port of the same host is the same site: the browser sends the cookie along.
    const other = await page.context().newPage();
    await other.goto(`http://127.0.0.1:${evil.address().port}/`);
    await until(other, () => document.title === "not read");
    const sent = other.waitForResponse((response) => response.url() === cancel);
    await other.evaluate(() => document.querySelector("form").submit());
    assert.equal((await sent).status(), 403);
    const framed = other.frames().find((frame) => frame !== other.mainFrame());
    assert.ok(!framed || !(await framed.content().catch(() => "")).includes("Cantrip"), "the page is in no frame");
    assert.equal((await server.run(asks)).state, "waiting");
  } finally {
    evil.close();
  }
});
