"""Pydantic AI: an agent over its own FunctionModel. It keeps nothing by itself, so it has no durable workload."""

import asyncio

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import UsageLimits

from measure import WARM_TURNS, Clock, main, result

CALLS = {"tool": 0}


def agent(turns: int, latency: float = 0.0) -> Agent:
    async def model(messages, info) -> ModelResponse:
        if latency:
            await asyncio.sleep(latency)
        # What a provider would be sent.
        body = ModelMessagesTypeAdapter.dump_json(messages)
        at = sum(1 for message in messages if isinstance(message, ModelResponse))
        if at < turns:
            return ModelResponse(parts=[ToolCallPart("look", {"n": at}, tool_call_id=f"call_{at}")])
        return ModelResponse(parts=[TextPart(f"done after {len(body)} bytes")])

    made = Agent(FunctionModel(model))

    @made.tool_plain
    def look(n: int) -> str:
        """Looks something up."""
        CALLS["tool"] += 1
        return result(n)

    return made


async def one(made: Agent, turns: int) -> None:
    await made.run("go", usage_limits=UsageLimits(request_limit=turns + 10))


async def loop(folder: str, turns: int) -> dict:
    await one(agent(WARM_TURNS), WARM_TURNS)
    CALLS["tool"] = 0
    made = agent(turns)
    clock = Clock()
    await one(made, turns)
    return {**clock.read(), "turns": turns, "calls": CALLS["tool"]}


async def fleet(folder: str, turns: int, agents: int, latency_ms: int) -> dict:
    made = agent(turns - 1, latency_ms / 1000)
    clock = Clock()
    await asyncio.gather(*(one(made, turns) for _ in range(agents)))
    return {**clock.read(), "turns": turns * agents, "ideal": turns * latency_ms / 1000}


async def stream(folder: str, deltas: int) -> dict:
    async def talk(messages, info):
        for at in range(deltas):
            yield "after " if at % 2 else "word "

    made = Agent(FunctionModel(stream_function=talk))
    clock, seen = Clock(), 0
    async with made.run_stream("go") as run:
        # A word at a time, as they come: without waiting to join several.
        async for _ in run.stream_text(delta=True, debounce_by=None):
            seen += 1
    assert seen == deltas, seen
    return {**clock.read(), "deltas": deltas}


async def cold(folder: str) -> dict:
    await one(agent(1), 1)
    return {}


main({"loop": loop, "fleet": fleet, "stream": stream, "cold": cold})
