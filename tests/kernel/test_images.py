"""Images of real kernels, and the way back: into a new process, in place, past every fault."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import random
import signal
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cave.errors import KernelDied, LeaseLost, SnapshotError
from cave.image import Image, Note
from cave.kernel import Stale, discard, images, pending
from tests.kernel._host import Host, text
from tests.kernel._keep import Keep

Make = Callable[..., Host]


@pytest.fixture
def host(make_host: Make) -> Host:
    """A host with a kernel of its own: images tell of all that is in it."""
    host = make_host()
    host.start()
    return host


def lost_variables(image: Image) -> dict[str, Note]:
    notes = {note.name: note for group in image.groups for note in group.notes}
    return {name: note for name, note in notes.items() if ":" not in name}


def descriptors(host: Host) -> int:
    return len(list(Path(f"/proc/{host.kernel.record.pid}/fd").iterdir()))


def snap(host: Host, id: str, base: str | None = None, **options: Any) -> Image:
    async def whole() -> Image:
        capture = await host.kernel.snapshot(id=id, base=base, lease=host.lease, **options)
        return await capture.image()

    return host(whole())


def back(host: Host, keep: Keep, id: str, **options: Any) -> list[Note]:
    with keep.load(id, **options) as load:
        return list(host(host.kernel.restore(load, lease=host.lease)))


def given(image: Image) -> set[str]:
    names = {name for group in image.groups if not group.same for name in group.names}
    return {name for name in names if ":" not in name}


def sizes(image: Image) -> int:
    runs = (run for group in image.groups for buffer in group.buffers for run in buffer.runs)
    return sum(view.nbytes for _, view in runs)


@pytest.fixture(params=["pages", "hashes"])
def tracking(request: pytest.FixtureRequest) -> dict[str, str]:
    return {"CAVE_TRACKING": str(request.param)}


def test_a_namespace_outlives_its_kernel(
    make_host: Make, tmp_path: Path, tracking: dict[str, str]
) -> None:
    """After kill -9 another process has values, sharing, classes, memory; and goes on from there
    by differences."""
    host, keep = make_host(), Keep(tmp_path / "keep")
    host.start(env=tracking)
    host.run(
        "import numpy as np\na = [1]; b = {'k': a}; n = 5\n"
        "def f(): return a\nclass P: pass\np = P()\nbig = np.arange(1_000_000.0); view = big[5:]"
    )
    keep.take(snap(host, "one"))
    host.run("b['k'].append(2); big[777] = -1")
    image = keep.take(snap(host, "two", "one"))
    assert given(image) == {"a", "b", "big", "view"}
    assert 0 < sizes(image) <= 2 * image.chunk
    os.kill(host.kernel.record.pid, signal.SIGKILL)
    host.start(2, env=tracking)
    assert back(host, keep, "two") == []
    told = "print(a, b['k'] is a, n, f() is a, type(p) is P, big[777], big.sum(), view[772])"
    assert text(host.run(told)) == "[1, 2] True 5 True True -1.0 499999499222.0 -1.0\n"
    host.run("big[10] = 3")
    keep.take(snap(host, "three", "two"))
    image = keep.take(snap(host, "four", "three"))
    assert sizes(image) == 0
    host.run("view[11] = 4")
    image = keep.take(snap(host, "five", "four"))
    assert 0 < sizes(image) <= 2 * image.chunk
    host.start(3, env=tracking)
    back(host, keep, "five")
    assert text(host.run("print(big[10], big[16], view[11])")) == "3.0 4.0 4.0\n"


def test_stepping_back_in_place(host: Host, tmp_path: Path) -> None:
    """Groups that stay are the same objects; others are loaded; later names are gone."""
    keep = Keep(tmp_path / "keep")
    host.run("import numpy as np; stay = [1]; go = [1]; big = np.ones(500_000); me = id(stay)")
    first = keep.take(snap(host, "one"))
    host.run("go.append(2); late = 1; big[5] = 7")
    second = keep.take(snap(host, "two", "one"))
    same = [group.id for group in second.groups if group.same and "stay" in group.names]
    with keep.load("one", keep=same, cells={"go": 1, "big": 1}) as load:
        assert host(host.kernel.restore(load, lease=host.lease)) == ()
    assert text(host.run("print(id(stay) == me, go, 'late' in globals(), big[5])")) == (
        "True [1] False 1.0\n"
    )
    assert first.chunk == second.chunk
    image = keep.take(snap(host, "three", "one"))
    assert sizes(image) == 0
    host.run("stay.append(2)")
    keep.take(snap(host, "four", "three"))
    host.run("stay.append(3)")
    with (
        keep.load("four", keep=[g.id for g in image.groups if "stay" in g.names]) as load,
        pytest.raises(Stale) as stale,
    ):
        host(host.kernel.restore(load, lease=host.lease))
    assert len(stale.value.groups) == 1
    assert text(host.run("print(stay, go)")) == "[1, 2, 3] [1]\n"


def test_restored_names_are_no_news(make_host: Make, tmp_path: Path) -> None:
    """After a restore variables know their cells, and the next cell's delta has only its own."""
    host, keep = make_host(), Keep(tmp_path / "keep")
    host.start()
    host.run("a = [1]; b = 2")
    keep.take(snap(host, "one"))
    host.start(2)
    back(host, keep, "one", cells={"a": 7, "b": 8})
    rows = {row.name: row for row in host(host.kernel.variables(lease=1))}
    assert {name: row.cell for name, row in rows.items()} == {"a": 7, "b": 8}
    assert rows["a"].summary
    done = host.run("c = 3; a.append(1)", cell=9)
    assert [row.name for row in done.delta.added] == ["c"]
    assert [row.name for row in done.delta.changed] == ["a"]
    assert not host.run("a; b", cell=10).delta.changed


