"""DSPy: ReAct over a language model of our own for the loop, its Python interpreter alone for code."""

import json
import shutil
import time

import dspy

from measure import WARM_TURNS, Clock, main, result

CALLS = {"tool": 0}


def look(n: int) -> str:
    """Looks something up."""
    CALLS["tool"] += 1
    return result(n)


class Scripted(dspy.LM):
    def __init__(self, turns: int) -> None:
        super().__init__("scripted/model", cache=False)
        self.turns, self.at = turns, 0

    def forward(self, prompt=None, messages=None, **kwargs):
        raise NotImplementedError

    def __call__(self, prompt=None, messages=None, **kwargs):
        # What a provider would be sent.
        body = json.dumps(messages or prompt)
        at, self.at = self.at, self.at + 1
        if at < self.turns:
            said = f"[[ ## next_thought ## ]]\non\n\n[[ ## next_tool_name ## ]]\nlook\n\n[[ ## next_tool_args ## ]]\n"
            return [said + json.dumps({"n": at}) + "\n\n[[ ## completed ## ]]"]
        if at == self.turns:
            return ["[[ ## next_thought ## ]]\nover\n\n[[ ## next_tool_name ## ]]\nfinish\n\n[[ ## next_tool_args ## ]]\n{}\n\n[[ ## completed ## ]]"]
        return [f"[[ ## reasoning ## ]]\nover\n\n[[ ## answer ## ]]\n{len(body)} bytes\n\n[[ ## completed ## ]]"]


def one(turns: int) -> None:
    dspy.configure(lm=Scripted(turns))
    agent = dspy.ReAct("question -> answer", tools=[look], max_iters=turns + 5)
    agent(question="go")


def loop(folder: str, turns: int) -> dict:
    one(WARM_TURNS)
    CALLS["tool"] = 0
    clock = Clock()
    one(turns)
    return {**clock.read(), "turns": turns, "calls": CALLS["tool"]}


def interpreter():
    """Its sandbox, which needs Deno and what that fetches; where it cannot start, the interpreter without one."""
    from dspy.primitives import PythonInterpreter
    from dspy.primitives.local_interpreter import LocalInterpreter

    if shutil.which("deno") is not None:
        sandboxed = PythonInterpreter()
        try:
            sandboxed.execute("x = 0")
            return sandboxed, "interpreter alone"
        except Exception:
            sandboxed.shutdown()
    return LocalInterpreter(), "interpreter alone, no sandbox"


def code(folder: str, turns: int) -> dict:
    began = time.perf_counter()
    running, note = interpreter()
    with running:
        running.execute("x = 0")
        ready = time.perf_counter() - began
        clock = Clock()
        for at in range(turns):
            running.execute(f"x = sum(range({at}))\nprint(x)")
        return {**clock.read(), "turns": turns, "ready": ready, "note": note}


def cold(folder: str) -> dict:
    one(1)
    return {}


main({"loop": loop, "code": code, "cold": cold})
