"""Images written and read back: what is in a snapshot, and what it costs."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from cave.errors import SnapshotError, SnapshotNotFound, StoreError
from cave.events import Variable
from cave.image import ImageBuffer, Note
from cave.snapshot import Snapshots
from cave.snapshot.pack import PART
from tests.snapshot._images import (
    CHUNK,
    content,
    image,
    loaded,
    opened,
    read_back,
    same,
    variables,
    write,
)

WORLD = {
    "defs": content("classes", definitions=True, names=("def:P", "P")),
    "x": content("a small stream"),
    "df": content("frame", os.urandom(CHUNK * 300 + 77), os.urandom(100), b""),
    "ab": content("two names", names=("a", "b"), uses=True),
    "zeros": content("nothing", bytes(CHUNK * 9 + 5)),
    "hidden:random": content("state"),
}


def flipped(buffer: bytes, at: int) -> bytes:
    return buffer[:at] + bytes([buffer[at] ^ 255]) + buffer[at + 1 :]


def test_a_snapshot_comes_back_as_it_was_written(store: Snapshots, folder: Path) -> None:
    """Another process reads the same groups, variables and facts that were written."""
    made = write(store, "000001-00000001", WORLD)
    found = opened(folder).read(made.id)
    assert found.groups == made.groups
    assert found.variables == made.variables
    assert (found.digest, found.written, found.size) == (made.digest, made.written, made.size)
    assert found.written == (folder / f"{made.id}.pack").stat().st_size
    assert found.size == sum(
        len(c.stream) + sum(map(len, c.buffers.values())) for c in WORLD.values()
    )
    assert same(WORLD, read_back(opened(folder), made.id))
    assert list(store.ids()) == [made.id]


def test_a_buffer_written_at_once_is_one_piece(store: Snapshots) -> None:
    """Consecutive chunks merge to one piece that can be mapped, zeros to another."""
    made = write(store, "000001-00000001", WORLD)
    plan = store.plan(made, live=None)
    with contextlib.closing(plan):
        pieces = {g.id: [len(b.pieces) for b in g.buffers] for g in plan.load.groups}
    assert pieces["df"] == [1, 1, 0]
    assert pieces["zeros"] == [1]


def test_one_changed_chunk_costs_a_chunk_and_its_nodes(store: Snapshots, folder: Path) -> None:
    """A difference writes the new chunk, a node on each level and little more; both read back."""
    one = write(store, "000001-00000001", WORLD)
    frame = WORLD["df"].buffers["b0"]
    changed = {**WORLD, "df": content("frame", flipped(frame, CHUNK * 200 + 9), *frame_rest())}
    two = write(store, "000002-00000002", changed, (one, WORLD))
    assert two.written < 4096 + CHUNK + 2 * 4672 + 4096
    assert same(changed, read_back(opened(folder), two.id))
    assert same(WORLD, read_back(opened(folder), one.id))
    assert two.parent == one.id


def frame_rest() -> list[bytes]:
    return [WORLD["df"].buffers["b1"], b""]


def test_an_untouched_snapshot_costs_its_manifest(store: Snapshots) -> None:
    """A snapshot in which nothing changed has neither chunks nor entries of its own."""
    one = write(store, "000001-00000001", WORLD)
    two = write(store, "000002-00000002", WORLD, (one, WORLD))
    assert two.written < 1500
    assert two.places == one.places
    assert two.blocks == one.blocks


def test_equal_content_is_written_once(store: Snapshots, folder: Path) -> None:
    """A frame made again, and a whole image by a process that begins anew, cost no data."""
    one = write(store, "000001-00000001", WORLD)
    again = store.write(
        image("000002-00000002", {**WORLD, "copy": WORLD["df"]}),
        base=one,
        cell=2,
        at=0.0,
        variables=(),
    )
    assert again.written < 5000
    fresh = opened(folder)
    third = fresh.write(image("000003-00000003", WORLD), base=again, cell=3, at=0.0, variables=())
    assert third.written < 5000
    assert same(WORLD, read_back(opened(folder), third.id))


def test_zeros_take_no_space(store: Snapshots) -> None:
    """Chunks of zeros are neither stored nor read."""
    world = {"z": content("z", bytes(CHUNK * 5000))}
    made = write(store, "000001-00000001", world)
    assert made.written < 80_000
    assert same(world, read_back(store, made.id))


def test_streams_that_shrink_are_deflated(store: Snapshots) -> None:
    """A long stream is deflated where a sample says that this halves it, else left as it is."""
    text, noise = {"t": content(b"words " * 20000)}, {"n": content(os.urandom(120_000))}
    assert write(store, "000001-00000001", text).written < 10_000
    assert write(store, "000002-00000002", noise).written > 120_000
    for id, world in (("000001-00000001", text), ("000002-00000002", noise)):
        assert same(world, read_back(store, id))


def test_very_long_streams_are_cut(store: Snapshots) -> None:
    """A stream longer than a part comes back whole."""
    world = {"long": content(os.urandom(1 << 20) * (PART // (1 << 20) + 1) + b"end")}
    made = write(store, "000001-00000001", world)
    assert len(made.groups[0].stream) == 2
    assert same(world, read_back(store, made.id))


def test_variables_say_how_they_come_back(store: Snapshots, folder: Path) -> None:
    """exact, rebuilt, lost, changed where a part is lost, assumed where nobody looked."""
    notes = (
        Note("lost", "gen", "generator", "generators cannot be written"),
        Note("rebuilt", "con", "Connection", "opened again"),
        Note("lost", "obj", "Thing", "a lock is held", ".lock"),
    )
    world = {
        "g": content("g", names=("gen", "con", "obj", "fine"), notes=notes),
        "old": content("o"),
    }
    one = write(store, "000001-00000001", world)
    two = write(store, "000002-00000002", world, (one, world), assumed=["old"])
    expected = {"gen": "lost", "con": "rebuilt", "obj": "changed", "fine": "exact"}
    assert labels(one) == {**expected, "old": "exact"}
    assert labels(opened(folder).read(two.id)) == labels(two) == {**expected, "old": "assumed"}
    assert two.notes == notes
    three = write(store, "000003-00000003", world, (two, world))
    assert labels(three)["old"] == "exact"
    assert three.written < 1500


def labels(manifest: object) -> dict[str, str]:
    return {v.name: v.fidelity for v in manifest.variables}  # type: ignore[attr-defined]


def test_facts_of_variables_are_kept(store: Snapshots, folder: Path) -> None:
    """Type, shape, size, cell and summary come back, lone surrogates too; a change of facts
    alone is written."""
    world = {"x": content("x")}
    facts = Variable("x", "Frame", (3, 4), 99, 7, "volatile", "caf\u00e9 \udc80")
    loose = Variable("y", "int", None, None, None, "lost", "")
    one = store.write(
        image("000001-00000001", world),
        base=None,
        cell=1,
        at=2.5,
        name="n",
        variables=[facts, loose],
    )
    found = opened(folder).read(one.id)
    assert {v.name: v for v in found.variables} == {
        "x": replace(facts, fidelity="exact"),
        "y": loose,
    }
    assert (found.name, found.at, found.cell) == ("n", 2.5, 1)
    other = replace(facts, summary="other")
    store.write(
        image("000002-00000002", world, (one.id, world)),
        base=one,
        cell=2,
        at=0.0,
        variables=[other],
    )
    assert [v.summary for v in opened(folder).read("000002-00000002").variables] == ["other"]


def test_versions_that_differ_are_named(store: Snapshots) -> None:
    """Python and libraries that are another now, or are not there, are named with both."""
    made = write(store, "000001-00000001", WORLD)
    assert made.versions("3.11.7", {"numpy": "2.4", "other": "1"}) == ()
    plan = store.plan(made, live=None, python="3.13.0", packages={})
    with contextlib.closing(plan):
        assert plan.versions == (("python", "3.11.7", "3.13.0"), ("numpy", "2.4", ""))


def test_groups_that_are_the_same_stay(store: Snapshots) -> None:
    """Groups equal in all that they hold stay; those that need other definitions do not."""
    one = write(store, "000001-00000001", WORLD)
    changed = {**WORLD, "x": content("other"), "new": content("new")}
    two = write(store, "000002-00000002", changed, (one, WORLD))
    plan = store.plan(one, live=two)
    with contextlib.closing(plan):
        assert set(plan.load.keep) == WORLD.keys() - {"x"}
        assert plan.changed == ("x",)
        assert plan.removed == ("new",)
        assert same({"x": WORLD["x"]}, loaded(plan.load))
    world = {**WORLD, "defs": content("other classes", definitions=True, names=("def:P", "P"))}
    three = write(store, "000003-00000003", world, (two, changed))
    plan = store.plan(one, live=three)
    with contextlib.closing(plan):
        assert set(plan.load.keep) == WORLD.keys() - {"defs", "ab"}
        assert [g.id for g in plan.load.groups] == ["defs", "ab"]


def test_what_is_only_assumed_of_the_kernel_is_loaded(store: Snapshots) -> None:
    """A group that nobody looked at in the live kernel may differ: it does not stay."""
    one = write(store, "000001-00000001", WORLD)
    two = write(store, "000002-00000002", WORLD, (one, WORLD), assumed=["x"])
    plan = store.plan(one, live=two)
    with contextlib.closing(plan):
        assert plan.changed == ("x",)


def test_a_buffer_may_grow_on_its_base(store: Snapshots) -> None:
    """A longer buffer may be given as a difference, when every chunk is from one or the other."""
    data = os.urandom(CHUNK * 10)
    world = {"x": content("x", data)}
    one = write(store, "000001-00000001", world)
    more = os.urandom(CHUNK)
    given = image("000002-00000002", {"x": content("x2", data + more)}, (one.id, world))
    runs = ((CHUNK * 10, memoryview(more)),)
    buffer = ImageBuffer("b0", CHUNK * 11, base=True, runs=runs)
    given = replace(given, groups=(replace(given.groups[0], buffers=(buffer,)),))
    two = store.write(given, base=one, cell=2, at=0.0, variables=())
    assert same({"x": content("x2", data + more)}, read_back(store, two.id))


def test_images_that_cannot_be_are_refused(store: Snapshots) -> None:
    """What a kernel says wrong is a SnapshotError, and leaves no file."""
    one = write(store, "000001-00000001", WORLD)
    good = image("000002-00000002", WORLD, (one.id, WORLD))
    whole = image("000002-00000002", {"x": content("x", os.urandom(CHUNK * 3))})
    group = whole.groups[0]
    half = ImageBuffer("b0", CHUNK * 3, base=False, runs=((0, memoryview(bytes(CHUNK))),))
    odd = ImageBuffer("b0", CHUNK * 3, base=False, runs=((5, memoryview(bytes(CHUNK))),))
    beyond = ImageBuffer("b0", CHUNK, base=False, runs=((CHUNK, memoryview(bytes(CHUNK))),))
    absent = ImageBuffer("b9", CHUNK, base=True, runs=())
    wrong = [
        (replace(good, base="000009-00000009"), one),
        (good, None),
        (replace(good, chunk=1000), one),
        (replace(good, id="../../etc/passwd"), one),
        (replace(good, groups=(*good.groups, good.groups[0])), one),
        (replace(whole, groups=(replace(group, same=True),)), None),
        (replace(whole, groups=(replace(group, same=True),)), one),
        (replace(whole, groups=(replace(group, stream=None),)), None),
        *((replace(whole, groups=(replace(group, buffers=(b,)),)), None) for b in (half, odd)),
        *((replace(whole, groups=(replace(group, buffers=(b,)),)), None) for b in (beyond, absent)),
    ]
    for given, base in wrong:
        with pytest.raises(SnapshotError):
            store.write(given, base=base, cell=2, at=0.0, variables=())
    assert list(store.ids()) == [one.id]


def test_a_snapshot_is_never_written_over(store: Snapshots, folder: Path) -> None:
    """A second image of one id is refused, and the first stays as it is."""
    one = write(store, "000001-00000001", WORLD)
    before = (folder / f"{one.id}.pack").read_bytes()
    with pytest.raises(SnapshotError, match="already"):
        write(store, one.id, {"x": content("other")})
    assert (folder / f"{one.id}.pack").read_bytes() == before
    store.retire(set())
    two = write(store, "000002-00000002", WORLD)
    three = write(store, "000003-00000003", WORLD, (two, WORLD))
    store.retire({three.id})
    with pytest.raises(SnapshotError, match="already"):
        write(store, two.id, WORLD)


def test_a_base_that_is_gone_is_not_built_upon(store: Snapshots, folder: Path) -> None:
    """A difference from a retired snapshot is refused; a whole image is written in full."""
    world = {"x": content("x", os.urandom(CHUNK * 30))}
    one = write(store, "000001-00000001", world)
    opened(folder).retire(set())
    with pytest.raises(SnapshotError, match="gone"):
        write(store, "000002-00000002", world, (one, world))
    two = store.write(image("000002-00000002", world), base=one, cell=2, at=0.0, variables=())
    assert same(world, read_back(opened(folder), two.id))


def test_what_others_retired_is_not_referred_to(store: Snapshots, folder: Path) -> None:
    """A writer that remembers chunks notices that another process let go of them."""
    frame = content("x", os.urandom(CHUNK * 30))
    one = write(store, "000001-00000001", {"x": frame})
    two = write(store, "000002-00000002", {"y": content("y")}, (one, {"x": frame}))
    opened(folder).retire({two.id})
    three = write(store, "000003-00000003", {"x": frame}, (two, {"y": content("y")}))
    assert same({"x": frame}, read_back(opened(folder), three.id))


def test_unknown_snapshots_are_not_found(store: Snapshots, folder: Path) -> None:
    """An id that is not there, or is no id, is a SnapshotNotFound; a KeyError too."""
    assert list(store.ids()) == []
    for id in ("000001-00000001", "nonsense", "../x", ""):
        with pytest.raises(SnapshotNotFound, match="no snapshot") as caught:
            store.read(id)
        assert isinstance(caught.value, KeyError)
    assert not folder.exists()


def test_progress_is_told(store: Snapshots) -> None:
    """The callback hears of all bytes that are given, in order, and may stop the writing."""
    world = {"x": content("x", os.urandom(CHUNK * 600))}
    heard: list[tuple[int, int]] = []
    store.write(
        image("000001-00000001", world),
        base=None,
        cell=1,
        at=0.0,
        variables=(),
        progress=lambda done, total: heard.append((done, total)),
    )
    assert heard == sorted(heard)
    assert heard[-1] == (CHUNK * 600, CHUNK * 600)

    def stop(done: int, total: int) -> None:
        raise InterruptedError("stopped")

    with pytest.raises(StoreError):
        store.write(
            image("000002-00000002", {"y": content("y", os.urandom(CHUNK * 600))}),
            base=None,
            cell=2,
            at=0.0,
            variables=(),
            progress=stop,
        )
    assert list(store.ids()) == ["000001-00000001"]


def test_no_thread_and_no_descriptor_stays(store: Snapshots) -> None:
    """After writing, planning and closing, threads and descriptors are as before."""
    before = open_files(), threading.active_count()
    made = write(store, "000001-00000001", WORLD)
    store.plan(made, live=None).close()
    read_back(store, made.id)
    store.verify(deep=True)
    assert (open_files(), threading.active_count()) == before


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_many_groups_keep_their_order(store: Snapshots, folder: Path) -> None:
    """Groups come back in the order of the image, however often some of them changed."""
    world = {f"v{n}": content(f"value {n}") for n in range(300)}
    last = write(store, "000001-00000001", world)
    for turn in range(2, 40):
        before = dict(world)
        world[f"v{turn * 7 % 300}"] = content(f"changed in {turn}")
        world.pop(f"v{turn * 3 % 300}", None)
        world = {f"n{turn}": content("new"), **world}
        last = write(store, f"{turn:06d}-00000001", world, (last, before))
    found = opened(folder).read(last.id)
    assert [g.id for g in found.groups] == list(world)
    assert len(found.blocks) <= 30
    assert [v.name for v in found.variables] == [v.name for v in variables(world)]
    assert same(world, read_back(opened(folder), last.id))
