import asyncio
import itertools
import json
import typing

import pytest

from cave.errors import OperatorError
from cave.operators import prices
from cave.operators.anthropic import DEFAULT_MODEL, KEY, AnthropicOperator
from cave.ports import Message, View
from cave.testing.wire import AnthropicServer, Call, Said, call, cell, failure, finish

pytestmark = pytest.mark.anyio

ASK = View("You work on data.", (Message("user", "How many rows?"),), turn=1, step=1)


async def one(reply, *more, seen=ASK, heard=None, **settings):
    """The operator's reply to one view, and the server that it came from."""
    with AnthropicServer([reply, *more]) as server:
        operator = AnthropicOperator(base_url=server.url, api_key="test", **settings)
        try:
            got = await operator.next(seen, (heard if heard is not None else []).append)
        finally:
            await operator.close()
    return got, server


async def refused(reply, *more, seen=ASK, **settings):
    """The error of one view."""
    with pytest.raises(OperatorError) as caught:
        await one(reply, *more, seen=seen, **settings)
    return caught.value


async def test_a_tool_call_is_a_cell():
    """`run_cell` gives source and note, with the usage that the provider counted."""
    said = cell("print(len(df))", "count", cache_read=70, cache_write=30, input_tokens=5)
    reply, _ = await one(said)
    assert (reply.kind, reply.source, reply.note) == ("cell", "print(len(df))", "count")
    usage = reply.usage
    assert (usage.input_tokens, usage.output_tokens) == (5, 20)
    assert (usage.cache_read_tokens, usage.cache_write_tokens) == (70, 30)
    assert (usage.model_calls, usage.estimated) == (1, False)


async def test_usage_is_priced():
    """Dollars come from genai-prices, caches included; an unknown model has none."""
    reply, _ = await one(cell("x", input_tokens=1_000_000, output_tokens=0), model="claude-opus-5")
    assert reply.usage.usd == pytest.approx(5.0)
    cheap, _ = await one(
        cell("x", input_tokens=0, output_tokens=0, cache_read=1_000_000), model="claude-opus-5"
    )
    assert cheap.usage.usd == pytest.approx(0.5)
    unknown, _ = await one(cell("x"), model="no-such-model")
    assert unknown.usage.usd is None


async def test_finish_and_plain_text_are_answers():
    """The tool `finish` ends the turn, and so does text without any call."""
    reply, _ = await one(finish("42 rows"))
    assert (reply.kind, reply.text) == ("finish", "42 rows")
    reply, _ = await one(Said("There are 42 rows."))
    assert (reply.kind, reply.text) == ("finish", "There are 42 rows.")


async def test_text_streams_and_code_does_not():
    """`on_text` gets the text in pieces as it comes, never the JSON of a call."""
    heard = []
    text = "I count the rows — 行を数える."
    reply, _ = await one(Said(text, (Call("run_cell", '{"code": "len(df)"}'),)), heard=heard)
    assert "".join(heard) == text
    assert len(heard) > 2
    assert (reply.source, reply.note) == ("len(df)", text)


async def test_thinking_is_not_shown():
    """Blocks of thinking are neither text, note nor answer; their tokens are counted."""
    heard = []
    call_ = (Call("run_cell", '{"code": "x", "note": ""}'),)
    reply, _ = await one(Said(thinking="Let me see ...", calls=call_), heard=heard)
    assert (reply.source, reply.note, heard) == ("x", "", [])
    assert reply.usage.output_tokens == 20
    only, _ = await one(Said(thinking="Let me see ..."))
    assert only.kind == "malformed"


