"""The tickets and the instructions that both sides of the head to head are given."""

import csv
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TICKETS = ROOT / "examples/tickets/tickets.csv"
INSTRUCTIONS = ROOT / "bench/improve/instructions.txt"


class Row(NamedTuple):
    id: str
    split: str
    label: str
    text: str


def tickets() -> list:
    with TICKETS.open(newline="", encoding="utf-8") as opened:
        return [Row(**row) for row in csv.DictReader(opened)]


def instructions() -> list:
    return [text.strip() for text in INSTRUCTIONS.read_text(encoding="utf-8").split("\n---\n")]


def spared_file(calls: Path) -> Path:
    """The file beside the count of calls that has the seconds of each repeated answer."""
    return calls.with_name("spared")


def spared_seconds(calls: Path) -> float:
    """The time that the repeated answers of a cell took when they were asked for first."""
    file = spared_file(calls)
    return sum(map(float, file.read_text().split())) if file.exists() else 0.0
