"""Programs that get better, beside DSPy: the same model server, the same tickets, the same number of model calls.

Each method runs once per seed, in a cell of its own: a search on train and holdout, then its program on the 220 test tickets.
A finished cell is a file and is not run again; a cell of ours that was stopped goes on where it was. The table has every
method that was asked for, also one that did worse. `bench/run improve` prepares what this needs.
"""

import argparse
import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from compare import machine
from improve_data import INSTRUCTIONS, ROOT, TICKETS, spared_file, spared_seconds, tickets
from improve_stats import check, mean_interval, paired, rounded

HERE = Path(__file__).resolve().parent
# The script that serves the small model.
SERVER = ROOT / "crates/cli/tests/fixtures/llama_server.py"
SEEDS = [1, 2, 3]
# The model calls of a search; the final test is apart: our job tests winner and base, on 220 tickets each.
BUDGET, TEST_CALLS = 500, 440
WINDOW = "4096"
# The exit status of a command whose job waits.
WAITS = 5
# What the rows are compared with: the optimiser that `cantrip improve` takes, named before anything was seen.
REFERENCE = "bootstrap_demos.v1"
OURS = {
    # At most 100 train tickets for the teacher, and the base and four sets of demos on 80 holdout tickets.
    "bootstrap_demos.v1": ["--set", "candidates=4"],
    # Eight trials of 25 tickets, and two of all 80, beside the base and the teacher.
    "mipro_lite.v1": ["--texts", "instructions.txt", "--set", "trials=8"],
}
WITH_REFLECTION = {"gepa.v1": []}
PEERS = ["as written", "BootstrapFewShot", "BootstrapFewShotWithRandomSearch", "MIPROv2"]
PEERS_WITH_REFLECTION = ["GEPA"]
# Which of ours does the work of each peer.
COUNTERPARTS = {
    "BootstrapFewShot": "bootstrap_demos.v1",
    "BootstrapFewShotWithRandomSearch": "bootstrap_demos.v1",
    "MIPROv2": "mipro_lite.v1",
    "GEPA": "gepa.v1",
}
BEGIN, END = "<!-- improve: written by bench/run improve -->", "<!-- end of improve -->"
# The variable that names a reflecting model, as `provider/model`, and the keys of the providers that it may be of.
REFLECT = "CANTRIP_BENCH_REFLECT"
KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "gemini": "GEMINI_API_KEY"}


class CountingServer:
    """Passes requests on to the model's server, and writes one byte to a file for each answer that is asked for.

    At temperature 0 this server gives the same answer to the same request, so an answer is kept and repeated when exactly
    the same is asked again, by another seed or after a stop. It is counted like any other, and the seconds that it took at
    first are written beside the count and belong to the time of the search.
    """

    def __init__(self, origin: str, answers: Path) -> None:
        self.origin, self.log, self.lock = origin, None, threading.Lock()
        self.file, self.answers = answers, kept_answers(answers)
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.pass_on(None)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                if not self.path.endswith("/chat/completions"):
                    self.pass_on(body)
                    return
                outer.count()
                key = hashlib.sha256(WINDOW.encode() + self.path.encode() + body).hexdigest()
                if key in outer.answers:
                    kept = outer.answers[key]
                    outer.spare(kept["seconds"])
                    self.answer(200, kept["said"].encode(), kept["kind"])
                    return
                began = time.perf_counter()
                status, said, kind = self.pass_on(body)
                if status == 200 and json.loads(body).get("temperature") == 0:
                    seconds = time.perf_counter() - began
                    outer.keep({"key": key, "seconds": seconds, "kind": kind, "said": said.decode()})

            def pass_on(self, body) -> tuple:
                kept = {name: self.headers[name] for name in ("content-type", "authorization") if name in self.headers}
                asked = urllib.request.Request(outer.origin + self.path, data=body, headers=kept)
                try:
                    with urllib.request.urlopen(asked, timeout=600) as answer:
                        status, said, kind = answer.status, answer.read(), answer.headers.get("content-type", "")
                except urllib.error.HTTPError as refused:
                    status, said, kind = refused.code, refused.read(), refused.headers.get("content-type", "")
                self.answer(status, said, kind)
                return status, said, kind

            def answer(self, status: int, said: bytes, kind: str) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def count(self) -> None:
        with self.lock, self.log.open("ab") as opened:
            opened.write(b".")

    def spare(self, seconds: float) -> None:
        with self.lock, spared_file(self.log).open("a") as opened:
            opened.write(f"{seconds}\n")

    def keep(self, answer: dict) -> None:
        with self.lock, self.file.open("a") as opened:
            opened.write(json.dumps(answer) + "\n")
            self.answers[answer["key"]] = answer


