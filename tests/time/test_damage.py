"""Damage to a session's snapshots: found before anything is loaded, and what it costs is named."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

import cave
from cave import facade, tending
from cave.events import SnapshotFailed
from cave.portal import portal
from tests.conftest import home_of_its_own, sessions_deleted

from ._kill import kill

# cells that no snapshot has are lost where nothing confines them; confined ones run again
pytestmark = pytest.mark.usefixtures("sessions", "unconfined")

ONE = (
    "import numpy as np\nbig = np.arange(50_000.0)\nx = 1\nitems = [1]\nalias = items\n"
    "stay = 'as it is'"
)
TWO = "x = 2\ny = 2"
THREE = "z = {'k': 3}\nitems.append(3)"


@pytest.fixture(autouse=True)
def _no_idle_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """One snapshot for each cell, however slow the machine."""
    monkeypatch.setattr(tending, "QUIET", 3600.0)


def made(name: str, *sources: str) -> cave.Session:
    s = cave.open(name)
    for source in sources:
        s.run(source).raise_for_error()
    return s


@pytest.fixture(scope="module")
def three() -> Iterator[Path]:
    """A home with the sessions "older" and "stranger", whose kernels died after three cells."""
    with pytest.MonkeyPatch.context() as patch, home_of_its_own(patch) as path, sessions_deleted():
        patch.setattr(tending, "QUIET", 3600.0)
        for name in ("older", "stranger"):
            kill(made(name, ONE, TWO, THREE))
        leave()
        yield path


@pytest.fixture
def older(three: Path, home: Path) -> Path:
    """A copy of it as this test's home."""
    shutil.copytree(three, home, dirs_exist_ok=True)
    return home


def packs(home: Path, name: str) -> list[Path]:
    """The files of a session's snapshots, oldest first."""
    return sorted((home / "sessions" / name / "snapshots").glob("*.pack"))


def leave() -> None:
    """Forget what this process knows, as another process would not know it."""
    portal().call(facade.leave_all())


def end(s: cave.Session) -> None:
    kill(s)
    leave()


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.unlink()  # forks may have a link to it
    path.write_bytes(data)


def place_of_big(path: Path) -> int:
    return path.read_bytes().index(struct.pack("<d", 40_000.0))


def report(s: cave.Session) -> dict[str, set[str]]:
    told = s.last_restore
    assert told is not None
    kinds = ("kept", "restored", "rebuilt", "changed", "assumed", "lost")
    found = {kind: {e.name for e in getattr(told, kind)} for kind in kinds}
    return {kind: names for kind, names in found.items() if names}


def test_a_flipped_byte_costs_the_variable_that_it_is_in(home: Path) -> None:
    """One byte of an array: the array is lost, with its type, cell and file; every other
    variable is exact, and a later snapshot still says that it is lost."""
    s = made("flip", ONE, TWO)
    end(s)
    flip(packs(home, "flip")[0], place_of_big(packs(home, "flip")[0]))
    s = cave.open("flip")
    assert report(s) == {"restored": {"x", "items", "alias", "stay", "y"}, "lost": {"big"}}
    assert s.last_restore is not None
    (lost,) = s.last_restore.lost
    assert (lost.type, lost.cell) == ("ndarray", 1)
    assert packs(home, "flip")[0].name in lost.reason
    assert s.run("print(x, y, alias is items, stay)").text.strip() == "2 2 True as it is"
    assert "damaged" in str(s.run("big.sum()").error)
    assert s.vars["big"].fidelity == "lost"
    kill(s)
    assert s.run("x").ok
    assert report(s)["lost"] == {"big"}


def test_a_missing_file_costs_what_lies_in_it_alone(older: Path) -> None:
    """The file of the first snapshot is gone: what the later ones have of it is lost and
    named with the types and cells that the journal knows; what was written later is exact."""
    packs(older, "older")[0].unlink()
    s = cave.open("older")
    assert report(s)["restored"] == {"x", "y", "z", "items", "alias"}
    assert s.last_restore is not None
    told = {e.name: (e.type, e.cell) for e in s.last_restore.lost}
    assert told["big"] == ("ndarray", 1)
    assert told["stay"] == ("str", 1)
    assert s.run("print(x, y, z, items)").text.strip() == "2 2 {'k': 3} [1, 3]"


