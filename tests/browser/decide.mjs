// Deciding, casting, forking and going back: what a person does on the pages.
import { assert, test } from "./case.mjs";
import { ECHO, done, echo } from "./scripts.mjs";
import { until } from "./world.mjs";

const CAREFUL = '[gates.edit]\nroot = "."\n[wards]\nmax_turns = 9\nrequire_approval = ["edit"]\n';
const edit = (n, was, now) => ({ content: "I would change the note.", tool_calls: [{ id: `e${n}`, gate: "edit", args: { path: "note.txt", old: was, new: now } }] });

const waiting = async (world) => {
  world.write("note.txt", "one\ntwo\nthree\n");
  world.spell("careful", [edit(1, "two", "zwei"), done("noted")], CAREFUL);
  const server = await world.serve();
  const run = await server.cast("careful", "translate the note");
  await server.until(run, "waiting");
  return { server, run };
};

/** Returns the address of the request that a run waits for. */
const request = async (server, run) => {
  const [{ approval_id }] = (await server.run(run)).approvals;
  return `${server.origin}/approvals/${approval_id}?run=${run}`;
};

test("a call that waits is approved with its difference in sight, and the run goes on by itself", async (world) => {
  world.write("note.txt", "one\ntwo\nthree\n");
  world.spell("careful", [{ ...edit(1, "two", "zwei"), delay_ms: 300 }, done("noted")], CAREFUL);
  const server = await world.serve();
  const run = await server.cast("careful", "translate the note");
  const page = await world.page(`${server.origin}/runs/${run}`);
  // The request comes over the feed; its form gets its hidden fields when it is sent.
  await until(page, () => document.querySelector("#asks section.ask"));
  const asks = page.locator("section.ask");
  assert.match(await asks.locator(".diff").textContent(), /-two[\s\S]*\+zwei/);
  assert.equal(world.read("note.txt"), "one\ntwo\nthree\n");
  await Promise.all([page.waitForURL(/\/runs\//), asks.getByRole("button", { name: "Approve", exact: true }).click()]);
  await until(page, () => document.getElementById("head").textContent.includes("terminated"));
  assert.equal(world.read("note.txt"), "one\nzwei\nthree\n");
  assert.equal(await page.locator("section.ask").count(), 0);
});

test("a refusal is typed by keyboard alone, and the entity reads its reason", async (world) => {
  const { server, run } = await waiting(world);
  const page = await world.page(`${server.origin}/approvals`);
  await page.keyboard.press("r");
  assert.equal(await page.evaluate(() => document.activeElement.value), "refuse");
  await page.keyboard.press("Tab");
  await page.keyboard.type("not in this language");
  await page.keyboard.press("Shift+Tab");
  await Promise.all([page.waitForURL(/\/runs\//), page.keyboard.press("Enter")]);
  await server.until(run, "terminated");
  const [turn] = await server.turns(run);
  assert.match(JSON.stringify(turn.gate_calls), /not in this language/);
  assert.equal(world.read("note.txt"), "one\ntwo\nthree\n");
});

test("of two who decide at once one is heard, and the other sees who and when", async (world) => {
  const { server, run } = await waiting(world);
  const address = await request(server, run);
  const first = await world.page(address);
  const second = await world.page(address, { expects: [/status of 4\d\d/] });
  await Promise.all([first.waitForURL(/\/runs\//), first.getByRole("button", { name: "Approve", exact: true }).click()]);
  await second.getByRole("button", { name: "Refuse", exact: true }).click();
  await until(second, () => document.querySelector(".decided"));
  assert.match(await second.locator(".decided").textContent(), /Approved by local/);
  await server.until(run, "terminated");
  assert.equal(world.read("note.txt"), "one\nzwei\nthree\n");
});

test("a file that changed after it was asked about is shown as changed, and nobody approves what was not shown", async (world) => {
  const { server, run } = await waiting(world);
  const page = await world.page(await request(server, run), { expects: [/status of 4\d\d/] });
  world.write("note.txt", "zero\none\ntwo\nthree\n");
  await page.getByRole("button", { name: "Approve", exact: true }).click();
  await until(page, () => document.querySelector(".changed"));
  assert.equal((await server.run(run)).state, "waiting");
  assert.equal(world.read("note.txt"), "zero\none\ntwo\nthree\n");
  await Promise.all([page.waitForURL(/\/runs\//), page.getByRole("button", { name: "Approve", exact: true }).click()]);
  await server.until(run, "terminated");
  assert.equal(world.read("note.txt"), "zero\none\nzwei\nthree\n");
});

test("without script a call is approved and a spell is cast, and a link looks again", async (world) => {
  const { server, run } = await waiting(world);
  const context = await world.newContext({ javaScriptEnabled: false });
  const page = await world.page(`${server.origin}/runs/${run}`, { context });
  assert.equal(await page.getByRole("link", { name: "Look again" }).count(), 1);
  await Promise.all([page.waitForURL(/\/runs\//), page.getByRole("button", { name: "Approve", exact: true }).click()]);
  await server.until(run, "terminated");
  await page.goto(`${server.origin}/spells/careful`);
  await page.getByLabel("Intent").fill("do it again");
  await Promise.all([page.waitForURL(/\/runs\/run_/), page.getByRole("button", { name: "Cast", exact: true }).click()]);
  assert.match(await page.locator("h1").textContent(), /do it again/);
});

test("the form of a spell casts it, its dry run writes nothing, and a budget that is refused is told beside its field", async (world) => {
  world.spell("hello", [echo(1), done("hello back")], ECHO);
  const server = await world.serve();
  const page = await world.page(`${server.origin}/spells/hello`, { expects: [/status of 4\d\d/] });
  await page.getByLabel("Intent").fill("say hello");
  await page.getByRole("button", { name: "Dry run" }).click();
  await until(page, () => document.getElementById("dry-run"));
  assert.equal((await server.ask("GET", "/v1/runs")).data.value.items.length, 0);
  await page.getByLabel("Budget").fill("a lot");
  await page.getByRole("button", { name: "Cast", exact: true }).click();
  await until(page, () => document.querySelector(".wrong"));
  assert.equal(await page.getByLabel("Intent").inputValue(), "say hello", "nothing that was typed is lost");
  await page.getByLabel("Budget").fill("");
  await Promise.all([page.waitForURL(/\/runs\/run_/), page.getByRole("button", { name: "Cast", exact: true }).click()]);
  await until(page, () => document.getElementById("answer").textContent.includes("hello back"));
});

test("a fork from a turn is a new thread that is shown live, and the loom draws its branch", async (world) => {
  // One script serves both runs: the fork goes on where the first run ended.
  world.spell("steps", [echo(1), echo(2), echo(3), done("first end"), echo(4), done("second end")], ECHO);
  const server = await world.serve();
  const run = await server.cast("steps", "walk");
  await server.until(run, "terminated");
  const before = await server.turns(run);
  const page = await world.page(`${server.origin}/runs/${run}`);
  const link = page.locator("#thread > article").nth(1).getByRole("link", { name: "fork from here" });
  await Promise.all([page.waitForURL(/\/fork$/), link.click()]);
  await page.getByLabel("Intent").fill("walk another way");
  await Promise.all([page.waitForURL(/\/runs\/run_/), page.getByRole("button", { name: "Fork", exact: true }).click()]);
  const forked = page.url().match(/run_\w+/)[0];
  assert.notEqual(forked, run);
  await server.until(forked, "terminated", "truncated", "failed");
  assert.deepEqual(await server.turns(run), before, "the original is unchanged");
  const loom = (await server.run(run)).loom_id;
  await page.goto(`${server.origin}/looms/${loom}`);
  assert.match(await page.locator(".loom svg").textContent(), /walk another way/);
  const boxes = page.locator("input[name=of]:visible");
  assert.ok((await boxes.count()) >= 2);
  await boxes.nth(0).check();
  await boxes.nth(1).check();
  await Promise.all([page.waitForURL(/\/compare/), page.keyboard.press("c")]);
  assert.match(await page.locator(".same").first().textContent(), /2 turns are shared/);
  assert.match(await page.locator(".same").first().textContent(), /another intent/);
});

test("going back to a turn restores the files of the run, names the others, and forks", async (world) => {
  world.write("note.txt", "one\n");
  const write = (n, path, content) => ({ tool_calls: [{ id: `w${n}`, gate: "write", args: { path, content } }] });
  world.spell("scribe", [echo(1), write(2, "note.txt", "two\n"), write(3, "other.txt", "mine\n"), done()], '[gates.echo]\n[gates.write]\nroot = "."\n[wards]\nmax_turns = 9\n');
  const server = await world.serve();
  const run = await server.cast("scribe", "write things down");
  await server.until(run, "terminated");
  world.write("other.txt", "somebody else's\n");
  const [first] = await server.turns(run);
  const page = await world.page(`${server.origin}/turns/${first.id}/rewind`);
  assert.match(await page.locator("main").textContent(), /Files that would be restored[\s\S]*note\.txt[\s\S]*Files that stay as they are[\s\S]*other\.txt/);
  await Promise.all([page.waitForURL(/\/runs\/run_/), page.getByRole("button", { name: "Go back" }).click()]);
  assert.equal(world.read("note.txt"), "one\n");
  assert.equal(world.read("other.txt"), "somebody else's\n");
  assert.notEqual(page.url().match(/run_\w+/)[0], run);
});

test("a link to a turn survives the sign-in, and what another owner did is not found", async (world) => {
  const [ann, bob] = ["ann-0123456789abcdef", "bob-0123456789abcdef"];
  world.write("tokens.txt", `ann = ${ann}\nbob = ${bob}\n`);
  world.spell("steps", [echo(1), echo(2), done()], ECHO);
  world.command("spend", "authorize", "--owner", "ann", "--total", "1.00 USD");
  const server = await world.serve("--tokens", "tokens.txt");
  server.token = ann;
  const run = await server.cast("steps", "hers");
  await server.until(run, "terminated");
  const turns = await server.turns(run);
  const signIn = async (page, token) => {
    await page.getByLabel("Token").fill(token);
    await page.getByRole("button", { name: "Sign in" }).click();
  };
  const page = await world.page(`${server.origin}/runs/${run}#${turns[1].id}`, { expects: [/status of 4\d\d/] });
  assert.ok(page.url().includes("/sign-in"), page.url());
  await signIn(page, ann);
  await until(page, (turn) => document.getElementById(turn)?.matches(":target"), turns[1].id);
  const cookies = await world.context.cookies();
  assert.ok(cookies.every(({ httpOnly, sameSite }) => httpOnly && sameSite === "Lax"), JSON.stringify(cookies));
  const other = await world.newContext();
  const his = await world.page(`${server.origin}/runs`, { context: other, expects: [/status of 404/] });
  await signIn(his, bob);
  await until(his, () => document.querySelector("#rows"));
  assert.doesNotMatch(await his.content(), new RegExp(run));
  for (const path of [`/runs/${run}`, `/runs/${run}/tree`, `/turns/${turns[0].id}`, `/runs/${run}/export?as=turns`, `/runs/${run}/parts`]) {
    const answer = await other.request.get(server.origin + path, { maxRedirects: 0 });
    assert.equal(answer.status(), 404, path);
  }
  assert.equal((await other.request.get(`${server.origin}/v1/runs`)).status(), 401, "the cookie opens pages only");
  assert.ok(!server.log.join("\n").includes(ann), "no token is in the log");
});
