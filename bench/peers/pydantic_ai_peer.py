"""Pydantic AI: an agent over its own FunctionModel. It keeps nothing by itself, so it has no durable workload."""

import asyncio

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import UsageLimits

from measure import Clock, main, result

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
    made = agent(turns)
    clock = Clock()
    await one(made, turns)
    return {**clock.read(), "turns": turns, "calls": CALLS["tool"]}


async def fleet(folder: str, turns: int, agents: int, latency_ms: int) -> dict:
    made = agent(turns - 1, latency_ms / 1000)
    clock = Clock()
    await asyncio.gather(*(one(made, turns) for _ in range(agents)))
    return {**clock.read(), "turns": turns * agents, "ideal": turns * latency_ms / 1000}


async def cold(folder: str) -> dict:
    await one(agent(1), 1)
    return {}


main({"loop": loop, "fleet": fleet, "cold": cold})