def kept_answers(file: Path) -> dict:
    """The answers of earlier starts by their keys. A line that was cut off by a stop is dropped, and asked for again."""
    answers = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            answer = json.loads(line)
        except ValueError:
            continue
        answers[answer["key"]] = answer
    # What is written next must not continue a line that was cut off.
    beside = file.with_suffix(".part")
    beside.write_text("".join(json.dumps(answer) + "\n" for answer in answers.values()))
    beside.replace(file)
    return answers


def answers_file(folder: Path, packages: str) -> Path:
    """The file of kept answers: another one for another model, server, or way of starting it."""
    parts = [SERVER.read_bytes(), *sorted(entry.name.encode() for entry in Path(packages).glob("*.dist-info"))]
    return folder / f"answers-{hashlib.sha256(b''.join(parts)).hexdigest()[:12]}.jsonl"


class Model:
    """The small model, served by llama.cpp in a process that ends with this one."""

    def __init__(self, python: str, packages: str) -> None:
        words = [python, str(SERVER), packages, WINDOW]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.origin = self.process.stdout.readline().strip()
        if not self.origin.startswith("http://127.0.0.1:"):
            sys.exit("the model's server did not start")


def reflecting() -> str | None:
    """The reflecting model, if one is named and its key is there."""
    named = os.environ.get(REFLECT, "")
    key = KEYS.get(named.split("/", 1)[0])
    return named if key and os.environ.get(key) else None


def identity(method: str, version: str, dspy: str) -> str:
    """A cell that was made from other inputs is made again."""
    parts = [TICKETS.read_bytes(), INSTRUCTIONS.read_bytes(), repr((BUDGET, TEST_CALLS, WINDOW)).encode()]
    if method in PEERS + PEERS_WITH_REFLECTION:
        parts += [(HERE / "improve_dspy.py").read_bytes(), dspy.encode()]
    else:
        parts += [repr({**OURS, **WITH_REFLECTION}[method]).encode(), version.encode()]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


class Watch:
    """The time that a cell took, also over several starts: a start that was stopped counts up to its last model call.

    The time that repeated answers took at first counts too.
    """

    def __init__(self, work: Path) -> None:
        self.file, self.calls = work / "time.json", work / "calls"
        before = json.loads(self.file.read_text()) if self.file.exists() else {"seconds": 0.0, "began": None}
        self.seconds = before["seconds"]
        if before["began"] is not None:
            self.seconds += max(0.0, (work / "calls").stat().st_mtime - before["began"])
        self.began = time.time()
        write_whole(self.file, {"seconds": self.seconds, "began": self.began})

    def read(self) -> float:
        return self.seconds + time.time() - self.began + spared_seconds(self.calls)


def write_whole(path: Path, value) -> None:
    """A file that is there is whole."""
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(value))
    beside.replace(path)


