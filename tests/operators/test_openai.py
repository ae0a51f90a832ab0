import asyncio
import itertools
import json
import sys

import pytest

from cave.errors import OperatorError
from cave.operators.openai import KEY, OpenAIOperator
from cave.ports import Message, View
from cave.testing.wire import Call, OpenAIServer, Said, call, cell, failure, finish

pytestmark = pytest.mark.anyio

ASK = View("You work on data.", (Message("user", "How many rows?"),), turn=1, step=1)
CODE = "Count the rows.\n```python\nprint(len(df))\n```"


async def one(reply, *more, seen=ASK, heard=None, **settings):
    """The operator's reply to one view, and the server that it came from."""
    with OpenAIServer([reply, *more]) as server:
        operator = OpenAIOperator("small", server.url, **settings)
        try:
            got = await operator.next(seen, (heard if heard is not None else []).append)
        finally:
            await operator.close()
    return got, server


async def refused(reply, *more, **settings):
    """The error of one view."""
    with pytest.raises(OperatorError) as caught:
        await one(reply, *more, **settings)
    return caught.value


async def test_fenced_code_is_a_cell():
    """Without tools a block of Python is the cell and the sentence before it the note."""
    heard = []
    reply, server = await one(Said(CODE), heard=heard)
    assert (reply.kind, reply.source) == ("cell", "print(len(df))")
    assert reply.note == "Count the rows."
    assert "".join(heard) == "Count the rows.\n"
    assert "tools" not in server.requests[0].body


async def test_usage_is_what_the_endpoint_counted():
    """Tokens read from a cache are told apart; a local endpoint costs nothing."""
    reply, _ = await one(Said(CODE, input_tokens=30, cache_read=70))
    usage = reply.usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens) == (30, 70, 20)
    assert (usage.usd, usage.estimated, usage.model_calls) == (0.0, False, 1)


async def test_usage_is_estimated_where_nothing_was_counted():
    """An endpoint without usage gives estimates, marked as such."""
    reply, _ = await one(Said(CODE, counted=False))
    assert reply.usage.estimated
    assert reply.usage.input_tokens > 100
    assert 5 < reply.usage.output_tokens < 40


async def test_text_is_the_answer():
    """Prose without code ends the turn."""
    reply, _ = await one(Said("There are 42 rows."))
    assert (reply.kind, reply.text) == ("finish", "There are 42 rows.")


async def test_tools_where_the_caller_asks_for_them():
    """With `style="tools"` calls are cells and answers, and the tools are sent."""
    reply, server = await one(cell("len(df)", "count"), style="tools")
    assert (reply.source, reply.note) == ("len(df)", "count")
    names = [t["function"]["name"] for t in server.requests[0].body["tools"]]
    assert names == ["run_cell", "finish"]
    reply, _ = await one(finish("42"), style="tools")
    assert (reply.kind, reply.text) == ("finish", "42")


async def test_the_official_endpoint_gets_tools():
    """OpenAI's own endpoint is called with tools, any other with fences."""
    assert OpenAIOperator("m", "https://api.openai.com/v1").style == "tools"
    assert OpenAIOperator("m", "http://localhost:11434/v1").style == "fences"
    named = OpenAIOperator("m", "http://localhost:11434/v1/")
    assert named.name == "openai:m@http://localhost:11434/v1"


MALFORMED = {
    "two blocks": (Said(f"{CODE}\n{CODE}"), {}, "2 Python blocks"),
    "unterminated": (Said(CODE[:-3]), {}, "not closed"),
    "cut": (Said(CODE, stop="length"), {}, "cut off"),
    "empty": (Said(), {}, "empty"),
    "a call without tools": (cell("x"), {}, "Tools are not known"),
    "two calls": (Said(calls=(Call("finish", "{}"),) * 2), {"style": "tools"}, "2 tool calls"),
    "no JSON": (call("run_cell", '{"code": '), {"style": "tools"}, "not valid JSON"),
    "cut call": (cell("x", stop="length"), {"style": "tools"}, "cut off"),
    "unknown tool": (call("ls", "{}"), {"style": "tools"}, "no tool 'ls'"),
    "nothing at all": (Said(), {"style": "tools"}, "empty"),
}


@pytest.mark.parametrize(("said", "how", "why"), MALFORMED.values(), ids=MALFORMED.keys())
async def test_nonsense_is_malformed_and_still_counted(said, how, why):
    """Nothing is run by guess: the reply names the fault, and its tokens are counted."""
    reply, _ = await one(said, **how)
    assert (reply.kind, reply.source) == ("malformed", "")
    assert why in reply.text
    assert reply.usage.output_tokens == 20


