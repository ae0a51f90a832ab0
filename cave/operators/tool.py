"""The two tools, the text protocol, and the way from a `View` to a provider's messages.

What comes out is stable from step to step: the messages of a later view begin with those
of an earlier one, block by block, so that providers can answer from their prompt caches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from cave.events import clean
from cave.ports import Message, Reply, View

RUN = "run_cell"
FINISH = "finish"

TOOLS: dict[str, tuple[str, dict[str, str]]] = {
    RUN: (
        "Run one cell of Python in the session's live kernel and see what comes of it.",
        {
            "note": "One short sentence for the person: what this cell does and why.",
            "code": "The source of the cell, complete and without fences.",
        },
    ),
    FINISH: (
        "End the turn with the answer to the person's request.",
        {"answer": "The answer, in the person's language, with the figures that matter."},
    ),
}
"""Name of each tool: what it does, and its arguments, all of them required texts."""

TOOL_PROTOCOL = """\
# How to act
Call exactly one tool in each reply: `run_cell` to run the next cell, or `finish` with the
answer once the request is fulfilled. Never put two calls into one reply."""

FENCE_PROTOCOL = """\
# How to act
Each of your replies is one of two things.
1. The next cell: one short sentence on what it does, then exactly one block of Python. It is
   run, and you are shown what it printed. Then you act again.
2. The answer, once the request is fulfilled: plain text without any code block.
Variables stay from cell to cell: use those that you are told of, do not make them again.
After an error read the message, and write a different cell.

An example. You are told that `sales` is a DataFrame with the columns region, amount.
Person: Which region sold most?
You:
Add the amounts up by region.
```python
top = sales.groupby("region")["amount"].sum().idxmax()
print(top)
```
Result: North
You:
North sold most."""

NOTHING = "(nothing)"
CUT = "(no result: the cell was cut off)"
_FENCES = re.compile(r"`{3,}")


def schema(name: str) -> dict[str, Any]:
    """The JSON schema of a tool's arguments."""
    arguments = TOOLS[name][1]
    return {
        "type": "object",
        "properties": {k: {"type": "string", "description": v} for k, v in arguments.items()},
        "required": list(arguments),
        "additionalProperties": False,
    }


def _text(text: str) -> str:
    """`text` as every provider takes it: valid UTF-8, never blank."""
    return clean(text) if text.strip() else NOTHING


# -- out: Anthropic --------------------------------------------------------------------------


def anthropic_messages(view: View) -> list[dict[str, Any]]:
    """The messages of `view` for the Messages API, the last block marked for the cache."""
    messages: list[dict[str, Any]] = []
    for role, block in _anthropic_blocks(view.messages):
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"].append(block)
        else:
            messages.append({"role": role, "content": [block]})
    messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    return messages


