"""What of memory has changed since the last image: never less than what has, by both trackers."""

import gc
import mmap
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import _inkernel

buffers: Any = _inkernel.load("image.buffers")
hashes: Any = _inkernel.load("image.hashes")
pages: Any = _inkernel.load("image.pages")

MB = 1 << 20


@pytest.fixture(params=["pages", "hashes"])
def tracker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made = new(request.param, monkeypatch)
    yield made
    if made._pages is not None:
        made._pages.close()


def new(kind: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("CAVE_TRACKING", kind)
    ids = iter(range(10**9))
    made = buffers.Buffers(lambda: f"b{next(ids)}")
    if made.tracking != kind:
        pytest.skip(made.why)
    return made


class Model:
    """Full copies of what was given, to compare with."""

    def __init__(self, tracker: Any) -> None:
        self.tracker = tracker
        self.copies: dict[str, bytes] = {}

    def look(self, *arrays: Any, commit: bool = True) -> list[Any]:
        """Takes what is given; it must make the copies equal to the memory."""
        held = [pickle.PickleBuffer(array) for array in arrays]
        places = [buffers.address_of(one) for one in held]
        found = self.tracker.look(places, commit=commit)
        now = {}
        for seen, (address, size) in zip(found, places, strict=True):
            assert (seen.buffer.address, seen.buffer.size) == (address, size)
            if not commit and not seen.base:
                continue
            copy = bytearray(self.copies[seen.buffer.id] if seen.base else size)
            for at, length in seen.runs:
                assert at % self.tracker.chunk == 0
                copy[at : at + length] = hashes.view(address + at, length)
            assert bytes(copy) == bytes(hashes.view(address, size)), "a change was not seen"
            now[seen.buffer.id] = bytes(copy)
        if commit:
            assert len(now) == len(found)
            self.copies = now
            self.tracker.keep(set(now))
        return list(found)


def given_bytes(found: list[Any]) -> int:
    return sum(length for seen in found for _, length in seen.runs)


@pytest.mark.parametrize("size", [64 << 10, 700_001, 3 * MB, 20 * MB + 5])
def test_one_byte_costs_one_chunk(tracker: Any, size: int) -> None:
    """New memory is given whole, unchanged memory not at all, one byte as one chunk (as two
    where its page lies in both)."""
    model, array = Model(tracker), np.ones(size, "u1")
    assert given_bytes(model.look(array)) == size
    assert given_bytes(model.look(array)) == 0
    for at in (0, size // 2, size - 1):
        array[at] += 1
        (seen,) = model.look(array)
        assert seen.base
        assert 0 < sum(length for _, length in seen.runs) <= 2 * tracker.chunk
        assert given_bytes(model.look(array)) == 0


@pytest.mark.parametrize(
    "write",
    [
        lambda a: np.add(a, 1, out=a),
        lambda a: memoryview(a).cast("B").__setitem__(slice(5000, 5003), b"abc"),
        lambda a: a[::4096].fill(7),
        lambda a: a.view("u8")[1000:2000].sort(),
        lambda a: a[100_000:100_001].view().__setitem__(0, 3),
        lambda a: _readinto(a[12_000:50_000]),
        lambda a: np.copyto(a[-10:], 9),
    ],
)
def test_every_way_to_write_is_seen(tracker: Any, write: Any) -> None:
    """numpy in place, memoryviews, strides, views, and what the system itself writes."""
    model = Model(tracker)
    array = np.arange(4 * MB, dtype="u4").view("u1")[::-1][: 2 * MB].copy()
    model.look(array)
    for _ in range(3):
        write(array)
        model.look(array)


def _readinto(part: Any) -> None:
    with Path("/dev/zero").open("rb", buffering=0) as zero:
        zero.readinto(memoryview(part))


def test_looking_without_taking_changes_nothing(tracker: Any) -> None:
    """A look that is no image leaves what the next image is compared with."""
    model, array = Model(tracker), np.zeros(2 * MB, "u1")
    model.look(array)
    array[MB] = 1
    for commit in (False, False, True):
        assert 0 < given_bytes(model.look(array, commit=commit)) <= 2 * tracker.chunk


def test_memory_that_is_freed_and_used_again(tracker: Any) -> None:
    """Another array at the same address and of the same size is compared by its content."""
    model = Model(tracker)
    for number in range(20):
        array = np.full(3 * MB, number, "u1")
        model.look(array)
        del array
        gc.collect()
        if number % 2:
            zeros = np.zeros(3 * MB, "u1")  # perhaps the same address, its pages never touched
            model.look(zeros)
            del zeros


def test_pages_that_were_given_back_have_changed(tracker: Any) -> None:
    """madvise(MADV_DONTNEED) turns content to zeros without a write."""
    with mmap.mmap(-1, 4 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        array = np.frombuffer(memory, "u1")
        array[:] = 5
        model = Model(tracker)
        model.look(array)
        memory.madvise(mmap.MADV_DONTNEED, MB, MB)
        assert given_bytes(model.look(array)) >= MB
        assert given_bytes(model.look(array)) == 0
        memory.madvise(mmap.MADV_DONTNEED)
        assert array[0] == 0
        model.look(array)
        del array


def test_shared_memory_is_never_trusted_to_its_pages(tracker: Any) -> None:
    """What another mapping of the same file writes is seen."""
    fd = os.memfd_create("shared")
    os.ftruncate(fd, 2 * MB)
    with mmap.mmap(fd, 2 * MB) as one, mmap.mmap(fd, 2 * MB, flags=mmap.MAP_PRIVATE) as two:
        arrays = [np.frombuffer(one, "u1"), np.frombuffer(two, "u1")]
        model = Model(tracker)
        model.look(*arrays)
        os.pwrite(fd, b"other", 70_000)
        seen = model.look(*arrays)
        assert given_bytes(seen) >= tracker.chunk
        del arrays, seen
    os.close(fd)


def test_buffers_that_overlap_are_each_told(tracker: Any) -> None:
    """An array and a view of it both give what was written, also the second time."""
    model, array = Model(tracker), np.zeros(8 * MB, "u1")
    view = array[MB + 7 : 5 * MB]
    model.look(array, view, array)
    for at in (2 * MB, 2 * MB, MB + 7, 5 * MB - 1, 6 * MB):
        array[at] += 1
        first, second, third = model.look(array, view, array)
        assert first.runs == third.runs
        assert bool(second.runs) == (at < 5 * MB)


def test_what_is_overwritten_every_time_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hot buffer's pages are not protected; when it comes to rest, they are again."""
    tracker = new("pages", monkeypatch)
    model, array = Model(tracker), np.zeros(4 * MB, "u1")
    (seen,) = model.look(array)
    assert seen.buffer.digests is None
    array += 1
    (seen,) = model.look(array)
    assert seen.buffer.digests is not None
    assert model.look(array)[0].buffer.digests is None
    array[5] = 0
    assert 0 < given_bytes(model.look(array)) <= 2 * tracker.chunk
    tracker._pages.close()


def test_a_child_that_writes_is_not_us(tracker: Any) -> None:
    """A forked child's writes are no changes; ours afterwards are."""
    model, array = Model(tracker), np.zeros(4 * MB, "u1")
    model.look(array)
    pid = os.fork()
    if not pid:
        array[:] = 9
        os._exit(int(array[5] != 9))
    assert os.waitpid(pid, 0)[1] == 0
    assert given_bytes(model.look(array)) == 0
    array[MB] = 1
    assert 0 < given_bytes(model.look(array)) <= 2 * tracker.chunk


def test_no_page_tracking_is_said_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system refuses, hashing takes over and the reason is kept."""

    def refuse(*_: Any) -> None:
        raise pages.Untracked("userfaultfd: Operation not permitted")

    monkeypatch.delenv("CAVE_TRACKING", raising=False)
    monkeypatch.setattr(pages.Pages, "_open", refuse)
    made = buffers.Buffers(lambda: "b")
    assert (made.tracking, made.chunk) == ("hashes", hashes.CHUNK)
    assert "not permitted" in made.why


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["byte", "fill", "border", "new", "free", "grow", "copy", "look", "zero"]),
        st.integers(0, 5),
        st.integers(0, 1 << 23),
    ),
    min_size=5,
    max_size=40,
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS)
@pytest.mark.parametrize("kind", ["pages", "hashes"])
def test_any_sequence_of_writes_gives_the_memory(
    kind: str, steps: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is written, freed, resized or copied: the images add up to the memory."""
    tracker = new(kind, monkeypatch)
    model = Model(tracker)
    sizes = [70_000, MB, MB + 4095, 2 * MB + 1, 5 * MB]
    arrays = [np.zeros(size, "u1") for size in sizes]
    for act, which, number in steps:
        array = arrays[which % len(arrays)]
        at = number % array.size
        match act:
            case "byte":
                array[at] ^= 1
            case "fill":
                array[at : at + number % 3_000_000] = number % 251
            case "border":
                border = -(-(array.ctypes.data + at) // 4096) * 4096 - array.ctypes.data
                array[max(border - 1, 0) : border + 1] ^= 3
            case "new":
                arrays[which % len(arrays)] = np.full(array.size, number % 251, "u1")
            case "free":
                size = array.size
                del array
                arrays[which % len(arrays)] = np.zeros(0, "u1")
                arrays[which % len(arrays)] = np.zeros(size, "u1")
            case "grow":
                del array
                arrays[which % len(arrays)].resize(70_000 + number, refcheck=False)
            case "copy":
                array[: at + 1] = array[: at + 1][::-1].copy()
            case "zero":
                array[at:] = array[at:]
            case "look":
                model.look(*arrays)
    model.look(*arrays)
    if tracker._pages is not None:
        tracker._pages.close()
