"""One cell of the head to head for DSPy: an optimiser with a seed, and its program on the test tickets.

`improve_dspy.py METHOD SEED` reads the rest from `IMPROVE_*` variables, as `improve.py` sets them, and prints one line of
JSON. The number of model calls is the size of a file that the counting server writes, so both sides are counted at the same
place, and an answer that DSPy takes from its own cache is no call.
"""

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Literal

import dspy

from improve_data import instructions, spared_seconds, tickets

# The budget of a search is 500 calls. A trial of MIPROv2 takes 25 examples of 80, as ours does.
CANDIDATES, TRIALS, MINIBATCH, FULL_EVERY = 5, 8, 25, 5
# So many candidate programs, three fixed ones apart, are what random search can score on 80 examples with 500 calls.
RANDOM_PROGRAMS = 2

Label = Literal["billing", "shipping", "technical", "account"]


class Ticket(dspy.Signature):
    """Classify the support ticket. Answer with one label: billing, shipping, technical or account."""

    text: str = dspy.InputField()
    label: Label = dspy.OutputField()


class HeldLM(dspy.LM):
    """The server holds an answer to a schema. The table of models that DSPy asks does not know this one."""

    @property
    def supports_response_schema(self) -> bool:
        return True


class GivenInstructions(dspy.MIPROv2):
    """MIPROv2 with a list of instructions in place of those that it would have this small model write."""

    def _propose_instructions(self, program, *args, **kwargs):
        own = program.predictors()[0].signature.instructions
        return {0: [own, *instructions()]}


def metric(example, prediction, trace=None) -> bool:
    return example.label == prediction.label


def feedback(gold, prediction, trace=None, pred_name=None, pred_trace=None):
    right = gold.label == getattr(prediction, "label", None)
    said = "" if right else f"at /label: expected {gold.label}, got {getattr(prediction, 'label', 'nothing')}"
    return dspy.Prediction(score=float(right), feedback=said)


def examples(split: str) -> list:
    return [dspy.Example(text=row.text, label=row.label).with_inputs("text") for row in tickets() if row.split == split]


def optimised(method: str, seed: int):
    student = dspy.Predict(Ticket)
    if method == "as written":
        return student
    train, holdout = examples("train"), examples("holdout")
    # The first two take no seed: the order of the examples is all that they depend on.
    random.Random(seed).shuffle(train)
    if method == "BootstrapFewShot":
        return dspy.BootstrapFewShot(metric=metric).compile(student, trainset=train)
    if method == "BootstrapFewShotWithRandomSearch":
        search = dspy.BootstrapFewShotWithRandomSearch(
            metric=metric, num_candidate_programs=RANDOM_PROGRAMS, num_threads=1
        )
        return search.compile(student, trainset=train, valset=holdout)
    if method == "MIPROv2":
        search = GivenInstructions(metric=metric, auto=None, num_candidates=CANDIDATES, num_threads=1, seed=seed)
        return search.compile(
            student,
            trainset=train,
            valset=holdout,
            num_trials=TRIALS,
            minibatch=True,
            minibatch_size=MINIBATCH,
            minibatch_full_eval_steps=FULL_EVERY,
        )
    if method == "GEPA":
        reflect = dspy.LM(os.environ["IMPROVE_REFLECT"], temperature=1.0, max_tokens=16_000)
        search = dspy.GEPA(
            metric=feedback, max_metric_calls=int(os.environ["IMPROVE_BUDGET"]), reflection_lm=reflect, num_threads=1, seed=seed
        )
        return search.compile(student, trainset=train, valset=holdout)
    sys.exit(f"there is no method {method}")


def score(program, row) -> int:
    """An answer that cannot be read is wrong, as it is for ours."""
    try:
        return 1_000_000 if program(text=row.text).label == row.label else 0
    except Exception as fault:
        print(f"{row.id}: {fault}", file=sys.stderr)
        return 0


def main() -> None:
    method, seed = sys.argv[1], int(sys.argv[2])
    log = Path(os.environ["IMPROVE_CALLS"])
    # Nothing of another cell may be found in a cache on the disk.
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)
    lm = HeldLM("openai/smol", api_base=os.environ["IMPROVE_URL"], api_key="none", temperature=0.0, max_tokens=64)
    dspy.configure(lm=lm, adapter=dspy.JSONAdapter())
    began = time.perf_counter()
    program = optimised(method, seed)
    wall, calls = time.perf_counter() - began + spared_seconds(log), log.stat().st_size
    scores = {row.id: score(program, row) for row in tickets() if row.split == "test"}
    demos = len(program.predictors()[0].demos)
    print(json.dumps({"calls": calls, "wall": wall, "scores": scores, "demos": demos, "version": dspy.__version__}))


main()