def _anthropic_blocks(messages: tuple[Message, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Role and content block of each message; begins and ends with the user's side."""
    open_call = ""
    for number, message in enumerate(_framed(messages)):
        if open_call and message.role != "result":
            yield "user", _tool_result(open_call, CUT)
            open_call = ""
        match message.role:
            case "cell":
                open_call = f"cell_{number}"
                arguments = {"note": clean(message.note), "code": clean(message.text)}
                yield (
                    "assistant",
                    {"type": "tool_use", "id": open_call, "name": RUN, "input": arguments},
                )
            case "result" if open_call:
                yield "user", _tool_result(open_call, message.text)
                open_call = ""
            case "answer":
                yield "assistant", {"type": "text", "text": _text(message.text).rstrip()}
            case _:
                yield "user", {"type": "text", "text": _text(message.text)}
    if open_call:
        yield "user", _tool_result(open_call, CUT)


def _tool_result(call: str, text: str) -> dict[str, Any]:
    content = [{"type": "text", "text": _text(text)}]
    return {"type": "tool_result", "tool_use_id": call, "content": content}


def _framed(messages: tuple[Message, ...]) -> Iterator[Message]:
    """`messages` between a beginning and an end that providers accept.

    A conversation begins with the user and is never ended by the assistant, whose last
    words would be taken for the beginning of its reply.
    """
    if not messages or messages[0].role in {"cell", "answer"}:
        yield Message("user", "(the session goes on)")
    yield from messages
    if messages and messages[-1].role == "answer":
        yield Message("user", "Go on.")


# -- out: OpenAI -----------------------------------------------------------------------------


def openai_messages(view: View, *, protocol: str) -> list[dict[str, Any]]:
    """The messages of `view` for chat completions with tools."""
    out: list[dict[str, Any]] = [_system(view, protocol)]
    open_call = ""
    for number, message in enumerate(_framed(view.messages)):
        if open_call and message.role != "result":
            out.append({"role": "tool", "tool_call_id": open_call, "content": CUT})
            open_call = ""
        match message.role:
            case "cell":
                open_call = f"cell_{number}"
                out.append(_openai_call(open_call, message))
            case "result" if open_call:
                content = _text(message.text)
                out.append({"role": "tool", "tool_call_id": open_call, "content": content})
                open_call = ""
            case "answer":
                out.append({"role": "assistant", "content": _text(message.text)})
            case _:
                out.append({"role": "user", "content": _text(message.text)})
    if open_call:
        out.append({"role": "tool", "tool_call_id": open_call, "content": CUT})
    return out


def _openai_call(call: str, message: Message) -> dict[str, Any]:
    arguments = {"note": clean(message.note), "code": clean(message.text)}
    function = {"name": RUN, "arguments": json.dumps(arguments, ensure_ascii=False)}
    calls = [{"id": call, "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def openai_tools() -> list[dict[str, Any]]:
    """The two tools as chat completions takes them."""
    return [
        {
            "type": "function",
            "function": {"name": name, "description": what, "parameters": schema(name)},
        }
        for name, (what, _) in TOOLS.items()
    ]


def _system(view: View, protocol: str) -> dict[str, str]:
    return {"role": "system", "content": clean(f"{view.system}\n\n{protocol}".strip())}


# -- out: plain text with fences -------------------------------------------------------------


def fence_messages(view: View) -> list[dict[str, str]]:
    """The messages of `view` for models without tool use; roles alternate strictly."""
    out = [_system(view, FENCE_PROTOCOL)]
    for message in _framed(view.messages):
        role = "assistant" if message.role in {"cell", "answer"} else "user"
        text = _fenced(message)
        if out[-1]["role"] == role:
            out[-1] = {"role": role, "content": f"{out[-1]['content']}\n\n{text}"}
        else:
            out.append({"role": role, "content": text})
    if out[-1]["role"] == "assistant":
        out.append({"role": "user", "content": f"Result:\n{CUT}"})
    return out


def _fenced(message: Message) -> str:
    match message.role:
        case "cell":
            longest = max(map(len, _FENCES.findall(message.text)), default=2)
            fence = "`" * (longest + 1)
            note = message.note or "Run this."
            return clean(f"{note}\n{fence}python\n{message.text}\n{fence}")
        case "result":
            return f"Result:\n{_text(message.text)}"
        case _:
            return _text(message.text)


# -- in --------------------------------------------------------------------------------------


def reading(text: str, calls: list[tuple[str, str]], *, cut: bool) -> Reply:
    """What a reply with tools means: its text, its calls (name, JSON), and whether it was cut.

    Without a call, text is the answer. Two calls, an unknown tool, arguments that are no
    JSON or not as the schema says, and whatever was cut off are malformed.
    """
    raw = "\n".join([text, *(f"{name}({arguments})" for name, arguments in calls)]).strip()
    if cut:
        why = "The reply was cut off at the limit of tokens, so nothing was run. Be shorter."
        return _malformed(why, raw)
    if len(calls) > 1:
        why = f"The reply has {len(calls)} tool calls and none was run. One call in each reply."
        return _malformed(why, raw)
    if not calls:
        if text.strip():
            return Reply("finish", text=clean(text.strip()))
        return _malformed("The reply is empty. Call run_cell or finish.", raw)
    return _call(*calls[0], text, raw)


def _call(name: str, arguments: str, text: str, raw: str) -> Reply:
    if name not in TOOLS:
        return _malformed(f"There is no tool {name!r}. Call run_cell or finish.", raw)
    try:
        given = json.loads(arguments or "{}")
    except ValueError as error:
        return _malformed(f"The arguments of {name} are not valid JSON ({error}).", raw)
    main = "code" if name == RUN else "answer"
    if not isinstance(given, Mapping) or not isinstance(given.get(main), str):
        return _malformed(f"{name} needs the argument {main!r}, a text.", raw)
    content, note = clean(given[main]), given.get("note")
    if name == FINISH:
        content = content.strip() or clean(text.strip())
        return Reply("finish", text=content) if content else _malformed("The answer is empty.", raw)
    if not content.strip():
        return _malformed("The code is empty. Send a cell, or call finish.", raw)
    said = note if isinstance(note, str) and note.strip() else text
    return Reply("cell", source=content, note=clean(" ".join(said.split()))[:200])


def _malformed(why: str, raw: str) -> Reply:
    return Reply("malformed", text=clean(why), raw=clean(raw))