@pytest.mark.parametrize("harm", ["flip", "cut", "delete", "older", "other"])
def test_an_older_snapshot_is_used_when_the_newest_cannot_be(older: Path, harm: str) -> None:
    """Newest file damaged, cut, gone, replaced by an older one or by another session's: the
    one before it is used. What cells changed since is named as changed, what they made as
    lost, and of all others it is said that nothing was seen to change them."""
    *_, before, newest = packs(older, "older")
    match harm:
        case "flip":
            flip(newest, -300)
        case "cut":
            newest.write_bytes(newest.read_bytes()[:-1])
        case "delete":
            newest.unlink()
        case "older":
            shutil.copy(before, newest)
        case "other":
            shutil.copy(packs(older, "stranger")[-1], newest)
    s = cave.open("older")
    assert report(s) == {
        "changed": {"items", "alias"},
        "assumed": {"big", "stay", "x", "y"},
        "lost": {"z"},
    }
    told = s.last_restore
    assert told is not None
    assert told.cell == 2
    assert newest.stem in told.lost[0].reason
    assert "nothing came back as it was" in str(told)
    assert s.run("print(x, y, items, alias is items)").text.strip() == "2 2 [1] True"
    assert "did not come back" in str(s.run("z['k']").error)
    assert s.history[3].ok


@pytest.mark.parametrize("harm", ["manifests", "key"])
def test_a_session_opens_when_nothing_can_be_read(older: Path, harm: str) -> None:
    """All manifests damaged, or the key of the home gone: every variable is lost by name with
    its cell, the session works, and what is there is not removed."""
    if harm == "key":
        (older / "key").unlink()
    else:
        for path in packs(older, "older"):
            flip(path, -300)
    there = packs(older, "older")
    s = cave.open("older")
    assert report(s) == {"lost": {"big", "x", "items", "alias", "stay", "y", "z"}}
    assert s.last_restore is not None
    assert {e.name: e.cell for e in s.last_restore.lost}["z"] == 3
    assert "lost with an earlier kernel: x" in str(s.run("x").error)
    assert s.run("new = 1").durable
    kill(s)
    assert s["new"] == 1
    assert set(there) <= set(packs(older, "older"))


def test_more_snapshots_are_looked_through_than_are_tried(home: Path) -> None:
    """The newest five cannot be read: the sixth is used."""
    s = made("deep", "x = 1", *(f"x = {n}" for n in range(2, 7)))
    end(s)
    for path in packs(home, "deep")[1:]:
        path.unlink()
    s = cave.open("deep")
    assert s["x"] == 1
    assert report(s) == {"changed": {"x"}}


def test_going_to_a_damaged_moment_changes_nothing(home: Path) -> None:
    """A damaged manifest or array of the moment that was asked for: SnapshotCorrupt, which
    names what is missing; the namespace is untouched, and a fork gives the rest."""
    s = made("asked", ONE, "x = 2\nbig = big + 1\nitems.append(2)", "x = 3")
    first, second, _ = packs(home, "asked")
    flip(first, place_of_big(first))
    flip(second, -300)
    leave()
    s = cave.open("asked")
    with pytest.raises(cave.SnapshotCorrupt, match=r"lacks big .*fork"):
        s.restore(at=1)
    with pytest.raises(cave.SnapshotCorrupt):
        s.restore(at=2)
    check = s.run("print(x, items, alias is items, big.sum())")
    assert check.text.strip() == "3 [1, 2] True 1250025000.0"
    assert s.last_restore is None
    t = s.fork("rest", at=1)
    assert report(t)["lost"] == {"big"}
    assert t.run("print(x, items, alias is items)").text.strip() == "1 [1] True"


def test_damage_of_what_the_kernel_is_does_not_hold_it_up(home: Path) -> None:
    """The newest file is damaged while its kernel lives: going back still works, the next cell
    is durable at once, by a snapshot that needs nothing of it, and nobody hears of a failure."""
    s = made("live", ONE, TWO)
    flip(packs(home, "live")[-1], -300)
    leave()
    s = cave.open("live")
    assert s.restore(at=1).cell == 1
    assert s["x"] == 1
    s.run("w = 4")
    packs(home, "live")[-1].unlink()
    assert s.run("w = 5").durable
    assert not [e for e in s.events() if isinstance(e, SnapshotFailed)]
    kill(s)
    assert s.run("print(w, x, big.sum(), alias is items)").text.strip() == ("5 1 1249975000.0 True")
    assert report(s).keys() == {"restored"}
