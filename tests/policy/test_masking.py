"""What a session masks in its events, in what streams, and in what its operator is shown."""

import random

import pytest

from cave.errors import ConfigError
from cave.events import (
    CellFinished,
    CellOutput,
    CellStarted,
    Delta,
    Fault,
    Output,
    OutputLate,
    StepReplied,
    StoredValue,
    TextDelta,
    Variable,
)
from cave.history import History
from cave.policy.masking import Mask
from cave.replay import planned

CANARY = "correct-horse/battery+staple"


def mask() -> Mask:
    return Mask(["CANARY"], environ={"CANARY": CANARY})


def stream(text: str, name: str = "stdout") -> Output:
    return Output("stream", text, name)


def test_every_text_of_an_event_is_masked_and_what_is_no_text_stays() -> None:
    """Errors, tracebacks, summaries, MIME bundles; stored values and digests are as they were,
    and an event without a secret is the same object."""
    event = CellFinished(
        cell=1,
        status="error",
        outputs=(
            stream(f"a {CANARY}\n"),
            Output("display_data", data={"text/plain": CANARY, "application/json": {CANARY: [1]}}),
        ),
        error=Fault("KeyError", CANARY, f"Traceback\n{CANARY}", f"did you mean {CANARY}?"),
        delta=Delta(added=(Variable("x", "str", shape=(1,), summary=f"str {CANARY!r}"),)),
        observed=(f"opened {CANARY}",),
        full_blob=CANARY,
    )
    masked = mask().event(event)
    assert CANARY not in repr(masked).replace(f"full_blob={CANARY!r}", "")
    assert masked.full_blob == CANARY
    assert masked.outputs[0].text == "a [secret CANARY]\n"
    assert mask().event(masked) == masked
    plain = CellFinished(cell=1, status="ok", outputs=(stream("a"),))
    assert mask().event(plain) is plain
    stored = StoredValue("safe", (3,), data=CANARY)
    assert mask().value((stored, CANARY)) == (stored, "[secret CANARY]")


def test_a_source_that_is_masked_says_so() -> None:
    """What ran cannot be told from the record, and the record says that."""
    masked = mask().event(CellStarted(cell=1, source=f"key = {CANARY!r}"))
    assert (masked.source, masked.masked) == ("key = '[secret CANARY]'", True)
    assert not mask().event(CellStarted(cell=2, source="key = 1")).masked


@pytest.mark.parametrize("seed", range(20))
def test_a_secret_in_pieces_is_masked_though_other_output_lies_between(seed: int) -> None:
    """Pieces of stdout with stderr between them, also across the end of the cell: what is
    shown while it runs, and what is journaled, have no more of it than a beginning."""
    draw = random.Random(seed)
    cuts = sorted(draw.sample(range(1, len(CANARY)), 3))
    pieces = [CANARY[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
    it, shown = mask(), ""
    outputs = [o for piece in pieces[:3] for o in (stream(piece), stream(".", "stderr"))]
    for output in outputs:
        if isinstance(passed := it.passing(CellOutput(cell=1, output=output)), CellOutput):
            shown += passed.output.text if passed.output.name == "stdout" else ""
    end = it.event(CellFinished(cell=1, status="ok", outputs=tuple(outputs)))
    shown += "".join(e.output.text for e in it.rests(end) if isinstance(e, CellOutput))
    assert shown == CANARY[: cuts[2]]  # all of it was the beginning of a secret
    late = it.event(OutputLate(cell=1, outputs=(stream(pieces[3] + " ok"),)))
    assert late.outputs[0].text == "[secret CANARY] ok"
    whole = it.event(CellFinished(cell=2, status="ok",
                                  outputs=(*outputs, stream(pieces[3] + " ok"))))  # fmt: skip
    assert "".join(o.text for o in whole.outputs if o.name == "stdout") == "[secret CANARY] ok"


def test_text_of_the_operator_is_masked_as_it_streams() -> None:
    """A model that spells a secret out letter by letter is not shown doing so."""
    it = mask()
    told = [it.passing(TextDelta(turn=1, step=1, text=c)) for c in f"It is {CANARY}, see"]
    event = StepReplied(turn=1, step=1, kind="finish", text=f"It is {CANARY}, see")
    shown = [*told, *it.rests(event)]
    text = "".join(e.text for e in shown if isinstance(e, TextDelta))
    assert text == it.event(event).text == "It is [secret CANARY], see"


def test_long_texts_are_masked_across_their_chunks() -> None:
    """Whatever the chunks, also in the midst of a letter."""
    data = f"ä{CANARY}ö".encode() * 3
    for size in (1, 2, 7, 1000):
        chunks = [data[at : at + size] for at in range(0, len(data), size)]
        assert b"".join(mask().chunks(chunks)).decode() == "ä[secret CANARY]ö" * 3


def test_values_that_change_are_masked_from_then_on_and_before() -> None:
    """A rotated key does not make the old one public; one that is too short is refused."""
    environ = {"KEY": "first-value-1"}
    it = Mask(["KEY"], environ=environ)
    environ["KEY"] = "second-value-2"
    it.look()
    assert it.text("first-value-1 second-value-2") == "[secret KEY] [secret KEY]"
    environ["KEY"] = "short"
    with pytest.raises(ConfigError, match="less than 6"):
        it.look()


def test_a_cell_whose_source_is_masked_does_not_run_again_by_itself() -> None:
    """What ran is known to the process that ran it, and to no other: there it is left, with
    the reason."""
    history, started = History(), CellStarted(cell=1, source=f"key = {CANARY!r}", kernel=1)
    history.feed((mask().event(started), CellFinished(cell=1, status="ok")))
    assert history.source_of(1) is None
    assert "masked in the journal" in planned(history, 1, asked=True).obstacle
    history.sources[1] = started.source
    assert history.source_of(1) == started.source
    assert not planned(history, 1, asked=True).obstacle
