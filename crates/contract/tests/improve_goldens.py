"""A second implementation of what is hashed and computed for datasets, jobs and evaluations.

It was written from the specification with the standard library alone, and compares every value of the table whose path
it is given. It prints each value that differs; the exit status is 1 then.
"""

import hashlib
import json
import math
import re
import sys
from fractions import Fraction

MASK = (1 << 64) - 1
MICRO = 1_000_000
faults = []


def compare(name, found, wanted):
    if found != wanted:
        faults.append(f"{name}: {found!r}, and the table has {wanted!r}")


def canonical(value):
    # The table has no key and no number that this writes otherwise than RFC 8785.
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def digits(data):
    return hashlib.sha256(data).hexdigest()


def stable(value):
    return "sha256:" + digits(canonical(value))


def leaves(value):
    if isinstance(value, dict):
        for key in sorted(value):
            yield from leaves(value[key])
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, str):
        yield value
    elif value is not None:
        yield canonical(value).decode()


def near_form(value):
    return re.sub(r"[\W_]+", " ", "\n".join(leaves(value)).lower()).strip()


def bucket(seed, key):
    return int(digits(f"{seed}|{key}".encode())[:8], 16) % 100


class Random:
    """SplitMix64 by a label."""

    def __init__(self, label):
        self.state = int(digits(label.encode())[:16], 16)

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        mixed = self.state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
        return mixed ^ (mixed >> 31)

    def below(self, bound):
        return (self.next() * bound) >> 64

    def shuffled(self, items):
        items = list(items)
        for last in range(len(items) - 1, 0, -1):
            other = self.below(last + 1)
            items[last], items[other] = items[other], items[last]
        return items


def quotient(a, b):
    return (2 * a + b) // (2 * b)


def bootstrap(label, units):
    random, means = Random(label), []
    for _ in range(10_000):
        drawn = [units[random.below(len(units))] for _ in units]
        means.append(quotient(sum(d for _, d in drawn), sum(w for w, _ in drawn)))
    return sorted(means)


def flips(label, differences):
    random, total, count = Random(label), sum(differences), 0
    for _ in range(10_000):
        # Every difference takes one draw, whether or not it is zero.
        count += sum(d if random.next() & 1 else -d for d in differences) >= total
    return count


