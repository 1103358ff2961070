"""LangGraph: a model node, a tool node, an edge back; its own SQLite checkpointer where turns have to last."""

import asyncio
import json
import os
from typing import Annotated, TypedDict

from langchain_core.messages import AIMessage, HumanMessage, messages_to_dict
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode

from measure import WARM_TURNS, Clock, folder_bytes, main, result

CALLS = {"tool": 0}


@tool
def look(n: int) -> str:
    """Looks something up."""
    CALLS["tool"] += 1
    return result(n)


class State(TypedDict):
    messages: Annotated[list, add_messages]


def said(state: State, turns: int) -> dict:
    # What a provider would be sent.
    body = json.dumps(messages_to_dict(state["messages"]))
    at = sum(1 for message in state["messages"] if isinstance(message, AIMessage))
    if at < turns:
        call = {"name": "look", "args": {"n": at}, "id": f"call_{at}", "type": "tool_call"}
        return {"messages": [AIMessage(content="", tool_calls=[call])]}
    return {"messages": [AIMessage(content=f"done after {len(body)} bytes")]}


def graph(turns: int, latency: float = 0.0):
    async def model(state: State) -> dict:
        if latency:
            await asyncio.sleep(latency)
        return said(state, turns)

    def on(state: State) -> str:
        return "tools" if state["messages"][-1].tool_calls else END

    built = StateGraph(State)
    built.add_node("model", model)
    built.add_node("tools", ToolNode([look]))
    built.add_edge(START, "model")
    built.add_conditional_edges("model", on, ["tools", END])
    built.add_edge("tools", "model")
    return built


def asked(thread: str, turns: int) -> tuple:
    config = {"configurable": {"thread_id": thread}, "recursion_limit": 2 * turns + 10}
    return {"messages": [HumanMessage("go")]}, config


async def loop(folder: str, turns: int) -> dict:
    await graph(WARM_TURNS).compile().ainvoke(*asked("warm", WARM_TURNS))
    CALLS["tool"] = 0
    agent = graph(turns).compile()
    clock = Clock()
    await agent.ainvoke(*asked("one", turns))
    return {**clock.read(), "turns": turns, "calls": CALLS["tool"]}


async def durable(folder: str, turns: int, agents: int = 1) -> dict:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    warm, kept = os.path.join(folder, "warm"), os.path.join(folder, "kept")
    os.mkdir(warm), os.mkdir(kept)
    async with AsyncSqliteSaver.from_conn_string(os.path.join(warm, "kept.db")) as saver:
        agent = graph(WARM_TURNS).compile(checkpointer=saver)
        await agent.ainvoke(*asked("warm", WARM_TURNS), durability="sync")
    async with AsyncSqliteSaver.from_conn_string(os.path.join(kept, "kept.db")) as saver:
        agent = graph(turns).compile(checkpointer=saver)
        clock = Clock()
        await asyncio.gather(
            *(agent.ainvoke(*asked(f"thread-{n}", turns), durability="sync") for n in range(agents))
        )
        took = clock.read()
    return {**took, "turns": turns * agents, "disk": folder_bytes(kept)}


async def fleet(folder: str, turns: int, agents: int, latency_ms: int) -> dict:
    agent = graph(turns - 1, latency_ms / 1000).compile()
    clock = Clock()
    await asyncio.gather(*(agent.ainvoke(*asked(f"thread-{n}", turns)) for n in range(agents)))
    return {**clock.read(), "turns": turns * agents, "ideal": turns * latency_ms / 1000}


async def fork(folder: str, turns: int) -> dict:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(os.path.join(folder, "kept.db")) as saver:
        agent = graph(turns).compile(checkpointer=saver)
        ask, config = asked("one", turns)
        await agent.ainvoke(ask, config)
        middle = None
        async for snapshot in agent.aget_state_history(config):
            spoken = sum(1 for message in snapshot.values.get("messages", []) if isinstance(message, AIMessage))
            if spoken == turns // 2 and snapshot.next == ("tools",):
                middle = snapshot.config
        before = CALLS["tool"]
        # One more turn from there: the graph ends as soon as the model is asked again.
        ending = graph(turns // 2).compile(checkpointer=saver)
        clock = Clock()
        await ending.ainvoke(None, {**middle, "recursion_limit": 2 * turns + 10})
        return {**clock.read(), "calls_again": CALLS["tool"] - before}


async def stream(folder: str, deltas: int) -> dict:
    """One node that hands out a word at a time, through the stream that is made for it."""
    from langgraph.config import get_stream_writer

    async def talk(state: State) -> dict:
        say, said = get_stream_writer(), []
        for at in range(deltas):
            word = "after " if at % 2 else "word "
            said.append(word)
            say(word)
        return {"messages": [AIMessage(content="".join(said))]}

    built = StateGraph(State)
    built.add_node("talk", talk)
    built.add_edge(START, "talk")
    agent = built.compile()
    clock, seen = Clock(), 0
    async for _ in agent.astream({"messages": [HumanMessage("go")]}, stream_mode="custom"):
        seen += 1
    assert seen == deltas, seen
    return {**clock.read(), "deltas": deltas}


async def cold(folder: str) -> dict:
    agent = graph(1).compile()
    await agent.ainvoke(*asked("one", 1))
    return {}


main({"loop": loop, "durable": durable, "fleet": fleet, "fork": fork, "stream": stream, "cold": cold})