MALFORMED = {
    "two calls": (Said(calls=(Call("run_cell", '{"code": "x"}'),) * 2), "2 tool calls"),
    "cut call": (cell("x = 1", stop="max_tokens"), "cut off"),
    "cut text": (Said("The answer is", stop="max_tokens"), "cut off"),
    "empty": (Said(), "empty"),
    "blank": (Said("  \n"), "empty"),
    "no JSON": (call("run_cell", '{"code": "x'), "not valid JSON"),
    "no object": (call("run_cell", "[1]"), "needs the argument 'code'"),
    "no code": (call("run_cell", {"note": "n"}), "needs the argument 'code'"),
    "code is no text": (call("run_cell", {"code": 5}), "needs the argument 'code'"),
    "blank code": (cell(" \n"), "code is empty"),
    "unknown tool": (call("shell", {"code": "ls"}), "no tool 'shell'"),
    "empty answer": (finish(" "), "answer is empty"),
}


@pytest.mark.parametrize(("said", "why"), MALFORMED.values(), ids=MALFORMED.keys())
async def test_nonsense_is_malformed_and_still_counted(said, why):
    """Nothing is run by guess: the reply names the fault, and its tokens are counted."""
    reply, _ = await one(said)
    assert (reply.kind, reply.source) == ("malformed", "")
    assert why in reply.text
    assert reply.usage.output_tokens == 20


FAILURES = {
    "key": (failure(401, "invalid x-api-key"), "key", f"export {KEY}="),
    "model": (failure(404, "model: nope"), "model", "there is no model"),
    "rate": (failure(429), "rate", "also after retries"),
    "overloaded": (failure(529), "overloaded", "ask again in a few minutes"),
    "server": (failure(500), "overloaded", "cannot answer now"),
    "request": (failure(400, "messages: bad"), "request", "messages: bad"),
    "context": (failure(400, "prompt is too long: 9 > 8"), "context", "larger window"),
    "size": (failure(413), "context", "larger window"),
    "refusal": (Said("No.", stop="refusal"), "refused", "declined"),
    "window": (Said("x", stop="model_context_window_exceeded"), "context", "larger window"),
    "overloaded in the stream": (Said("abc", error_after=3), "overloaded", "Overloaded"),
    "dropped": (Said("abc", drop_after=3), "connection", "connection to"),
    "dropped at once": (Said("abc", drop_after=0), "connection", "connection to"),
}


@pytest.mark.parametrize(("said", "reason", "words"), FAILURES.values(), ids=FAILURES.keys())
async def test_failures_are_typed_and_say_what_to_do(said, reason, words):
    """Each failure is an OperatorError with its reason, the provider's words, and a cause."""
    error = await refused(said, max_retries=0)
    assert error.reason == reason
    assert words in str(error)
    assert "anthropic:" in str(error)
    assert reason == "refused" or "window" in str(error) or error.__cause__ is not None


async def test_the_sdk_tries_again():
    """Rate limits and overload are retried as often as `max_retries` says."""
    busy = failure(429, retry_after=0.01)
    reply, server = await one(busy, failure(529, retry_after=0.01), cell("x"), max_retries=2)
    assert reply.source == "x"
    assert len(server.requests) == 3
    assert (await refused(busy, busy, cell("x"), max_retries=1)).reason == "rate"


async def test_nothing_listens():
    """A connection that cannot be made is told with the address."""
    with AnthropicServer([]) as server:
        url = server.url
    operator = AnthropicOperator(base_url=url, api_key="test", max_retries=0)
    with pytest.raises(OperatorError, match=url) as caught:
        await operator.next(ASK, print)
    assert caught.value.reason == "connection"
    await operator.close()


async def test_silence_ends_at_the_time_limit():
    """A provider that stops in the middle of a reply is given up after `timeout` seconds."""
    error = await refused(Said("abc" * 20, hang_after=4), timeout=0.2, max_retries=0)
    assert error.reason == "timeout"


async def test_a_hanging_call_can_be_cancelled():
    """Cancelling the task ends the call at once, and the operator goes on to serve."""
    with AnthropicServer([Said("abc" * 20, hang_after=4), cell("x")]) as server:
        operator = AnthropicOperator(base_url=server.url, api_key="test")
        begun = asyncio.Event()
        task = asyncio.create_task(operator.next(ASK, lambda _: begun.set()))
        await asyncio.wait_for(begun.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await operator.next(ASK, print)).source == "x"
        await operator.close()


