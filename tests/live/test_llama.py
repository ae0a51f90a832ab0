"""A real local model as the operator: `CAVE_LIVE_MODEL=/path.gguf scripts/live`."""

import contextlib
import io
import os
import re
from pathlib import Path

import pytest

from cave.errors import OperatorError
from cave.operators.llama import LlamaOperator
from cave.operators.tokens import estimate_tokens
from cave.ports import Message, View

THIS = Path(__file__).read_text("utf-8")
PATH = os.environ.get("CAVE_LIVE_MODEL", "")

pytestmark = [
    pytest.mark.live,
    pytest.mark.anyio,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not PATH, reason="CAVE_LIVE_MODEL names no GGUF file"),
]

SYSTEM = (
    "You work in a live Python session. It holds:\n"
    "sales: DataFrame 6x3, columns region (str: North, South), month (int), amount (float)\n"
)


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def operator():
    """The model, loaded once a test."""
    made = LlamaOperator(PATH, max_tokens=300)
    yield made
    await made.close()


def sales():
    """Six rows of sales."""
    import pandas as pd

    regions, months = ["North", "South"] * 3, [1, 1, 2, 2, 3, 3]
    return pd.DataFrame({"region": regions, "month": months, "amount": [10.0, 5, 20, 30, 7, 9]})


async def work(operator, task, *, steps=5):
    """Let the model work on a task; the namespace it leaves, and its replies."""
    names, messages, replies = {"sales": sales()}, [Message("user", task)], []
    for step in range(steps):
        view = View(SYSTEM, tuple(messages), turn=1, step=step)
        reply = await operator.next(view, lambda _: None)
        replies.append(reply)
        if reply.kind == "finish":
            break
        if reply.kind == "malformed":
            messages.append(Message("user", reply.text))
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            try:
                exec(reply.source, names)
            except Exception as error:  # noqa: BLE001 - the model's code may raise anything
                out.write(f"{type(error).__name__}: {error}")
        messages += [
            Message("cell", reply.source, reply.note),
            Message("result", out.getvalue() or "(nothing printed)"),
        ]
    return names, replies


async def test_it_works_on_the_namespace(operator):
    """A sum by group is done on the variable that is there, by well formed cells."""
    task = "Put the total amount of each region into a Series `totals`, indexed by region."
    names, replies = await work(operator, task)
    assert dict(names["totals"]) == {"North": 37.0, "South": 44.0}
    assert replies[0].kind == "cell", replies
    assert not any(r.source for r in replies if r.kind == "malformed")


async def test_the_prompt_is_read_once(operator):
    """From the second step on most of the prompt comes from the engine's cache."""
    _, replies = await work(operator, "Put the mean amount into `m` and print it.")
    assert len(replies) > 1
    usage = replies[1].usage
    assert usage.cache_read_tokens > usage.input_tokens
    assert (usage.usd, usage.model_calls, usage.estimated) == (0.0, 1, False)


async def test_a_prompt_beyond_the_window_is_typed():
    """A prompt longer than the window is an OperatorError with the reason `context`."""
    operator = LlamaOperator(PATH, context=512)
    view = View("", (Message("user", "word " * 2000),), 1, 1)
    with pytest.raises(OperatorError) as caught:
        await operator.next(view, lambda _: None)
    assert caught.value.reason == "context"
    await operator.close()


async def test_estimates_are_near_the_real_count():
    """Estimated tokens of code and prose are within 40 % of what this model's tokenizer counts."""
    operator = LlamaOperator(PATH, context=256)

    async def count(text):
        """What the engine counts, told when it refuses a prompt beyond its window."""
        with pytest.raises(OperatorError) as caught:
            await operator.next(View("", (Message("user", text),), 1, 1), lambda _: None)
        return int(re.search(r"(\d+) tokens\)", str(caught.value))[1])

    frame = await count("a " * 400) - 400
    for text in (SYSTEM * 20, THIS):
        assert estimate_tokens(text) == pytest.approx(await count(text) - frame, rel=0.4)
    await operator.close()


async def test_a_damaged_file_is_typed(tmp_path):
    """A file that only begins like a GGUF is refused with what to type."""
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"GGUF" + b"\0" * 1000)
    with pytest.raises(OperatorError, match="cave models pull") as caught:
        await LlamaOperator(file).next(View("", (Message("user", "x"),), 1, 1), print)
    assert caught.value.reason == "model"
