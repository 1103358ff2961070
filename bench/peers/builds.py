"""Runs our own workloads on two builds of Cantrip, in turns, and prints one table of ratios.

A change that should cost nothing is shown with it: build the commit before and the commit after with the profile `dist`, keep
both pairs of binaries (`alongside` and `cantrip`), and run `bench/run --before FOLDER`.
"""

import argparse
import os
import subprocess
import tempfile
from pathlib import Path

from compare import COLD_ROUNDS, Contender, best, started

# The workload, its arguments, the measure, and how many rounds each build has.
WORKLOADS = [
    ("loop", {"turns": 200}, "cpu", 7),
    ("loop_unsent", {"turns": 1000}, "cpu", 7),
    ("durable", {"turns": 200}, "wall", 7),
    ("durable", {"turns": 20, "agents": 64}, "wall", 5),
    ("fleet", {"turns": 20, "agents": 200, "latency_ms": 100}, "cpu", 3),
    ("fleet_durable", {"turns": 20, "agents": 25, "latency_ms": 100}, "cpu", 3),
    ("javascript", {"turns": 100}, "wall", 7),
    ("python", {"turns": 100}, "wall", 7),
    ("fork", {"turns": 200}, "wall", 7),
    ("stream", {"deltas": 200_000}, "wall", 7),
]


def build(name: str, binaries: Path) -> Contender:
    environment = {**os.environ, "BENCH_CANTRIP": str(binaries / "cantrip")}
    return Contender(name, [str(binaries / "alongside")], environment)


def race(builds: list, rounds: int, run) -> list:
    taken = {contender.name: [] for contender in builds}
    for at in range(rounds):
        # Whoever comes first in a round comes second in the next one.
        for contender in builds if at % 2 == 0 else reversed(builds):
            taken[contender.name].append(run(contender))
    return [taken[contender.name] for contender in builds]


def row(what: str, key: str, before: list, after: list) -> str:
    failed = [took["failed"] for took in before + after if "failed" in took]
    if failed:
        return f"| {what} | {failed[0]} | | |"
    (old, new), spread = (best(rounds, key)[key] for rounds in (before, after)), max(took[key] for took in before)
    return f"| {what} | {old * 1e3:.1f} ms (to {spread * 1e3:.1f}) | {new * 1e3:.1f} ms | {new / old:.2f} x |"


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("before", type=Path)
    asked.add_argument("after", type=Path)
    given = asked.parse_args()
    builds = [build("before", given.before.resolve()), build("after", given.after.resolve())]
    print("| workload, best round of each (slowest) | before | after | after / before |\n| --- | --- | --- | --- |", flush=True)
    for workload, arguments, key, rounds in WORKLOADS:
        before, after = race(builds, rounds, lambda contender: contender.run(workload, arguments))
        told = ", ".join(f"{value} {name}" for name, value in arguments.items())
        print(row(f"{workload}, {told}: {key}", key, before, after), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([builds[1].environment["BENCH_CANTRIP"], "new", "hello"], cwd=folder, check=True, capture_output=True)
        cast = ["cast", f"{folder}/hello.toml", "go", "--store", "memory:", "--quiet"]
        cold = race(builds, COLD_ROUNDS, lambda one: started([one.environment["BENCH_CANTRIP"], *cast], one.environment))
    print(row("cold start of one cast", "process", *cold), flush=True)


main()