FAILURES = {
    "key": (failure(401, "bad key"), "key", f"export {KEY}="),
    "model": (failure(404, "no model"), "model", "there is no model 'small'"),
    "rate": (failure(429), "rate", "also after retries"),
    "down": (failure(503, "loading"), "overloaded", "loading"),
    "context": (failure(400, "exceeds the available context size"), "context", "larger window"),
    "overloaded in the stream": (Said("abc", error_after=2), "overloaded", "Overloaded"),
    "dropped": (Said("abc", drop_after=2), "connection", "connection to"),
}


@pytest.mark.parametrize(("said", "reason", "words"), FAILURES.values(), ids=FAILURES.keys())
async def test_failures_are_typed_and_say_what_to_do(said, reason, words):
    """Each failure is an OperatorError with its reason, the endpoint's words, and a cause."""
    error = await refused(said, max_retries=0)
    assert error.reason == reason
    assert words in str(error)
    assert error.__cause__ is not None


async def test_the_sdk_tries_again():
    """Rate limits are retried as often as `max_retries` says."""
    busy = failure(429, retry_after=0.01)
    reply, server = await one(busy, Said(CODE), max_retries=1)
    assert (reply.kind, len(server.requests)) == ("cell", 2)


async def test_silence_ends_at_the_time_limit():
    """An endpoint that stops in the middle is given up after `timeout` seconds."""
    error = await refused(Said(CODE, hang_after=3), timeout=0.2, max_retries=0)
    assert error.reason == "timeout"


async def test_a_hanging_call_can_be_cancelled():
    """Cancelling the task ends the call at once, and the operator goes on to serve."""
    with OpenAIServer([Said("abc" * 20, hang_after=4), Said(CODE)]) as server:
        operator = OpenAIOperator("small", server.url)
        begun = asyncio.Event()
        task = asyncio.create_task(operator.next(ASK, lambda _: begun.set()))
        await asyncio.wait_for(begun.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await operator.next(ASK, print)).kind == "cell"
        await operator.close()


async def test_a_missing_package_is_told(monkeypatch):
    """Without the extra the message has the command that installs it."""
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(OperatorError, match=r"pip install 'cave-runtime\[openai\]'") as caught:
        await OpenAIOperator("small", "http://127.0.0.1:1/v1").next(ASK, print)
    assert caught.value.reason == "missing"


async def test_a_missing_key_matters_only_to_the_official_endpoint(monkeypatch):
    """OpenAI needs OPENAI_API_KEY; an endpoint of one's own is called without."""
    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(OperatorError, match=f"export {KEY}="):
        await OpenAIOperator("gpt", "https://api.openai.com/v1").next(ASK, print)
    reply, server = await one(Said(CODE))
    assert reply.kind == "cell"
    assert server.requests[0].headers["authorization"] == "Bearer none"


TALK = (
    Message("user", "Load it."),
    Message("cell", "s = '''\n```\n'''", note="load"),
    Message("result", "cell 1 ok"),
    Message("cell", "df.nope"),
    Message("result", ""),
    Message("user", "Malformed \ud800."),
    Message("answer", "Loaded."),
    Message("user", "ünïcödé 😀"),
)


@pytest.mark.parametrize("style", ["fences", "tools"])
async def test_each_request_begins_with_the_one_before(style):
    """As the session grows, the text of the prompt stays as a prefix, so caches hit."""
    reply = Said("ok")
    with OpenAIServer([reply] * 4) as server:
        operator = OpenAIOperator("small", server.url, style=style)
        for length in (1, 3, 5, 8):
            await operator.next(View("sys", TALK[:length], 1, 1), print)
        await operator.close()
    prompts = [json.dumps(r.body["messages"])[:-3] for r in server.requests]
    for earlier, later in itertools.pairwise(prompts):
        assert later.startswith(earlier)


@pytest.mark.parametrize("messages", [TALK, TALK[1:], TALK[:2], TALK[:7], TALK[2:3], ()])
async def test_fenced_requests_alternate(messages):
    """Templates of small models want user and assistant in turn, the user first and last."""
    _, server = await one(Said("ok"), seen=View("sys", messages, 1, 1))
    sent = server.requests[0].body["messages"]
    roles = [m["role"] for m in sent[1:]]
    assert sent[0]["role"] == "system"
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
    assert all(m["content"].strip() for m in sent)


@pytest.mark.parametrize("messages", [TALK, TALK[1:], TALK[:2], TALK[:7], TALK[2:3], ()])
async def test_every_tool_call_is_answered(messages):
    """With tools each call is followed by its result, also where a session was cut."""
    _, server = await one(Said("ok"), seen=View("sys", messages, 1, 1), style="tools")
    sent = server.requests[0].body["messages"]
    for this, after in itertools.pairwise(sent):
        called = [c["id"] for c in this.get("tool_calls") or ()]
        assert called == ([after["tool_call_id"]] if after["role"] == "tool" else [])
    assert sent[-1]["role"] in {"user", "tool"}