class Ours:
    """A cell of ours: a project folder with a store, in which the same command goes on where it was killed.

    A job that met no model, because the server was stopped before it, waits and is resumed.
    """

    def __init__(self, binary: Path, folder: Path, url: str) -> None:
        self.binary, self.folder = binary, folder
        settings = folder / ".config/cantrip"
        settings.mkdir(parents=True, exist_ok=True)
        (settings / "config.toml").write_text(f'[endpoints.small]\nurl = "{url}/v1"\nwire = "chat"\n')
        profile = '[[model]]\ncrystal = "small/*"\nstructured = true\ntools = false\nprice = "free"\n'
        (settings / "models.toml").write_text(profile)
        for name in ("signatures/ticket.toml", "metrics/label.toml", "tickets.csv"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes((ROOT / "examples/tickets" / name).read_bytes())
        (folder / "instructions.txt").write_bytes(INSTRUCTIONS.read_bytes())

    def run(self, *words: str) -> str:
        unset = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "CANTRIP_CRYSTAL", "CANTRIP_REFLECT", "CANTRIP_STORE", "CARGO")
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        environment["HOME"] = str(self.folder)
        command = [str(self.binary), *words, "--store", "sqlite:loom.db"]
        ran = subprocess.run(command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, text=True)
        if ran.returncode == WAITS and words[0] != "run":
            self.run("run", "resume", json.loads(ran.stdout)["data"]["run_id"], "--json")
            ran = subprocess.run(command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, text=True)
        if ran.returncode != 0:
            sys.exit(f"{' '.join(words)} ended with {ran.returncode}: {ran.stdout.strip()[-400:]}")
        return ran.stdout

    def reply(self, *words: str) -> dict:
        return json.loads(self.run(*words, "--json"))["data"]

    def scores(self, evaluation: str) -> dict:
        rows = [json.loads(line) for line in self.run("eval", "show", evaluation, "--rows").splitlines()]
        return {row["example_id"]: row["subject"]["score"] or 0 for row in rows}


def our_cell(ours: Ours, log: Path, method: str, options: list, seed: int, reflect: str | None) -> dict:
    watch = Watch(ours.folder)
    ours.run("dataset", "add", "tickets", "tickets.csv", "--signature", "Ticket", "--splits", "given")
    asked = ["compile", "Ticket", "--dataset", "tickets", "--metric", "label", "--optimiser", method, *options]
    if reflect:
        asked += ["--reflect", reflect]
    asked += ["--max-calls", str(BUDGET + TEST_CALLS), "--seed", str(seed), "--crystal", "small/smol"]
    ended = ours.reply(*asked, "--concurrency", "1", "--yes")
    # What follows may ask the model too, and may be stopped and begun again.
    searched = ours.folder / "searched.json"
    if not searched.exists():
        write_whole(searched, {"wall": watch.read(), "calls": log.stat().st_size})
    took = json.loads(searched.read_text())
    shown = ours.reply("compile", "show", ended["report_id"])["value"]
    report = shown["report"]
    tested = report["trials"]["test"]
    evaluation = ended.get("eval_id")
    if evaluation is None:
        # The base won, so nothing was tested: its scores are those of an evaluation of its own.
        base = ["eval", report["base"], "--dataset", "tickets", "--metric", "label", "--baseline", "none"]
        evaluation = ours.reply(*base, "--crystal", "small/smol", "--concurrency", "1", "--yes")["eval_id"]
    # The search must be what its records say.
    ours.reply("compile", "replay", ended["report_id"])
    return {
        "calls": took["calls"] - tested,
        "wall": took["wall"],
        "scores": ours.scores(evaluation),
        "selected": report["selected"],
        "base": report["base"],
        "status": report["status"],
        "optimism": report["optimism"],
        "report_hash": shown["report_hash"],
    }


def peer_cell(python: str, server: CountingServer, log: Path, method: str, seed: int, reflect: str | None) -> dict:
    # A search of the peer's that was stopped begins anew.
    log.write_bytes(b"")
    spared_file(log).unlink(missing_ok=True)
    environment = {
        **os.environ,
        "IMPROVE_URL": server.url + "/v1",
        "IMPROVE_CALLS": str(log),
        "IMPROVE_BUDGET": str(BUDGET),
        "IMPROVE_REFLECT": reflect or "",
    }
    words = [python, str(HERE / "improve_dspy.py"), method, str(seed)]
    ran = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True)
    if ran.returncode != 0:
        sys.exit(f"{method} with seed {seed} failed")
    return json.loads(ran.stdout.strip().splitlines()[-1])


