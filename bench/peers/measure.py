"""What every peer's program shares: its arguments, the clock, and the one line of JSON it answers with."""

import asyncio
import json
import os
import resource
import sys
import tempfile
import time

RESULT_BYTES = 1024
# Turns of an agent before the one that counts.
WARM_TURNS = 2
# The words of `bench/src/said.rs`, drawn in the same way.
WORDS = (
    "the of and to in that is was request answer server error file line while reading could not found between before "
    "after thread record written time under every which because without another"
).split()
RESULTS: list = []


def words(n: int) -> str:
    """What the tool gives: a kilobyte that no two turns share."""
    text, state = f"{n:020d} ", n
    while len(text) < RESULT_BYTES:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        text += WORDS[state >> 59] + " "
    return text[:RESULT_BYTES]


def result(n: int) -> str:
    """Made before the clock starts."""
    return RESULTS[n]


class Clock:
    def __init__(self) -> None:
        self.wall = time.perf_counter()
        self.cpu = time.process_time()

    def read(self) -> dict:
        return {"wall": time.perf_counter() - self.wall, "cpu": time.process_time() - self.cpu}


def peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def folder_bytes(folder: str) -> int:
    return sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names)


def main(workloads: dict) -> None:
    """`program WORKLOAD key=number...`: runs it and prints what it took."""
    name, given = sys.argv[1], dict(pair.split("=", 1) for pair in sys.argv[2:])
    arguments = {key: int(value) for key, value in given.items()}
    RESULTS.extend(words(n) for n in range(max(arguments.get("turns", 0), WARM_TURNS)))
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DISK")) as folder:
        ran = workloads[name](folder=folder, **arguments)
        took = asyncio.run(ran) if asyncio.iscoroutine(ran) else ran
    print(json.dumps({**took, "peak_kib": peak_kib()}))
