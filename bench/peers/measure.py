"""What every peer's program shares: its arguments, the clock, and the one line of JSON it answers with."""

import asyncio
import json
import os
import resource
import sys
import tempfile
import time

RESULT_BYTES = 1024


def result(n: int) -> str:
    """What the tool gives: a kilobyte that no two turns share."""
    text = f"{n:020d} "
    while len(text) < RESULT_BYTES:
        text += "the quick brown fox jumps over the lazy dog and looks back at it; "
    return text[:RESULT_BYTES]


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
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DISK")) as folder:
        ran = workloads[name](folder=folder, **arguments)
        took = asyncio.run(ran) if asyncio.iscoroutine(ran) else ran
    print(json.dumps({**took, "peak_kib": peak_kib()}))