def test_an_untouched_turn_costs_little(host: Host) -> None:
    """With large and many small variables an unrelated cell gives nothing of them."""
    host.run(
        "import numpy as np\nlarge = np.ones(20_000_000)\n"
        + "\n".join(f"v{at} = {{'k': [{at}]}}" for at in range(50))
    )
    snap(host, "s0")
    pauses = []
    for number in range(1, 8):
        host.run(f"x = {number + 1000}")
        image = snap(host, f"s{number}", f"s{number - 1}")
        assert given(image) == {"x"}
        pauses.append(image.pause)
    assert min(pauses) < 0.01


def test_a_thousand_variables(host: Host, tmp_path: Path) -> None:
    """Many names are many groups, all of which come back."""
    keep = Keep(tmp_path / "keep")
    host.run("for i in range(1000): globals()[f'n{i}'] = [i]")
    image = keep.take(snap(host, "one"))
    assert len([group for group in image.groups if group.names[0].startswith("n")]) >= 1000
    host.run("n7.append(1); del n8")
    back(host, keep, "one")
    assert text(host.run("print(n7, n8, sum(globals()[f'n{i}'][0] for i in range(1000)))")) == (
        "[7] [8] 499500\n"
    )


def test_hundreds_of_files(host: Host, tmp_path: Path) -> None:
    """A restore takes more descriptors than one message carries, and leaves none behind."""
    keep = Keep(tmp_path / "keep")
    host.run("import numpy as np\nfor i in range(300): globals()[f'm{i}'] = np.full(10_000, i)")
    keep.take(snap(host, "one"))
    host.run("for i in range(300): del globals()[f'm{i}']")
    before = descriptors(host)
    back(host, keep, "one")
    assert text(host.run("int(sum(globals()[f'm{i}'][5] for i in range(300)))")) == "44850"
    assert descriptors(host) <= before


# -- beside the cells --------------------------------------------------------------------------

LARGE = "import numpy as np\nlarge = np.arange(12_000_000.0); small = [1]"