def cells_wanted(reflect: str | None, seeds: list) -> list:
    """Each method with its seed, ours and the peer's in turn. The program as written depends on no seed."""
    ours = {**OURS, **(WITH_REFLECTION if reflect else {})}
    peers = PEERS + (PEERS_WITH_REFLECTION if reflect else [])
    wanted = []
    for seed in seeds:
        wanted += [(method, seed) for method in ours]
        wanted += [(method, seed) for method in peers if method != "as written" or seed == seeds[0]]
    return wanted


def run_cells(given, dspy: str, reflect: str | None) -> dict:
    folder = given.folder
    version = subprocess.run([str(given.binary), "--version"], capture_output=True, text=True, check=True).stdout.strip()
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    model, server, cells = None, None, {}
    for method, seed in cells_wanted(reflect, given.seeds):
        name = f"{method.replace(' ', '_')}-{seed}"
        path = folder / "cells" / f"{name}.json"
        kept = json.loads(path.read_text()) if path.exists() else {}
        made_from = identity(method, version, dspy)
        if kept.get("made_from") != made_from:
            if server is None:
                model = Model(given.python, given.model)
                server = CountingServer(model.origin, answers_file(folder, given.model))
            work = folder / "work" / f"{name}-{made_from[:12]}"
            work.mkdir(parents=True, exist_ok=True)
            server.log = work / "calls"
            server.log.touch()
            print(f"  {method}, seed {seed}", file=sys.stderr, flush=True)
            options = {**OURS, **WITH_REFLECTION}.get(method)
            asked = reflect if method in WITH_REFLECTION or method in PEERS_WITH_REFLECTION else None
            if options is None:
                kept = peer_cell(given.python, server, server.log, method, seed, asked)
            else:
                kept = our_cell(Ours(given.binary, work, server.url), server.log, method, options, seed, asked)
            kept = {"method": method, "seed": seed, "made_from": made_from, "commit": given.commit, **kept}
            assert len(kept["scores"]) == sum(row.split == "test" for row in tickets()), f"{name}: {len(kept['scores'])}"
            write_whole(path, kept)
        cells[(method, seed)] = kept
    if model is not None:
        model.process.stdin.close()
        model.process.wait()
    return cells


def by_method(cells: list) -> dict:
    """Per method the cells of its seeds."""
    methods: dict = {}
    for cell in cells:
        methods.setdefault(cell["method"], []).append(cell)
    return methods


def example_means(cells: list) -> list:
    """The score of each test ticket, in the order of their ids: the mean over the seeds."""
    return [rounded(sum(cell["scores"][id] for cell in cells), len(cells)) for id in sorted(cells[0]["scores"])]


def shown(micro: int) -> str:
    return f"{micro / 1_000_000:.3f}"


def signed(micro: int) -> str:
    return f"{micro / 1_000_000:+.3f}"


