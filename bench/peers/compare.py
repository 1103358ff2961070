"""Runs the same workloads on every runtime, in turns, and writes one table of ratios.

The contenders take turns, round by round, so that a busy moment of the machine hits all of them; of each the best round
counts. What a peer cannot do is said in its cell, never left out. `bench/run` prepares what this needs.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
PYTHON_PEERS = ["langgraph", "pydantic_ai", "openai_agents", "smolagents", "dspy"]
OURS = "cantrip"
# After which a run is given up.
LIMIT_SECONDS = 240
# Starts that take no longer than these seconds have so many rounds.
COLD_ROUNDS, COLD_SECONDS = 20, 0.2


class Pace(NamedTuple):
    """How often everyone runs, and after how many seconds once is enough."""

    rounds: int
    # A run of a few programs is over in moments, and a busy one of those moments is all it has.
    code_rounds: int
    slow_seconds: int


WHOLE, QUICK = Pace(3, 7, 10), Pace(2, 3, 3)


class Contender:
    def __init__(self, name: str, command: list, environment: dict) -> None:
        self.name, self.command, self.environment = name, command, environment

    def run(self, workload: str, arguments: dict) -> dict:
        words = [*self.command, workload, *(f"{key}={value}" for key, value in arguments.items())]
        began = time.perf_counter()
        try:
            ran = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            return {"failed": f"over {LIMIT_SECONDS} s", "process": LIMIT_SECONDS}
        wall = time.perf_counter() - began
        if ran.returncode != 0:
            return {"failed": (ran.stderr.strip().splitlines() or ["it said nothing"])[-1]}
        took = json.loads(ran.stdout.strip().splitlines()[-1])
        calls, turns = took.get("calls"), took.get("turns")
        if calls is not None and calls != turns:
            return {"failed": f"{calls} calls in {turns} turns"}
        return {**took, "process": wall}


def best(rounds: list, key: str) -> dict:
    sound = [took for took in rounds if key in took]
    return min(sound, key=lambda took: took[key]) if sound else rounds[0]


def race(
    contenders: list,
    workload: str,
    arguments: dict,
    pace: Pace,
    key: str,
    ours: str | None = None,
    floor: str | None = None,
) -> dict:
    """Each contender's best round, by `key`. `ours` is what we call the workload, if we have several of its kind; `floor` is
    what our rounds measure beside themselves, of which the least of all of them is told, as of everything else."""
    taken = {contender.name: [] for contender in contenders}
    for _ in range(pace.code_rounds if workload == "code" else pace.rounds):
        for contender in contenders:
            mine = taken[contender.name]
            if mine and mine[0].get("process", 0) > pace.slow_seconds:
                continue
            named = ours if ours and contender.name == OURS else workload
            print(f"  {named} {arguments} {contender.name}", file=sys.stderr, flush=True)
            mine.append(contender.run(named, arguments))
    least = min((took[floor] for took in taken.get(OURS, []) if floor in took), default=None)
    taken = {name: best(rounds, key) for name, rounds in taken.items()}
    if least is not None:
        taken[OURS] = {**taken[OURS], floor: least}
    if OURS in taken and "failed" in taken[OURS]:
        # Every cell is told beside ours: without it there is no table.
        sys.exit(f"our own side of {workload} failed: {taken[OURS]['failed']}")
    return taken


def fastest(taken: dict, key: str) -> str | None:
    """The peer that took least; none if none came through."""
    through = [name for name in taken if name != OURS and key in taken[name]]
    return min(through, key=lambda name: taken[name][key], default=None)


def cell(took: dict, shown, ours: dict, ratio) -> str:
    """What one contender took, and how many times ours that is."""
    for why in ("failed", "absent"):
        if why in took:
            return took[why]
    told = shown(took) + (f", {took['note']}" if took.get("note") else "")
    return told if took is ours else f"{told} ({ratio(took) / ratio(ours):.1f} x)"


class Table:
    def __init__(self, contenders: list) -> None:
        self.names = [contender.name for contender in contenders]
        self.lines = ["| workload | " + " | ".join(self.names) + " |", "| --- |" + " --- |" * len(self.names)]

    def row(self, what: str, taken: dict, shown, ratio) -> None:
        ours = taken[OURS]
        cells = [cell(taken[name], shown, ours, ratio) if name in taken else "-" for name in self.names]
        self.lines.append(f"| {what} | " + " | ".join(cells) + " |")


class Goals:
    """What we set ourselves, beside what was seen: a goal that is missed stands in the table like one that is met."""

    def __init__(self) -> None:
        self.lines = ["| goal | seen | |", "| --- | --- | --- |"]

    def most(self, what: str, seen: float, limit: float, unit: str = "x") -> None:
        self.line(f"{what}: at most {limit:g} {unit}", f"{seen:.3g} {unit}", seen <= limit)

    def times(self, what: str, taken: dict, peer: str, measure, least: float) -> None:
        """So many times below a peer, at least."""
        if any("failed" in taken[name] for name in (OURS, peer)):
            self.line(f"{what}: {least:g} x below {peer}", "not measured", False)
            return
        seen = measure(taken[peer]) / measure(taken[OURS])
        self.line(f"{what}: {least:g} x below {peer}", f"{seen:.1f} x", seen >= least)

    def line(self, goal: str, seen: str, met: bool) -> None:
        self.lines.append(f"| {goal} | {seen} | {'met' if met else 'missed'} |")


def each(key: str):
    return lambda took: took[key] / took["turns"]


def micros(key: str):
    return lambda took: f"{took[key] / took['turns'] * 1e6:.0f} us"


def with_half(took: dict) -> str:
    half = f", p50 {took['p50'] * 1e6:.0f} us" if "p50" in took else ""
    return micros("wall")(took) + half


def beside_ideal(took: dict) -> str:
    return f"{took['wall'] / took['ideal']:.2f} x ideal, {took['cpu']:.2f} s CPU, {took['peak_kib'] >> 10} MiB"


def started(words: list, environment: dict) -> dict:
    """A process from its start to its end, as the system accounts for it."""
    began = time.perf_counter()
    process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        return {"failed": f"it ended with {process.returncode}"}
    return {"process": time.perf_counter() - began, "peak_kib": used.ru_maxrss}


def cold(contenders: list, rounds: int, spell: Path) -> dict:
    """One cast, from the start of its process. Ours is the binary that people use, with a spell that it reads."""
    taken = {contender.name: [] for contender in contenders}
    for at in range(COLD_ROUNDS):
        for contender in contenders:
            if at >= rounds and best(taken[contender.name], "process").get("process", 1) > COLD_SECONDS:
                continue
            words = [*contender.command, "cold"]
            if contender.name == OURS:
                binary = contender.environment["BENCH_CANTRIP"]
                words = [binary, "cast", str(spell), "go", "--store", "memory:", "--quiet"]
            taken[contender.name].append(started(words, contender.environment))
    return {name: best(rounds, "process") for name, rounds in taken.items()}


def measured(contenders: list, pace: Pace) -> str:
    quick = pace == QUICK
    goals = Goals()
    ours, peers = contenders[0], {contender.name: contender for contender in contenders[1:]}

    def of(*names: str) -> list:
        return [ours, *(peers[name] for name in names)]

    table = Table(contenders)
    for turns in [100] if quick else [50, 200, 1000]:
        taken = race(contenders, "loop", {"turns": turns}, pace, "cpu")
        table.row(f"loop, {turns} turns: CPU a turn", taken, micros("cpu"), each("cpu"))
        for peer, least in {200: {"langgraph": 50, "rig": 20}, 1000: {"langgraph": 40, "rig": 40}}.get(turns, {}).items():
            goals.times(f"loop, {turns} turns, CPU a turn", taken, peer, each("cpu"), least)
    lengths = [100, 1000] if quick else [100, 10_000]
    short, long = (race([ours], "loop_unsent", {"turns": turns}, pace, "cpu")[OURS] for turns in lengths)
    growth = each("cpu")(long) / each("cpu")(short)
    table.row(
        f"loop, {lengths[1]} turns, nothing sent: CPU a turn, beside {lengths[0]} turns",
        {OURS: long},
        lambda took: f"{micros('cpu')(took)}, {growth:.2f} x",
        each("cpu"),
    )
    goals.most(f"loop, a turn of {lengths[1]} beside one of {lengths[0]}, nothing sent", growth, 1.5)
    for turns in [100] if quick else [200, 500]:
        taken = race(of("langgraph", "openai_agents"), "durable", {"turns": turns}, pace, "wall", floor="bare")
        table.row(f"durable, one agent, {turns} turns: wall a turn", taken, with_half, each("wall"))
        table.row(
            f"durable, {turns} turns of 1 KB: bytes on disk a turn",
            taken,
            lambda took: f"{took['disk'] / took['turns']:.0f}",
            each("disk"),
        )
        bare = each("wall")(taken[OURS]) / each("bare")(taken[OURS])
        table.row(
            f"durable, {turns} turns: wall, beside the same bytes in two bare SQLite commits a turn",
            {OURS: taken[OURS]},
            lambda took: f"{micros('bare')(took)} bare, {bare:.2f} x",
            each("bare"),
        )
        durable = fastest(taken, "wall") or "langgraph"
        goals.times(f"durable, {turns} turns, wall a turn", taken, durable, each("wall"), 6)
        goals.most(f"durable, {turns} turns, p50 of a turn", taken[OURS]["p50"] * 1e3, 1, "ms")
        goals.most(f"durable, {turns} turns, wall beside two bare commits of the same bytes", bare, 3)
        goals.most(f"durable, {turns} turns, bytes beside the results alone", taken[OURS]["disk"] / (turns << 10), 2)
    agents = 64 if quick else 256
    taken = race(of("langgraph"), "durable", {"turns": 20, "agents": agents}, pace, "wall")
    table.row(f"durable, {agents} agents: wall a turn", taken, micros("wall"), each("wall"))
    goals.times(f"durable, {agents} agents, wall a turn", taken, "langgraph", each("wall"), 20)
    fleet = ["langgraph", "pydantic_ai", "openai_agents", "smolagents", "rig"]
    for agents in [25] if quick else [200, 1000]:
        given = {"turns": 20, "agents": agents, "latency_ms": 100}
        taken = race(of(*fleet), "fleet", given, pace, "wall")
        table.row(
            f"fleet, {agents} agents x 20 turns at 100 ms: wall beside the ideal",
            taken,
            beside_ideal,
            lambda took: took["wall"],
        )
        limit = 1.1 if agents == 1000 else 1.03
        goals.most(f"fleet of {agents}, wall", taken[OURS]["wall"] / taken[OURS]["ideal"], limit, "x ideal")
        goals.times(f"fleet of {agents}, CPU", taken, "rig", lambda took: took["cpu"], 1)
        if agents == 200:
            goals.most(f"fleet of {agents}, CPU", taken[OURS]["cpu"], 0.3, "s")
    alone = [("fleet_durable", 25)] if quick else [("fleet_durable", 200), ("fleet", 10_000)]
    for workload, agents in alone:
        taken = race([ours], workload, {"turns": 20, "agents": agents, "latency_ms": 100}, pace, "wall")
        kept = "durable " if workload == "fleet_durable" else ""
        table.row(f"{kept}fleet, {agents} agents x 20 turns at 100 ms", taken, beside_ideal, lambda took: took["wall"])
        if workload == "fleet_durable":
            goals.most(f"durable fleet of {agents}, wall", taken[OURS]["wall"] / taken[OURS]["ideal"], 1.1, "x ideal")
        else:
            goals.most(f"fleet of {agents}, memory", taken[OURS]["peak_kib"] / (1 << 20), 2, "GiB")
    turns = {"turns": 100}
    for medium in ["javascript", "python"]:
        taken = race(of("smolagents", "dspy"), "code", turns, pace, "wall", ours=medium)
        table.row(f"code, {medium}, 100 turns: wall a turn", taken, micros("wall"), each("wall"))
        table.row(
            f"code, {medium}: a sandbox that is ready", taken, lambda took: f"{took['ready'] * 1e3:.2f} ms", lambda took: took["ready"]
        )
        goals.times(f"code, {medium}, wall a turn", taken, "smolagents", each("wall"), 10)
    taken = race(of("langgraph"), "fork", {"turns": 200}, pace, "wall")
    table.row(
        "fork at turn 100 of 200, and one more turn",
        taken,
        lambda took: f"{took['wall'] * 1e3:.1f} ms, {took['calls_again']} tools again",
        lambda took: took["wall"],
    )
    goals.most("fork at turn 100 of 200, and one more turn", taken[OURS]["wall"] * 1e3, 2, "ms")
    goals.most("fork, tools that run again", taken[OURS]["calls_again"], 0, "tools")
    deltas = 20_000 if quick else 200_000
    taken = race(of("langgraph", "pydantic_ai"), "stream", {"deltas": deltas}, pace, "wall")
    table.row(
        f"stream, {deltas:,} deltas in one item",
        taken,
        lambda took: f"{took['wall']:.3f} s",
        lambda took: took["wall"],
    )
    goals.most(f"stream, {deltas:,} deltas", taken[OURS]["wall"], 0.3, "s")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([ours.environment["BENCH_CANTRIP"], "new", "hello"], cwd=folder, check=True, capture_output=True)
        taken = cold(contenders, pace.rounds, Path(folder) / "hello.toml")
    nothing = min(started(["true"], ours.environment)["process"] for _ in range(COLD_ROUNDS))
    table.row(
        f"cold start of one cast; a process that does nothing takes {nothing * 1e3:.1f} ms",
        taken,
        lambda took: f"{took['process'] * 1e3:.0f} ms, {took['peak_kib'] / 1024:.0f} MiB",
        lambda took: took["process"],
    )
    goals.most("cold start of one cast", taken[OURS]["process"] * 1e3, 10, "ms")
    goals.most("cold start of one cast, memory", taken[OURS]["peak_kib"] / 1024, 15, "MiB")
    return "\n".join(table.lines) + "\n\n## What we set ourselves\n\n" + "\n".join(goals.lines) + "\n"


def machine() -> str:
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    return f"{os.cpu_count()} cores {model}, {platform.system()} {platform.release()}, Python {platform.python_version()}"


def versions(python: str) -> str:
    asked = "import importlib.metadata as m; print(', '.join(f'{p} {m.version(p)}' for p in "
    asked += "['langgraph', 'langgraph-checkpoint-sqlite', 'pydantic-ai-slim', 'openai-agents', 'smolagents', 'dspy']))"
    return subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()


def rig_version() -> str:
    pinned = [line for line in (HERE / "rig/Cargo.toml").read_text().splitlines() if line.startswith("rig-agent")]
    return "rig-agent " + pinned[0].split('"=')[1].split('"')[0]


def improve_section(page: Path) -> str:
    """What `bench/run improve` wrote to the page, which takes hours to measure and stays until it is measured again."""
    begin, end = "<!-- improve: written by bench/run improve -->", "<!-- end of improve -->"
    text = page.read_text() if page.exists() else ""
    if begin not in text or end not in text:
        return ""
    return "\n" + begin + text.split(begin, 1)[1].split(end, 1)[0] + end + "\n"


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--python", required=True)
    asked.add_argument("--binaries", required=True, type=Path)
    asked.add_argument("--rig", required=True, type=Path)
    asked.add_argument("--commit", default="unknown")
    asked.add_argument("--quick", action="store_true")
    asked.add_argument("--out", type=Path)
    given = asked.parse_args()
    given.binaries = given.binaries.resolve()
    environment = {**os.environ, "BENCH_CANTRIP": str(given.binaries / "cantrip"), "PYTHONDONTWRITEBYTECODE": ""}
    ours = Contender(OURS, [str(given.binaries / "alongside")], environment)
    others = [Contender(name, [given.python, str(HERE / f"{name}_peer.py")], environment) for name in PYTHON_PEERS]
    others.append(Contender("rig", [str(given.rig)], environment))
    pace = QUICK if given.quick else WHOLE
    table = measured([ours, *others], pace)
    text = (
        "# Beside the peers\n\n"
        f"Written by `bench/run{' --quick' if given.quick else ''}` on {time.strftime('%Y-%m-%d', time.gmtime())}, "
        f"commit {given.commit}.\nMachine: {machine()}.\nPeers: {versions(given.python)}, {rig_version()}.\n\n"
        f"The best of several rounds in turns (one where a round takes more than {pace.slow_seconds} s); in brackets how many "
        "times ours that is.\n\n" + table
    )
    print(text)
    if given.out:
        given.out.write_text(text + improve_section(given.out))


if __name__ == "__main__":
    main()