def test_a_large_image_is_copied_beside_the_next_cell(host: Host, tmp_path: Path) -> None:
    """What the next cell writes is not in the image, and is in the one after it."""
    keep = Keep(tmp_path / "keep")
    host.run(LARGE)

    async def during() -> Image:
        capture = await host.kernel.snapshot(id="bg", base=None, lease=1, background=True)
        await host.send("large[:] = -1; small.append(2)")
        return await capture.image()

    keep.take(host(during()))
    image = keep.take(snap(host, "after", "bg"))
    assert sizes(image) == 96_000_000
    back(host, keep, "bg")
    assert text(host.run("print(large.sum() == sum(range(12_000_000)), small)")) == "True [1]\n"
    back(host, keep, "after")
    assert text(host.run("print(large.sum(), small)")) == "-12000000.0 [1, 2]\n"


def test_a_copying_child_that_dies_is_made_good(
    make_host: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel copies by itself then; when cells have run meanwhile there is no such image."""
    host, keep = make_host(), Keep(tmp_path / "keep")
    host.start()
    host.run(LARGE)
    monkeypatch.setattr(images, "_FILL", 0.0)
    monkeypatch.setattr(images, "_SLOWEST", 1e15)
    keep.take(snap(host, "bg", background=True))
    assert text(host.run("float(large[5])")) == "5.0"
    host.start(2)
    back(host, keep, "bg")
    assert text(host.run("float(large[5])")) == "5.0"

    host.run("y = 1")
    again = {"id": "bg", "base": None, "verify": False, "background": False, "again": True}
    with pytest.raises(SnapshotError, match="cells have run"):
        host(host.kernel._images._ask("cave_snapshot_request", again, lease=1))


# -- what goes wrong ---------------------------------------------------------------------------


def test_a_variable_that_hangs_is_lost_alone(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code of the user that never returns costs its variable; what it prints is no output."""
    monkeypatch.setattr(images, "PATIENCE", 0.3)
    keep, late = Keep(tmp_path / "keep"), []
    host.kernel.on_late = late.append
    host.run(
        "import time\nclass Hangs:\n    def __reduce__(self):\n        print('hello')\n"
        "        while True: time.sleep(0.01)\n"
        "fine = [1]; hangs = Hangs(); together = [fine, hangs]"
    )
    image = keep.take(snap(host, "one"))
    lost = lost_variables(image)
    assert {note.kind for note in lost.values()} == {"lost"}
    assert lost.keys() == {"hangs", "together"}
    assert "too long" in lost["hangs"].reason
    assert not late
    back(host, keep, "one")
    assert text(host.run("fine")) == "[1]"
    assert "ObjectLost" in str(host.run("hangs.x").error)


def test_an_interrupt_of_a_cell_never_hits_an_image(host: Host) -> None:
    """Signals that rain while an image is written change nothing in it."""
    host.run("many = [[i] for i in range(50_000)]")

    async def storm() -> list[Image]:
        found = []
        for number in range(4):
            asked = asyncio.ensure_future(host.kernel.snapshot(id=f"i{number}", base=None, lease=1))
            for _ in range(5):
                await asyncio.sleep(0.003)
                host.kernel._process.send(signal.SIGINT)
            found.append(await (await asked).image())
        return found

    for image in host(storm()):
        assert not lost_variables(image)
    assert text(host.run("len(many)")) == "50000"


def test_a_kernel_that_dies_while_it_writes(make_host: Make) -> None:
    """A killed kernel, and one that an object kills, is `KernelDied` for who waits."""
    host = make_host()
    host.start()
    host.run(
        "import os, signal\nclass Kills:\n"
        "    def __reduce__(self): os.kill(os.getpid(), signal.SIGKILL)\nk = Kills()"
    )
    with pytest.raises(KernelDied, match="signal 9"):
        snap(host, "one")


def test_an_older_lease_gets_no_image(host: Host, tmp_path: Path) -> None:
    """Who lost the session neither reads the namespace nor changes it."""
    keep = Keep(tmp_path / "keep")
    host.run("kept = 1")
    keep.take(snap(host, "one"))
    host(host.kernel.catch_up(lease=2, after=0, running=None))
    host.lease = 1
    with pytest.raises(LeaseLost):
        snap(host, "two", "one")
    with pytest.raises(LeaseLost):
        back(host, keep, "one")
    host.lease = 2
    assert text(host.run("kept")) == "1"


def test_what_cannot_be_loaded_is_named(host: Host, tmp_path: Path) -> None:
    """A stream that is damaged costs its names; names that the host lost are bound to Lost."""
    keep = Keep(tmp_path / "keep")
    host.run("good = [1]; bad = [2]; gone = [3]")
    keep.take(snap(host, "one"))
    for kept in keep.images["one"].values():
        if "bad" in kept.group.names:
            kept.stream = kept.stream[:-5]
    note = Note("lost", "gone", "list", "its chunk is damaged")
    dropped = [id for id, kept in keep.images["one"].items() if "gone" in kept.group.names]
    del keep.images["one"][dropped[0]]
    notes = back(host, keep, "one", lost=(note,))
    assert {found.name for found in notes if found.kind == "lost"} == {"bad", "gone"}
    assert text(host.run("good")) == "[1]"
    assert "its chunk is damaged" in str(host.run("gone[0]").error)


def reply() -> tuple[dict[str, Any], memoryview]:
    """A description that is in order, with two groups and a buffer."""
    blob = memoryview(bytes(range(256)) * 1024)
    content: dict[str, Any] = {
        "id": "x", "base": "b", "chunk": 4096, "python": "3", "packages": {"numpy": "2"},
        "pause": 0.1, "missed": ["m"], "layout": [[0, 100], [100, 4096], [8192, 5000]],
        "groups": [
            {"id": "g1", "names": ["a"], "same": True, "checked": False, "definitions": False,
             "uses": False, "notes": [["lost", "a", "t", "r", ""]]},
            {"id": "g2", "names": ["b", "c"], "same": False, "checked": True,
             "definitions": True, "uses": False, "notes": [], "stream": 0,
             "buffers": [["u", 13_192, True, [[0, 1], [8192, 2]]]]},
        ],
    }  # fmt: skip
    return content, blob


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else (
        enumerate(value) if isinstance(value, list) else ()
    )  # fmt: skip
    found = [(*path, key) for key, _ in inside]
    return found + [deep for key, part in list(inside) for deep in places(part, (*path, key))]


def test_a_hostile_description_is_refused() -> None:
    """Whatever a kernel puts into any field: an image that holds together, or `SnapshotError`."""
    content, blob = reply()
    whole = images.decode(content, blob, id="x", base="b")
    assert whole.groups[1].buffers[0].runs[1][1].nbytes == 5000
    odd: list[Any] = [
        None, -1, 0, 1, 3, 1 << 70, 1.5, float("nan"), True, "", "x", "g1", [], {}, [[0]],
        [[0, 1 << 60]], ["a"], [None], {"a": 1}, "y" * 200_000, [[]], [[0, 0]], 13_192,
    ]  # fmt: skip
    refused = 0
    for path in places(content):
        for value in odd:
            told, spot = copy.deepcopy(content), None
            spot = told
            for key in path[:-1]:
                spot = spot[key]
            spot[path[-1]] = value
            refused += _survives(told, blob)
    chance = random.Random(5)
    for _ in range(3000):
        raw = bytearray(json.dumps(content).encode())
        for _ in range(chance.randrange(1, 6)):
            raw[chance.randrange(len(raw))] = chance.choice(b'0123456789[]{}",:ab-tf')
        try:
            told = json.loads(raw)
        except ValueError:
            continue
        if isinstance(told, dict):
            refused += _survives(told, blob)
    assert refused > 500


def _survives(told: dict[str, Any], blob: memoryview) -> bool:
    try:
        image = images.decode(told, blob, id="x", base="b")
    except SnapshotError:
        return True
    for group in image.groups:
        assert group.same or group.stream is not None
        for buffer in group.buffers:
            assert buffer.base or sum(v.nbytes for _, v in buffer.runs) == buffer.size
            assert all(at + view.nbytes <= buffer.size for at, view in buffer.runs)
    return False


# -- a host that is gone -----------------------------------------------------------------------


def settle(host: Host, number: int) -> Image:
    """Wait for what the kernel leaves."""

    async def found() -> Image:
        while True:
            if image := pending(host.root / "session", number):
                return image
            await asyncio.sleep(0.02)

    return host(found())


def test_a_kernel_without_a_host_leaves_its_namespace(make_host: Make, tmp_path: Path) -> None:
    """Some time after a cell that no image has, all is in a file; a later one takes its place."""
    host, keep = make_host(pending_after=0.1), Keep(tmp_path / "keep")
    host.start()
    host.run("import numpy as np; a = [1]; b = a; big = np.ones(300_000)")
    snap(host, "one")
    host.run("a.append(2)\nclass P: pass\np = P()")
    image = keep.take(settle(host, 1))
    assert image.base is None
    assert {"a", "b", "big", "p"} <= given(image)
    discard(host.root / "session", 1)
    assert pending(host.root / "session", 1) is None
    assert given(snap(host, "two", "one")) == {"a", "b", "P", "p"}
    host.start(2)
    back(host, keep, image.id)
    assert text(host.run("print(a, a is b, type(p) is P, big.sum())")) == (
        "[1, 2] True True 300000.0\n"
    )


def test_a_kernel_that_ends_by_itself_leaves_its_namespace(make_host: Make) -> None:
    """The idle timer's last act, when there is something that no image has."""
    host = make_host(pending_after=60.0, idle_timeout=1.0)
    host.start()
    snap(host, "one")
    host.run("a = 1")
    host(host.kernel._gone.wait())
    image = settle(host, 1)
    assert "a" in given(image)


def test_what_was_left_is_checked(make_host: Make, tmp_path: Path) -> None:
    """A file that is cut or changed, or a link, is refused; none is None."""
    host = make_host()
    folder = host.root / "session" / "kernels" / "9" / "pending"
    folder.mkdir(parents=True)
    assert pending(host.root / "session", 9) is None
    content, blob = reply()
    content = {**content, "base": None, "groups": []}

    def left(told: bytes) -> bytes:
        rest = told + bytes(-(20 + len(told)) % 4096) + bytes(blob)
        head = b"CAVEIMG2" + len(told).to_bytes(8, "little")
        return head + zlib.crc32(rest).to_bytes(4, "little") + rest

    whole = left(json.dumps(content).encode())
    path = folder / "image"
    path.write_bytes(whole)
    assert pending(host.root / "session", 9) is not None
    torn = whole[:-1] + bytes([whole[-1] ^ 1])
    odd = left(json.dumps({**content, "chunk": 4097}).encode())
    for bad in (whole[:4096], whole[:20], b"", b"X" + whole[1:], whole[:8] + b"\xff" * 8,
                torn, odd):  # fmt: skip
        path.write_bytes(bad)
        with pytest.raises(SnapshotError):
            pending(host.root / "session", 9)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SnapshotError):
        pending(host.root / "session", 9)


def test_kernels_of_a_home_order_sets_alike(
    make_host: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seed of hashes is the home's; one that the user set wins."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    host = make_host(hash_seed=1234)
    host.start()
    first = text(host.run("hash('text')"))
    host.start(2)
    assert text(host.run("hash('text')")) == first
    monkeypatch.setenv("PYTHONHASHSEED", "99")
    host.start(3)
    assert text(host.run("hash('text')")) != first