def table(kept: dict) -> str:
    """The section of `bench/RESULTS.md`, from the kept results alone."""
    methods = by_method(kept["cells"])
    first = example_means(methods[REFERENCE])
    lines = [
        BEGIN,
        "## Programs that get better",
        "",
        f"Written by `bench/run improve` on {kept['day']}, commit {kept['commit']}.",
        f"Machine: {kept['machine']}. Peer: dspy {kept['dspy']}.",
        "",
        f"SmolLM2-135M on one llama.cpp server, temperature 0, every answer held to the schema by the server; 400 tickets: 100 train, "
        f"80 holdout, 220 test. A search has {BUDGET} model calls, counted at the server; the test is apart. The score of a ticket "
        f"is the mean over the seeds ({', '.join(map(str, kept['seeds']))}). The difference is that of the row less "
        f"`{REFERENCE}`, on the same tickets. MIPROv2 has the same six instructions as `mipro_lite.v1`, in place of those that it would "
        "have this model write. BootstrapFewShot and random search have the numbers of demos that are their defaults.",
        "",
        "| method | score | 95 % interval | each seed | calls | minutes | difference | 95 % interval | verdict |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for method in [*OURS, *WITH_REFLECTION, *PEERS, *PEERS_WITH_REFLECTION]:
        name = method if method in {**OURS, **WITH_REFLECTION} else f"DSPy {method}"
        if method not in methods:
            lines.append(f"| {name} | not run: no key for a reflecting model in the environment | | | | | | | |")
            continue
        cells = methods[method]
        means = example_means(cells)
        mean, low, high = mean_interval(f"improve|{method}", means)
        each = ", ".join(shown(rounded(sum(cell["scores"].values()), len(cell["scores"]))) for cell in cells)
        calls = ", ".join(str(cell["calls"]) for cell in cells)
        minutes = ", ".join(f"{cell['wall'] / 60:.0f}" for cell in cells)
        row = f"| {name} | {shown(mean)} | {shown(low)} .. {shown(high)} | {each} | {calls} | {minutes} |"
        if method == REFERENCE:
            lines.append(f"{row} | | |")
        else:
            seen = paired(f"improve|{method}|{REFERENCE}", means, first)
            lines.append(f"{row} {signed(seen.mean)} | {signed(seen.low)} .. {signed(seen.high)} | {seen.verdict} |")
    lines += ["", *goals(methods), END, ""]
    return "\n".join(lines)


def goals(methods: dict) -> list:
    """What we set ourselves, beside what was seen."""
    lines = ["| goal | seen | |", "| --- | --- | --- |"]

    def line(goal: str, seen, met: bool) -> None:
        lines.append(f"| {goal} | {seen.verdict}, {signed(seen.mean)} | {'met' if met else 'missed'} |")

    for method, ours in COUNTERPARTS.items():
        if method in methods and ours in methods:
            seen = paired(f"improve|{method}|{ours}", example_means(methods[method]), example_means(methods[ours]))
            line(f"DSPy {method} is not better than `{ours}`", seen, seen.verdict != "better")
    for ours in OURS:
        seen = paired(f"improve|{ours}|as written", example_means(methods[ours]), example_means(methods["as written"]))
        line(f"`{ours}` is better than DSPy as written", seen, seen.verdict == "better")
    return lines


def with_section(text: str, section: str) -> str:
    """The page with this section in the place of the one before, or at the end."""
    if BEGIN in text and END in text:
        before, rest = text.split(BEGIN, 1)
        return before + section.rstrip("\n") + rest.split(END, 1)[1]
    return text.rstrip("\n") + "\n\n" + section


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--check", action="store_true", help="compare the section of RESULTS.md with the kept results, and end")
    asked.add_argument("--python", default=sys.executable)
    asked.add_argument("--binary", type=Path)
    asked.add_argument("--model", help="the folder of packages with the model and its server")
    asked.add_argument("--folder", type=Path, default=ROOT / "target/improve")
    asked.add_argument("--commit", default="unknown")
    asked.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=SEEDS)
    asked.add_argument("--publish", action="store_true")
    given = asked.parse_args()
    kept, page = ROOT / "bench/improve/results.json", ROOT / "bench/RESULTS.md"
    check()
    if given.check:
        if not kept.exists():
            sys.exit("bench/improve/results.json is not there: `bench/run improve` makes it")
        if table(json.loads(kept.read_text())).strip() not in page.read_text():
            sys.exit("bench/RESULTS.md has another table than the kept results: run `bench/run improve` again")
        return
    given.binary = given.binary.resolve()
    asked_version = "import importlib.metadata as m; print(m.version('dspy'))"
    dspy = subprocess.run([given.python, "-c", asked_version], capture_output=True, text=True, check=True).stdout.strip()
    reflect = reflecting()
    cells = run_cells(given, dspy, reflect)
    results = {
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": given.commit,
        "machine": machine(),
        "dspy": dspy,
        "seeds": given.seeds,
        "cells": list(cells.values()),
    }
    section = table(results)
    print(section)
    if given.publish:
        kept.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        page.write_text(with_section(page.read_text(), section))


if __name__ == "__main__":
    main()
