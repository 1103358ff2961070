"""smolagents: a tool-calling agent for the loop, and its CodeAgent with its own interpreter for turns of code."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
import time

from smolagents import CodeAgent, Model, Tool, ToolCallingAgent
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.monitoring import LogLevel

from measure import WARM_TURNS, Clock, main, result

CALLS = {"tool": 0}

logging.disable(logging.CRITICAL)


class Look(Tool):
    name = "look"
    description = "Looks something up."
    inputs = {"n": {"type": "integer", "description": "which"}}
    output_type = "string"

    def forward(self, n: int) -> str:
        CALLS["tool"] += 1
        return result(n)


class Scripted(Model):
    def __init__(self, turns: int, latency: float = 0.0, code: bool = False) -> None:
        super().__init__()
        self.turns, self.latency, self.code, self.at = turns, latency, code, 0

    def generate(self, messages, stop_sequences=None, response_format=None, tools_to_call_from=None, **kwargs):
        if self.latency:
            time.sleep(self.latency)
        # What a provider would be sent.
        body = json.dumps([message.dict() if hasattr(message, "dict") else message for message in messages], default=str)
        at, self.at = self.at, self.at + 1
        if self.code:
            program = f"x = sum(range({at}))\nprint(x)" if at < self.turns else f"final_answer({len(body)})"
            return ChatMessage(role=MessageRole.ASSISTANT, content=f"<code>\n{program}\n</code>")
        name, arguments = ("look", {"n": at}) if at < self.turns else ("final_answer", {"answer": str(len(body))})
        call = ChatMessageToolCall(
            id=f"call_{at}", type="function", function=ChatMessageToolCallFunction(name=name, arguments=arguments)
        )
        return ChatMessage(role=MessageRole.ASSISTANT, content="", tool_calls=[call])


def one(turns: int, latency: float = 0.0) -> None:
    agent = ToolCallingAgent(
        tools=[Look()], model=Scripted(turns, latency), max_steps=turns + 5, verbosity_level=LogLevel.OFF
    )
    agent.run("go")


def loop(folder: str, turns: int) -> dict:
    one(WARM_TURNS)
    CALLS["tool"] = 0
    clock = Clock()
    one(turns)
    return {**clock.read(), "turns": turns, "calls": CALLS["tool"]}


def code(folder: str, turns: int) -> dict:
    began = time.perf_counter()
    agent = CodeAgent(
        tools=[], model=Scripted(turns, code=True), max_steps=turns + 5, verbosity_level=LogLevel.OFF
    )
    ready = time.perf_counter() - began
    clock = Clock()
    agent.run("go")
    return {**clock.read(), "turns": turns, "ready": ready, "note": "no sandbox"}


def fleet(folder: str, turns: int, agents: int, latency_ms: int) -> dict:
    clock = Clock()
    # It has no asynchronous run: a thread each is what its users do.
    with ThreadPoolExecutor(max_workers=agents) as pool:
        list(pool.map(lambda _: one(turns - 1, latency_ms / 1000), range(agents)))
    return {**clock.read(), "turns": turns * agents, "ideal": turns * latency_ms / 1000}


def cold(folder: str) -> dict:
    one(1)
    return {}


main({"loop": loop, "code": code, "fleet": fleet, "cold": cold})
