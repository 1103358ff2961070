"""The statistics of a comparison, as `docs/evaluating.md` describes them, written a second time.

The product decides with its own; this table must not depend on them. Scores are whole millionths, sums are exact, and every
random number comes from a label. `check()` computes published values before anything is decided with them.
"""

import hashlib
import math
from typing import NamedTuple

RESAMPLES = 10_000
Z = 1.959963984540054
WORD = 2**64 - 1


class Random:
    """SplitMix64, seeded with the first 16 hexadecimal digits of the SHA-256 of a label."""

    def __init__(self, label: str) -> None:
        self.state = int(hashlib.sha256(label.encode()).hexdigest()[:16], 16)

    def next(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & WORD
        mixed = self.state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & WORD
        return mixed ^ (mixed >> 31)

    def below(self, n: int) -> int:
        return (self.next() * n) >> 64


def rounded(a: int, b: int) -> int:
    """a / b to the nearest whole number, half up."""
    return (2 * a + b) // (2 * b)


class Difference(NamedTuple):
    """The mean of paired differences with the bounds of a first look, and how the two sides compare."""

    mean: int
    low: int
    high: int
    flip_ppm: int
    wins: int
    losses: int
    verdict: str


def resampled(label: str, differences: list) -> list:
    """The means of as many differences as there are, drawn anew, in order of size."""
    random, n = Random(label), len(differences)
    return sorted(rounded(sum(differences[random.below(n)] for _ in range(n)), n) for _ in range(RESAMPLES))


def flip_ppm(label: str, differences: list) -> int:
    """How often the sum is at least as large if each difference has a random sign, in millionths, rounded up."""
    random, total = Random(label), sum(differences)
    count = 0
    for _ in range(RESAMPLES):
        drawn = sum(each if random.next() & 1 else -each for each in differences)
        count += drawn >= total
    return -(-(1 + count) * 1_000_000 // (RESAMPLES + 1))


def paired(label: str, ours: list, others: list) -> Difference:
    """How much better the first is than the second on the same examples, at the level of a first look."""
    differences = [a - b for a, b in zip(ours, others, strict=True)]
    means = resampled(label, differences)
    low, high = means[250], means[9749]
    verdict = "better" if low > 0 else "worse" if high < 0 else "undecided"
    return Difference(
        rounded(sum(differences), len(differences)),
        low,
        high,
        flip_ppm(f"{label}|flip", differences),
        sum(each > 0 for each in differences),
        sum(each < 0 for each in differences),
        verdict,
    )


def mean_interval(label: str, scores: list) -> tuple:
    """The mean of scores with its 95 % interval: Wilson's for scores of 0 and 1, else resampled."""
    n, total = len(scores), sum(scores)
    if all(score in (0, 1_000_000) for score in scores):
        p, q = total / 1_000_000 / n, Z * Z / n
        half = Z * math.sqrt(p * (1 - p) / n + q / (4 * n))
        ends = ((p + q / 2 - half) / (1 + q), (p + q / 2 + half) / (1 + q))
        return rounded(total, n), *(round(end * 1_000_000) for end in ends)
    means = resampled(f"{label}|score", scores)
    return rounded(total, n), means[250], means[9749]


def check() -> None:
    """Computes published values; a mistake here would be published too."""
    random = Random("golden|1")
    assert [random.next() for _ in range(3)] == [7650433452319907143, 9689236213577308232, 13436230594407823568]
    random = Random("golden|1")
    assert [random.below(10) for _ in range(8)] == [4, 5, 7, 4, 1, 6, 2, 2]
    for share, ends in {(19, 55): (233627, 477461), (33, 55): (468128, 718815), (0, 30): (0, 113513)}.items():
        x, n = share
        assert mean_interval("", [1_000_000] * x + [0] * (n - x))[1:] == ends, share
    signs = [0, 1, 0, 1, 1, 0, 0, 1, -1, 0, 1, 0, 0, 1, 0, 0, 1, 0, -1, 1]
    seen = paired("golden|1", [1_000_000 * sign for sign in signs], [0] * len(signs))
    assert seen == (300000, 0, 600000, 54095, 8, 2, "undecided"), seen