def ppm_up(a, b):
    return -(-a * MICRO // b)


def wilson(right, of):
    z = 1.959963984540054
    p, q = right / of, z * z / of
    middle, half = p + q / 2, z * math.sqrt(p * (1 - p) / of + q / (4 * of))
    return [math.floor((middle + side * half) / (1 + q) * MICRO + 0.5) for side in (-1, 1)]


def sign(wins, losses):
    n = wins + losses
    return min(MICRO, ppm_up(2 * sum(math.comb(n, i) for i in range(max(wins, losses), n + 1)), 2**n))


def check_examples(table):
    given = table["example"]
    key = {"v": 1, "kind": "example", "signature_id": given["subject"]}
    key |= {"input": given["input"], "expected": given["expected"]}
    compare("example_id", "ex_" + digits(canonical(key))[:32], given["example_id"])
    content = {"input": given["input"], "expected": given["expected"], "reward": None, "weight": 1, "group": None}
    compare("content_hash", stable(content), given["content_hash"])
    compare("labelled", stable(content | {"labels": given["labels"]}), given["labelled_content_hash"])
    near = near_form(given["input"])
    compare("near_form", near, given["near_form"])
    compare("near_hash", "sha256:" + digits(near.encode()), given["near_hash"])
    compare("bucket", bucket(given["split_seed"], stable(given["input"])), given["bucket"])
    dataset = {"v": 1, "kind": "dataset", "signature_id": given["subject"], "split": given["shares"]}
    entry = [given["example_id"], given["content_hash"], given["split"]]
    dataset |= {"split_seed": given["split_seed"], "examples": [entry]}
    compare("dataset_hash", stable(dataset), given["dataset_hash"])
    several = table["buckets"]
    compare("buckets", [bucket(several["split_seed"], key) for key in several["keys"]], several["buckets"])


def check_jobs(table):
    for case in table["metrics"]:
        compare("metric_hash", stable(case["metric"]), case["metric_hash"])
    job, spec = table["job"], table["job"]["spec"]
    compare("job_hash", stable(spec), job["job_hash"])
    report = {"v": 1, "kind": "report", "signature_id": spec["signature_id"]}
    report |= {"job_hash": job["job_hash"], "selected": spec["subject"]}
    compare("report_id", "evr_" + digits(canonical(report))[:24], job["report_id"])
    evaluation = {"v": 1, "kind": "eval", "report_id": job["report_id"]}
    evaluation |= {"compiled_id": spec["subject"], "split": spec["split"]}
    compare("eval_id", "eval_" + digits(canonical(evaluation))[:24], job["eval_id"])
    trial = dict(table["trial"])
    wanted = trial.pop("idempotency_key")
    compare("idempotency_key", "job:" + digits(canonical({"v": 1, "kind": "trial"} | trial))[:32], wanted)


def check_report(table):
    given = table["report"]
    body, rows = given["body"], []
    for number, difference in enumerate(given["differences"], 1):
        scores = {"baseline": MICRO * (difference < 1), "subject": MICRO * (difference > -1)}
        rows += [[f"ex_{number:02}", side, 1, score, None, None] for side, score in scores.items()]
    compare("results_hash", stable(rows), given["results_hash"])
    compare("results_hash of the body", body["results_hash"], given["results_hash"])
    compare("report_hash", stable(body), given["report_hash"])
    label, micros = body["eval_id"], [MICRO * d for d in given["differences"]]
    means = bootstrap(label, [[1, d] for d in micros])
    delta, n = body["delta"], len(micros)
    compare("delta", [quotient(sum(micros), n), means[250], means[9749]], [delta["mean"], delta["low"], delta["high"]])
    compare("look", [means[250], means[9749]], [body["look"]["low"], body["look"]["high"]])
    wins, losses = sum(d > 0 for d in micros), sum(d < 0 for d in micros)
    compare("counts", [wins, losses, n - wins - losses], [delta["wins"], delta["losses"], delta["ties"]])
    compare("sign_p_ppm", sign(wins, losses), delta["sign_p_ppm"])
    compare("flip_p_ppm", ppm_up(1 + flips(f"{label}|flip", micros), 10_001), delta["flip_p_ppm"])
    for side, name in (("subject", "score"), ("baseline", "baseline")):
        right = sum(row[3] == MICRO for row in rows if row[1] == side)
        found = [quotient(right * MICRO, n), *wilson(right, n)]
        compare(name, found, [body[name]["mean"], body[name]["low"], body[name]["high"]])
    compare("detectable", math.floor(math.sqrt(7.84 * 0.3 / n) * MICRO + 0.5), body["detectable"])


def check_statistics(table):
    given = table["random"]
    random = Random(given["label"])
    compare("next", [str(random.next()) for _ in given["next"]], given["next"])
    random = Random(given["label"])
    compare("below", [random.below(10) for _ in given["below_10"]], given["below_10"])
    compare("shuffle", Random(given["label"]).shuffled(range(8)), given["shuffled_0_to_7"])
    order = table["order"]
    compare("order", Random(order["label"]).shuffled(order["items"]), order["shuffled"])
    for case in table["bootstrap"]:
        means, units = bootstrap(case["label"], case["units"]), case["units"]
        delta = quotient(sum(d for _, d in units), sum(w for w, _ in units))
        compare(case["label"], [delta, means[250], means[9749]], [case["delta"], case["low"], case["high"]])
    for case in table["wilson"]:
        compare("wilson", wilson(case["right"], case["of"]), [case["low"], case["high"]])
    flip = table["flip"]
    count = flips(flip["label"], flip["differences"])
    compare("flip", [count, ppm_up(1 + count, 10_001)], [flip["count"], flip["p_ppm"]])
    for case in table["sign"]:
        compare("sign", sign(case["wins"], case["losses"]), case["p_ppm"])
    looks = table["looks"]
    levels = [quotient(50_000, k * (k + 1)) for k in range(1, len(looks["level_ppm"]) + 1)]
    compare("level_ppm", levels, looks["level_ppm"])
    indexes = [500 // (k * (k + 1)) for k in range(1, len(looks["bound_index"]) + 1)]
    compare("bound_index", indexes, looks["bound_index"])
    guard = table["guard"]
    sides = []
    for side in ("canary", "primary"):
        right, n = guard[side]["right"], guard[side]["of"]
        units = [MICRO] * right + [0] * (n - right)
        random = Random(f"{guard['id']}|{side}")
        means = [quotient(sum(units[random.below(n)] for _ in units), n) for _ in range(10_000)]
        sides.append((quotient(right * MICRO, n), means))
    (canary, ours), (primary, theirs) = sides
    differences = sorted(one - other for one, other in zip(ours, theirs))
    found = [canary - primary, differences[250], differences[9749]]
    compare("guard", found, [guard["difference"], guard["low"], guard["high"]])
    for case in table["detectable"]:
        compare("detectable", round(math.sqrt(7.84 * 0.3 / case["units"]) * 1000), case["thousandths"])


def check_metrics(table):
    f1 = table["f1"]
    got, wanted = (near_form(f1[side]).split() for side in ("output", "expected"))
    common = sum(min(got.count(word), wanted.count(word)) for word in set(got))
    compare("f1", quotient(2 * common * MICRO, len(got) + len(wanted)), f1["score"])
    case = table["agreement"]
    both, judge, human, neither = (case[key] for key in ("both_good", "judge_alone", "human_alone", "both_bad"))
    n = both + judge + human + neither
    chance = (both + judge) * (both + human) + (human + neither) * (judge + neither)
    compare("agreement", quotient((both + neither) * MICRO, n), case["agreement"])
    compare("kappa", quotient(((both + neither) * n - chance) * MICRO, n * n - chance), case["kappa"])


def demo_set(label, strata, count):
    random = Random(label)
    left = {name: random.shuffled(sorted(items)) for name, items in sorted(strata.items())}
    names, drawn = random.shuffled(sorted(strata)), []
    while len(drawn) < count and any(left.values()):
        drawn += [left[name].pop(0) for name in names if left[name]][: count - len(drawn)]
    return random.shuffled(drawn)


def mipro_path(label, sizes, trials, score):
    grid = Random(f"{label}|grid").shuffled([i, j] for i in range(sizes[0]) for j in range(sizes[1]))
    tried = [[0, 0]]
    for trial in range(2, trials + 1):
        left = [one for one in grid if one not in tried]
        if trial <= max(4, -(-trials // 3)) or trial % 4 == 0:
            tried.append(left[0])
            continue
        ranked = sorted(tried, key=lambda one: -score(one))
        share = max(2, -(-len(tried) // 4))

        def odds(one):
            good, bad = (
                [1 + sum(other[place] == one[place] for other in part) for place in (0, 1)]
                for part in (ranked[:share], ranked[share:])
            )
            return Fraction(good[0] * good[1], bad[0] * bad[1])

        tried.append(max(left, key=odds))
    return tried


def check_searches(table):
    variant = table["variant"]
    content = {"v": 1, "kind": "variant"} | {key: variant[key] for key in ("spell", "base", "patch")}
    compare("variant", "var_" + digits(canonical(content))[:32], variant["id"])
    given = table["demo_sets"]
    for number, wanted in enumerate(given["sets"], 1):
        label = f"{given['label']}|set|{number}"
        compare(label, demo_set(label, given["strata"], given["labelled"]), wanted)
    mipro = table["mipro"]
    texts, sets = mipro["texts"], mipro["demo_sets"]

    def score(one):
        return mipro["start"] + texts[one[0]] + sets[one[1]]

    path = mipro_path(mipro["label"], [len(texts), len(sets)], mipro["trials"], score)
    compare("mipro", path, mipro["path"])
    compare("winner", max(path, key=score), mipro["winner"])


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        table = json.load(file)
    check_examples(table)
    check_jobs(table)
    check_report(table)
    check_statistics(table)
    check_metrics(table)
    check_searches(table)
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
