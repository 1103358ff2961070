"""OpenAI Agents SDK: a model of our own behind its Runner; its SQLiteSession where turns have to last."""

import asyncio
import json
import os

os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")

from agents import Agent, Model, ModelProvider, ModelResponse, RunConfig, Runner, SQLiteSession, Usage, function_tool
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from measure import WARM_TURNS, Clock, folder_bytes, main, result

CALLS = {"tool": 0}


@function_tool
def look(n: int) -> str:
    """Looks something up."""
    CALLS["tool"] += 1
    return result(n)


class Scripted(Model):
    def __init__(self, turns: int, latency: float) -> None:
        self.turns, self.latency = turns, latency

    async def get_response(self, system_instructions, input, *args, **kwargs) -> ModelResponse:
        if self.latency:
            await asyncio.sleep(self.latency)
        items = input if isinstance(input, list) else [input]
        # What a provider would be sent.
        body = json.dumps(items)
        at = sum(1 for item in items if isinstance(item, dict) and item.get("type") == "function_call")
        if at < self.turns:
            call = ResponseFunctionToolCall(
                arguments=json.dumps({"n": at}), call_id=f"call_{at}", name="look", type="function_call"
            )
            return ModelResponse(output=[call], usage=Usage(), response_id=None)
        text = ResponseOutputText(annotations=[], text=f"done after {len(body)} bytes", type="output_text")
        message = ResponseOutputMessage(
            id="m", content=[text], role="assistant", status="completed", type="message"
        )
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError("not measured")


async def one(turns: int, latency: float = 0.0, session=None) -> None:
    agent = Agent(name="one", model=Scripted(turns, latency), tools=[look])
    config = RunConfig(tracing_disabled=True)
    await Runner.run(agent, "go", max_turns=turns + 10, run_config=config, session=session)


async def loop(folder: str, turns: int) -> dict:
    await one(WARM_TURNS)
    CALLS["tool"] = 0
    clock = Clock()
    await one(turns)
    return {**clock.read(), "turns": turns, "calls": CALLS["tool"]}


async def durable(folder: str, turns: int, agents: int = 1) -> dict:
    warm, kept = os.path.join(folder, "warm"), os.path.join(folder, "kept")
    os.mkdir(warm), os.mkdir(kept)
    await one(WARM_TURNS, session=SQLiteSession("warm", os.path.join(warm, "kept.db")))
    sessions = [SQLiteSession(f"session-{n}", os.path.join(kept, "kept.db")) for n in range(agents)]
    clock = Clock()
    await asyncio.gather(*(one(turns, session=session) for session in sessions))
    return {**clock.read(), "turns": turns * agents, "disk": folder_bytes(kept)}


async def fleet(folder: str, turns: int, agents: int, latency_ms: int) -> dict:
    clock = Clock()
    await asyncio.gather(*(one(turns - 1, latency_ms / 1000) for _ in range(agents)))
    return {**clock.read(), "turns": turns * agents, "ideal": turns * latency_ms / 1000}


async def cold(folder: str) -> dict:
    await one(1)
    return {}


main({"loop": loop, "durable": durable, "fleet": fleet, "cold": cold})