async def test_a_missing_key_is_told_before_any_call(monkeypatch):
    """Without a key the operator says which variable to set."""
    for name in (KEY, "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OperatorError, match=f"export {KEY}=") as caught:
        await AnthropicOperator().next(ASK, print)
    assert caught.value.reason == "key"


TALK = (
    Message("user", "Load it."),
    Message("cell", "df = load()", note="load"),
    Message("result", "cell 1 ok: + df DataFrame 3x2"),
    Message("cell", "df.nope"),
    Message("result", ""),
    Message("user", "The reply was malformed."),
    Message("answer", "Loaded. "),
    Message("user", "Lone \ud800 surrogate, and ünïcödé 😀"),
)


def plain(body):
    """Tools, system and content blocks of a request in order, without cache markers."""
    blocks = [{"role": m["role"], **b} for m in body["messages"] for b in m["content"]]
    parts = [*body["tools"], *body["system"], *blocks]
    return [json.dumps({k: v for k, v in p.items() if k != "cache_control"}) for p in parts]


async def test_each_request_begins_with_the_one_before():
    """As the session grows, tools, system and blocks stay byte for byte, so caches hit."""
    lengths = [1, 3, 6, 8]
    with AnthropicServer([finish("ok")] * len(lengths)) as server:
        operator = AnthropicOperator(base_url=server.url, api_key="test")
        for length in lengths:
            await operator.next(View("sys", TALK[:length], 1, 1), print)
        await operator.close()
    bodies = [r.body for r in server.requests]
    for earlier, later in itertools.pairwise(bodies):
        assert plain(later)[: len(plain(earlier))] == plain(earlier)
    for body in bodies:
        assert "cache_control" in body["system"][-1]
        assert "cache_control" in body["messages"][-1]["content"][-1]
        assert json.dumps(body).count("cache_control") == 2


async def test_requests_are_what_the_api_accepts():
    """Roles alternate from user to user, calls have their results, no block is blank."""
    _, server = await one(finish("ok"), seen=View("sys", TALK, 1, 1))
    body = server.requests[0].body
    roles = [m["role"] for m in body["messages"]]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
    blocks = [b for m in body["messages"] for b in m["content"]]
    calls = [b["id"] for b in blocks if b["type"] == "tool_use"]
    results = [b for b in blocks if b["type"] == "tool_result"]
    texts = [b for b in blocks if b["type"] == "text"] + [r["content"][0] for r in results]
    assert all(t["text"].strip() for t in texts)
    assert calls == [r["tool_use_id"] for r in results]
    assert len(set(calls)) == 2
    assert body["tool_choice"]["type"] == "auto"
    assert "\\ud800" in json.dumps(body, ensure_ascii=False).replace("\\\\", "\\")


@pytest.mark.parametrize(
    "messages",
    [
        (),
        (Message("cell", "x"),),
        (Message("answer", "a"),),
        (Message("result", "r"), Message("result", "s")),
        (Message("user", "u"), Message("cell", "x"), Message("cell", "y"), Message("answer", " ")),
    ],
)
async def test_odd_histories_still_make_valid_requests(messages):
    """Whatever a cut session leaves begins and ends with the user, and calls are answered."""
    _, server = await one(finish("ok"), seen=View("", messages, 1, 1))
    sent = server.requests[0].body["messages"]
    assert [sent[0]["role"], sent[-1]["role"]] == ["user", "user"]
    kinds = [b["type"] for m in sent for b in m["content"]]
    assert kinds.count("tool_use") == kinds.count("tool_result")


async def test_the_default_model_is_known():
    """DEFAULT_MODEL is in the SDK's list, is not deprecated, has a price and a window."""
    from anthropic._data import DEPRECATED_MODELS
    from anthropic.types.model_param import ModelParam

    known = [n for arg in typing.get_args(ModelParam) for n in typing.get_args(arg)]
    assert DEFAULT_MODEL in known
    assert DEFAULT_MODEL not in DEPRECATED_MODELS
    assert (prices.context_window(DEFAULT_MODEL, "anthropic") or 0) >= 200_000
