// The world of a case: a folder with spells, servers over its store, and pages whose faults are noted.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";

const BINARY = resolve(process.env.CANTRIP_TEST_BINARY);
const STORE = "sqlite:kept/loom.db";
const ENDED = ["terminated", "truncated", "failed"];

/** Returns the environment of the binary: its own home, and nothing of the caller's. */
const surroundings = (folder) => {
  const home = join(folder, "home");
  mkdirSync(home, { recursive: true });
  return { cwd: folder, env: { PATH: process.env.PATH, HOME: home, XDG_CONFIG_HOME: home, XDG_DATA_HOME: home } };
};

/** A `cantrip serve` on a free port of loopback. */
export class Server {
  static async start(folder, more = []) {
    const server = new Server();
    const unlessNamed = (name, value) => (more.includes(name) ? [] : [name, value]);
    const fixed = [...unlessNamed("--bind", "127.0.0.1:0"), ...unlessNamed("--store", STORE)];
    server.process = spawn(BINARY, ["serve", ...fixed, ...more], { ...surroundings(folder), stdio: ["ignore", "ignore", "pipe"] });
    server.log = [];
    server.ended = new Promise((done) => server.process.once("exit", done));
    const lines = createInterface({ input: server.process.stderr });
    server.origin = await new Promise((done, refuse) => {
      lines.on("line", (line) => {
        server.log.push(line);
        const found = line.match(/listening on (http:\/\/[^ ]+)/);
        if (found) done(found[1]);
      });
      server.ended.then(() => refuse(new Error(`the server ended: ${server.log.join("\n")}`)));
    });
    return server;
  }

  async stop() {
    this.process.kill("SIGTERM");
    await this.ended;
  }

  /** Asks a route of programs, with the token of this server's user if it has one, and returns its envelope. */
  async ask(method, path, body) {
    const headers = { "content-type": "application/json", ...(this.token && { authorization: `Bearer ${this.token}` }) };
    const answer = await fetch(this.origin + path, { method, headers, body: body && JSON.stringify(body) });
    return answer.json();
  }

  /** Casts a spell and returns its run. */
  async cast(spell, intent = "go", more = {}) {
    const made = await this.ask("POST", "/v1/casts", { spell, intent, ...more });
    assert.ok(made.data?.run_id, JSON.stringify(made));
    return made.data.run_id;
  }

  async run(run) {
    return (await this.ask("GET", `/v1/runs/${run}`)).data.value;
  }

  /** Waits until a run has one of these states. Fails if it ends in another one. */
  async until(run, ...states) {
    for (;;) {
      const value = await this.run(run);
      if (states.includes(value.state)) return value;
      assert.ok(!ENDED.includes(value.state), JSON.stringify(value));
      await new Promise((done) => setTimeout(done, 20));
    }
  }

  async turns(run) {
    return (await this.ask("GET", `/v1/runs/${run}/turns?most=1000`)).data.value.items;
  }
}

export class World {
  static async open(browser, axeSource, options) {
    const world = new World();
    Object.assign(world, { browser, axeSource, faults: [], servers: [], contexts: [] });
    world.folder = mkdtempSync(join(tmpdir(), "cantrip-browser-"));
    world.context = await world.newContext(options.context);
    return world;
  }

  write(name, text) {
    writeFileSync(join(this.folder, name), text);
  }

  read(name) {
    return readFileSync(join(this.folder, name), "utf8");
  }

  /** Writes a spell whose crystal follows this script. */
  spell(name, responses, more = "") {
    this.write(`${name}.toml`, `name = "${name}"\ncrystal = "scripted/${name}.script.yaml"\n${more}`);
    this.write(`${name}.script.yaml`, JSON.stringify({ responses }));
  }

  /** Runs a command of the binary over the store of this world, and returns what it printed. */
  command(...words) {
    return execFileSync(BINARY, [...words, "--store", STORE], { ...surroundings(this.folder), encoding: "utf8" });
  }

  async serve(...more) {
    const server = await Server.start(this.folder, more);
    this.servers.push(server);
    return server;
  }

  async newContext(options = {}) {
    const context = await this.browser.newContext({ viewport: { width: 1360, height: 900 }, timezoneId: "Europe/Berlin", locale: "en-GB", ...options });
    this.contexts.push(context);
    return context;
  }

  /** Opens a page and notes everything that it must not do. `expects` are patterns of console errors that are fine. */
  async page(url, { context = this.context, expects = [] } = {}) {
    const page = await context.newPage();
    const origin = new URL(url).origin;
    page.on("console", (message) => {
      if (message.type() === "error" && !expects.some((one) => one.test(message.text()))) this.faults.push(`console: ${message.text()}`);
    });
    page.on("pageerror", (error) => this.faults.push(`script: ${error.stack}`));
    page.on("dialog", (dialog) => {
      this.faults.push(`dialog: ${dialog.message()}`);
      dialog.dismiss();
    });
    page.on("request", (request) => {
      const asked = new URL(request.url());
      if (asked.origin !== origin && !["data:", "blob:", "about:", "chrome-error:"].includes(asked.protocol)) this.faults.push(`request: ${asked.href}`);
    });
    await page.goto(url, { waitUntil: "load" });
    return page;
  }

  /** Returns what axe finds wrong in a page, a sentence each. The context of the page has the source of axe. */
  async faultsOfAccess(page) {
    const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
    const found = await page.evaluate((runOnly) => window.axe.run(document, { runOnly, resultTypes: ["violations"] }), tags);
    return found.violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.target.join(" ")} ${node.failureSummary}`));
  }

  assertQuiet() {
    assert.deepEqual(this.faults, []);
  }

  report() {
    return [...this.faults, ...this.servers.flatMap((server) => server.log.slice(-10))].join("\n");
  }

  async close() {
    for (const context of this.contexts) await context.close().catch(() => {});
    for (const server of this.servers) if (server.process.exitCode === null) server.process.kill("SIGKILL");
    await Promise.all(this.servers.map((server) => server.ended));
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** Waits until the page says it: a function in the page that becomes true. */
export const until = (page, says, argument) => page.waitForFunction(says, argument, { timeout: 20_000, polling: 25 });

/** Returns what a reader sees of the thread, element by element, without what differs by design: times that pass. */
export const threadOf = (page) => page.evaluate(() => {
  const copy = document.getElementById("main").cloneNode(true);
  for (const gone of copy.querySelectorAll("time[data-ago], time[data-until], input[type=hidden], #spine, [data-key] kbd")) gone.remove();
  for (const element of copy.querySelectorAll("[tabindex='-1']")) element.removeAttribute("tabindex");
  const facts = [...copy.querySelectorAll(".facts > div")].filter((fact) => fact.querySelector("dt")?.textContent === "Time");
  for (const fact of facts) fact.remove();
  return ["head", "thread", "answer", "asks"].map((id) => copy.querySelector(`#${id}`)?.innerHTML ?? `no #${id}`);
});
