"""The spool's two ends: what the kernel writes, the host reads, whatever happens between."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cave.kernel import spool as reader
from cave.kernel.wire import Codec
from tests import _inkernel

if TYPE_CHECKING:
    import pytest

writer = _inkernel.load("spool")
CODEC = Codec("key")


def frames(text: str) -> list[bytes]:
    return [b"stream.stdout", *CODEC.encode("stream", {"text": text}, {}, "id")]


def texts(folder: Path, **options: Any) -> list[tuple[int, str]]:
    found = reader.messages(folder, CODEC, **options)
    return [(message.number, message.content["text"]) for message in found]


def test_what_is_written_is_read_in_order(tmp_path: Path) -> None:
    """Messages come back with their numbers, over segments, from and up to any number."""
    spool = writer.Spool(str(tmp_path), segment=500)
    for i in range(1, 11):
        assert spool.append(frames(f"m{i}")) == i
    assert len(list(tmp_path.iterdir())) > 2
    assert texts(tmp_path) == [(i, f"m{i}") for i in range(1, 11)]
    assert texts(tmp_path, after=3, upto=6) == [(i, f"m{i}") for i in range(4, 7)]
    assert texts(tmp_path, after=10) == []
    assert texts(tmp_path / "nowhere") == []


def test_a_torn_end_is_left_out(tmp_path: Path) -> None:
    """Whatever the last record was cut to, all before it is read."""
    spool = writer.Spool(str(tmp_path))
    spool.append(frames("whole"))
    (segment,) = tmp_path.iterdir()
    first = segment.stat().st_size
    spool.append(frames("torn"))
    data = segment.read_bytes()
    for size in range(first, len(data)):
        segment.write_bytes(data[:size])
        assert texts(tmp_path) == [(1, "whole")]


def test_damaged_records_are_left_out(tmp_path: Path) -> None:
    """A record whose bytes changed is skipped by its checksum; garbage ends a segment."""
    spool = writer.Spool(str(tmp_path))
    for i in range(3):
        spool.append(frames(f"text {i}"))
    (segment,) = tmp_path.iterdir()
    data = segment.read_bytes()
    segment.write_bytes(data.replace(b"text 1", b"TEXT 1"))
    assert texts(tmp_path) == [(1, "text 0"), (3, "text 2")]
    segment.write_bytes(data + b"\xff" * 1000)
    assert len(texts(tmp_path)) == 3


def test_a_full_disk_loses_records_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partly written records are taken back; numbers go on; what comes later is read."""
    spool = writer.Spool(str(tmp_path))
    spool.append(frames("before"))
    write: Callable[..., int] = os.write

    def full(fd: int, data: memoryview) -> int:
        if len(data) < 60:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[:50])

    monkeypatch.setattr(os, "write", full)
    assert spool.append(frames("lost")) == 2
    assert spool.lost == 1
    monkeypatch.undo()
    assert spool.append(frames("after")) == 3
    assert texts(tmp_path) == [(1, "before"), (3, "after")]


def test_a_limit_holds_until_the_host_acknowledges(tmp_path: Path) -> None:
    """Above its limit the spool takes nothing more until segments were deleted."""
    spool = writer.Spool(str(tmp_path), segment=1000, limit=5000)
    for i in range(50):
        spool.append(frames(f"m{i}"))
    assert 0 < spool.lost < 50
    assert reader.size(tmp_path) < 7000
    reader.acknowledge(tmp_path, spool.number)
    number = spool.append(frames("fits again"))
    assert texts(tmp_path)[-1] == (number, "fits again")


def test_acknowledging_keeps_what_is_newer(tmp_path: Path) -> None:
    """Only segments whose every message is acknowledged are deleted."""
    spool = writer.Spool(str(tmp_path), segment=500)
    for i in range(1, 31):
        spool.append(frames(f"m{i}"))
    for number in range(31):
        reader.acknowledge(tmp_path, number)
        kept = [n for n, _ in texts(tmp_path)]
        assert set(range(number + 1, 31)) <= set(kept)
    assert len(list(tmp_path.iterdir())) == 1
