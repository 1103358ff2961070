"""Holds request bodies to the request types of the providers' own Python libraries.

Reads lines of JSON from standard input, each `{"wire": ..., "body": ...}`, and prints one line for each body that does
not fit, with the path of the fault. A field that a type does not have is a fault. The last line says how many bodies of
each wire were read; the exit status is 1 if any body does not fit.

Wires: `anthropic` (Messages), `responses` and `chat` (OpenAI), `gemini` (generateContent). `openrouter` is `chat` with
the fields that OpenRouter adds to it.
"""

import collections
import collections.abc
import json
import sys
import types
import typing

import typing_extensions


class Fault(Exception):
    """A value does not fit a type; the text begins with the value's path."""


HINTS = {}


def fields_of(of):
    """The fields of a TypedDict and which of them are required."""
    if of not in HINTS:
        hints = typing_extensions.get_type_hints(of, include_extras=True)
        required = set()
        plain = {}
        for name, hint in hints.items():
            origin = typing_extensions.get_origin(hint)
            if origin in (typing_extensions.Required, typing_extensions.NotRequired):
                if origin is typing_extensions.Required:
                    required.add(name)
                hint = typing_extensions.get_args(hint)[0]
            elif name in getattr(of, "__required_keys__", ()):
                required.add(name)
            plain[name] = hint
        # A type that says so itself takes any further field: the schema of a tool's input is one.
        open_ended = getattr(of, "__pydantic_config__", {}).get("extra") == "allow"
        HINTS[of] = (plain, required, open_ended)
    return HINTS[of]


def check(value, hint, path):
    """Raises a `Fault` where the value does not fit the type."""
    origin = typing_extensions.get_origin(hint)
    arguments = typing_extensions.get_args(hint)
    if hint is typing.Any or hint is object:
        return
    if origin is typing_extensions.Annotated:
        check(value, arguments[0], path)
    elif origin is typing.Union or origin is types.UnionType:
        check_union(value, arguments, path)
    elif origin is typing_extensions.Literal or origin is typing.Literal:
        if value not in arguments:
            raise Fault(f"{path}: {value!r} is none of {arguments}")
    elif typing_extensions.is_typeddict(hint):
        check_fields(value, hint, path)
    elif origin in (dict, collections.abc.Mapping):
        if not isinstance(value, dict):
            raise Fault(f"{path}: {type(value).__name__} is no object")
        for name, inner in value.items():
            check(inner, arguments[1], f"{path}.{name}")
    elif origin in (list, collections.abc.Iterable, collections.abc.Sequence) or (
        origin is not None and "Sequence" in getattr(origin, "__name__", "")
    ):
        if not isinstance(value, list):
            raise Fault(f"{path}: {type(value).__name__} is no list")
        for at, inner in enumerate(value):
            check(inner, arguments[0], f"{path}[{at}]")
    elif hint is type(None):
        if value is not None:
            raise Fault(f"{path}: not null")
    elif hint is float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Fault(f"{path}: {type(value).__name__} is no number")
    elif hint in (str, int, bool):
        if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
            raise Fault(f"{path}: {type(value).__name__} is no {hint.__name__}")
    else:
        raise Fault(f"{path}: no rule for the type {hint!r}")


def check_fields(value, of, path):
    if not isinstance(value, dict):
        raise Fault(f"{path}: {type(value).__name__} is no object")
    fields, required, open_ended = fields_of(of)
    for name in required:
        if name not in value:
            raise Fault(f"{path}: {of.__name__} needs {name!r}")
    for name, inner in value.items():
        if name in fields:
            check(inner, fields[name], f"{path}.{name}")
        elif not open_ended:
            raise Fault(f"{path}: {of.__name__} has no {name!r}")


def check_union(value, variants, path):
    faults = []
    for variant in variants:
        try:
            check(value, variant, path)
            return
        except Fault as fault:
            faults.append(str(fault))
    # The variant that went furthest tells most.
    raise Fault(max(faults, key=lambda fault: fault.split(":")[0].count(".") + fault.split(":")[0].count("[")))


def anthropic(body):
    from anthropic.types import message_create_params

    kind = "MessageCreateParamsStreaming" if body.get("stream") is True else "MessageCreateParamsNonStreaming"
    check(body, getattr(message_create_params, kind), "body")


def responses(body):
    from openai.types.responses import response_create_params

    kind = "ResponseCreateParamsStreaming" if body.get("stream") is True else "ResponseCreateParamsNonStreaming"
    check(body, getattr(response_create_params, kind), "body")


def chat(body):
    from openai.types.chat import completion_create_params

    kind = "CompletionCreateParamsStreaming" if body.get("stream") is True else "CompletionCreateParamsNonStreaming"
    check(body, getattr(completion_create_params, kind), "body")


def openrouter(body):
    body = dict(body)
    reasoning = body.pop("reasoning", {})
    if set(reasoning) - {"effort", "max_tokens", "exclude", "enabled"}:
        raise Fault(f"body.reasoning: {reasoning}")
    messages = []
    for at, message in enumerate(body["messages"]):
        message = dict(message)
        details = message.pop("reasoning_details", [])
        if message["role"] != "assistant" and details:
            raise Fault(f"body.messages[{at}]: only an assistant has reasoning_details")
        for detail in details:
            if not str(detail.get("type", "")).startswith("reasoning."):
                raise Fault(f"body.messages[{at}].reasoning_details: {detail}")
        messages.append(message)
    body["messages"] = messages
    chat(body)


def gemini(body):
    import pydantic
    from google.genai import types as genai

    fields = {
        "contents": list[genai.Content],
        "systemInstruction": genai.Content,
        "generationConfig": genai.GenerationConfig,
        "tools": list[genai.Tool],
        "toolConfig": genai.ToolConfig,
    }
    for name, value in body.items():
        if name not in fields:
            raise Fault(f"body: generateContent has no {name!r}")
        try:
            pydantic.TypeAdapter(fields[name]).validate_json(json.dumps(value))
        except pydantic.ValidationError as fault:
            first = fault.errors()[0]
            raise Fault(f"body.{name}.{'.'.join(map(str, first['loc']))}: {first['msg']}") from fault


def main():
    wires = {check.__name__: check for check in (anthropic, responses, chat, openrouter, gemini)}
    read = collections.Counter()
    faulty = False
    for line in sys.stdin:
        if not line.strip():
            continue
        request = json.loads(line)
        read[request["wire"]] += 1
        try:
            wires[request["wire"]](request["body"])
        except Fault as fault:
            faulty = True
            print(f"{request['wire']}: {fault}")
    print(" ".join(f"{wire}={count}" for wire, count in sorted(read.items())))
    sys.exit(1 if faulty else 0)


if __name__ == "__main__":
    main()
