"""What goes over the wire: its cap, its JSON, and what is captured for `_output_N`."""

from __future__ import annotations

import json

import pytest

from tests import _inkernel

output = _inkernel.load("output")


def header(msg_id: str) -> bytes:
    return json.dumps({"msg_id": msg_id, "session": "s"}).encode()


def test_output_above_the_cap_stays_off_the_wire() -> None:
    """Each cell has its own megabyte; once over it, nothing of its output goes out."""
    quota = output.Quota()
    assert quota.admits(b"stream.stdout", header("a"), output.CAP)
    assert not quota.capped("a")
    assert not quota.admits(b"display_data", header("a"), 1)
    assert quota.capped("a")
    assert quota.admits(b"kernel.1.execute_result", header("b"), 5)


@pytest.mark.parametrize("topic", [b"kernel.1.status", b"kernel.1.error", b"kernel.1.cave_reply"])
def test_what_ends_a_cell_always_goes_out(topic: bytes) -> None:
    """Statuses, errors and replies are sent whatever the cell has put out."""
    quota = output.Quota()
    quota.admits(b"stream.stdout", header("a"), 2 * output.CAP)
    assert quota.admits(topic, header("a"), 10)


def test_the_memory_of_caps_is_bounded() -> None:
    """A thousand cells do not make the quota remember a thousand."""
    quota = output.Quota()
    for i in range(1000):
        quota.admits(b"stream.stdout", header(str(i)), 2 * output.CAP)
    assert quota.capped("999")
    assert not quota.capped("0")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": "\udcc3"}, {"a": "\\udcc3"}),
        ({"\ud800": ["é", "\U0001f600"]}, {"\\ud800": ["é", "\U0001f600"]}),
        ({"back\\slash\udcff": 1}, {"back\\slash\\udcff": 1}),
    ],
)
def test_messages_are_valid_json_in_utf8(value: object, expected: object) -> None:
    """Lone surrogates become visible escapes; everything else is as it was."""
    assert json.loads(output.pack(value).decode("utf-8")) == expected


def test_what_json_has_not_is_packed_all_the_same() -> None:
    """NaN, odd keys and any object in a display's data do not break the message."""
    value = {"a": float("nan"), ("k",): [float("-inf"), 1.5, None, {1, 2}], "o": object()}
    packed = json.loads(output.pack(value), parse_constant=pytest.fail)
    assert packed["a"] == "nan"
    assert packed["('k',)"] == ["-inf", 1.5, None, [1, 2]]
    assert packed["o"].startswith("<object")


def test_capturing_takes_one_cells_text_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the running cell's text counts, progress bars by their last state."""
    monkeypatch.setattr(output, "BIND_FROM", 10)
    monkeypatch.setattr(output, "BIND_UP_TO", 100)
    capture = output.Capture()
    capture.begin("a")
    capture.add("b", "x" * 50)
    capture.add("a", "1%\r2%\r" * 100)
    assert capture.end() is None
    capture.begin("a")
    capture.add("a", "x" * 50)
    assert capture.end() == "x" * 50
    capture.begin("a")
    for _ in range(3):
        capture.add("a", "x" * 50)
    assert capture.end() is None
