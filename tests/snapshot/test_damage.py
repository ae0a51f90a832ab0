"""Damage and forgery: found before anything is loaded, and only what it costs is named."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cave.errors import SnapshotCorrupt, SnapshotError, SnapshotNotFound
from cave.snapshot import Manifest, Snapshots
from cave.snapshot import refs as refs_module
from cave.snapshot.folder import LocalFolder
from cave.snapshot.pack import TRAILER, Packs, PackWriter, read_manifest
from cave.snapshot.refs import pack_number
from cave.snapshot.tree import nodes
from tests.snapshot._images import (
    KEY,
    World,
    content,
    image,
    loaded,
    names_of,
    opened,
    read_back,
    same,
    write,
)

PAGE = 4096

pytestmark = pytest.mark.usefixtures("unsynced")


@dataclass
class Built:
    """Three snapshots, and where everything lies."""

    folder: Path
    worlds: dict[str, World]
    manifests: dict[str, Manifest]
    regions: dict[str, list[tuple[int, int, str, str]]]
    """By file: begin, end, snapshot, group ('' is the manifest)."""

    def cost(self, file: str, at: int, id: str) -> set[str] | None:
        """Names that damage of a byte costs a snapshot; None means the snapshot itself."""
        hit = {g for a, b, s, g in self.regions[file] if s == id and a <= at < b}
        if "" in hit:
            return None
        world = self.worlds[id]
        if any(world[g].definitions for g in hit):
            hit |= {g for g, c in world.items() if c.uses}
        return {name for g in hit for name in names_of(g, world[g])}


def build(folder: Path) -> Built:
    store = opened(folder)
    frame = os.urandom(PAGE * 300 + 55)
    one: World = {
        "defs": content("classes", definitions=True, names=("P", "def:P")),
        "uses": content("an instance", uses=True),
        "df": content("frame", frame, os.urandom(5000), bytes(PAGE * 3)),
        "ab": content(b"text " * 9000, names=("a", "b")),
        "x": content("x"),
    }
    two = {
        **one,
        "x": content("x two"),
        "df": content("frame", frame[:-9] + b"new bytes", b"y" * 70),
    }
    three = {**two, "y": content("y", frame[: PAGE * 5])}
    worlds = {"000001-00000001": one, "000002-00000002": two, "000003-00000003": three}
    made: dict[str, Manifest] = {}
    last: tuple[Manifest, World] | None = None
    for id, world in worlds.items():
        made[id] = write(store, id, world, last, chunk=PAGE)
        last = made[id], world
    return Built(folder, worlds, made, regions(folder, made))


def regions(folder: Path, made: dict[str, Manifest]) -> dict[str, list[tuple[int, int, str, str]]]:
    found: dict[str, list[tuple[int, int, str, str]]] = {f"{id}.pack": [] for id in made}
    with Packs(LocalFolder(folder)) as packs:
        for id, manifest in made.items():
            size = (folder / f"{id}.pack").stat().st_size
            trailer = (folder / f"{id}.pack").read_bytes()[-TRAILER:]
            begin = int.from_bytes(trailer[16:24], "little")
            found[f"{id}.pack"] += [(0, 32, id, ""), (begin, size, id, "")]
            for entry, (block, _) in zip(manifest.entries, manifest.places, strict=True):
                refs = [*entry.group.stream, manifest.blocks[block].ref]
                refs += [r for b in entry.group.buffers for _, r in nodes(b, packs)]
                for ref in refs:
                    if ref.stored:
                        file = f"{refs_module.pack_name(ref.pack)}.pack"
                        found[file].append((ref.at, ref.at + ref.stored, id, entry.group.id))
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("built"))


@contextlib.contextmanager
def copied(built: Built) -> Iterator[Path]:
    """A copy of the folder, by links; a file to be damaged becomes a file of its own."""
    folder = built.folder.with_name("damaged")
    shutil.copytree(built.folder, folder, copy_function=os.link)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def damage(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


def outcome(store: Snapshots, id: str, world: World) -> set[str] | None:
    """Names that a snapshot lost; None when it cannot be read. The rest must be right."""
    try:
        manifest = store.read(id)
    except SnapshotError:
        return None
    plan = store.plan(manifest, live=None)
    with contextlib.closing(plan):
        found = loaded(plan.load)
        assert same({g: c for g, c in world.items() if g in found}, found)
        lost = {note.name for note in plan.damaged}
        left = {n for g, c in world.items() if g not in found for n in names_of(g, c)}
        assert lost == left
        assert plan.load.lost == plan.damaged
        assert all(".pack" in note.reason for note in plan.damaged), plan.damaged
        assert {v.name for v in manifest.variables} >= {n for n in lost if ":" not in n}
    return lost


def check(
    built: Built, file: str, content: bytes | None, costs: dict[str, set[str] | None]
) -> None:
    with copied(built) as folder:
        if content is None:
            (folder / file).unlink()
        else:
            damage(folder / file, content)
        for id, world in built.worlds.items():
            store = opened(folder)
            assert outcome(store, id, world) == costs[id], (file, id)
            if costs[id] != set():
                names = {n for f in store.verify(deep=True) if f.snapshot == id for n in f.names}
                direct = costs[id] or set()
                assert names <= direct
                assert names or costs[id] is None


def test_an_undamaged_folder_has_no_faults(built: Built) -> None:
    """All snapshots read back, and neither look at them finds anything."""
    for id, world in built.worlds.items():
        assert outcome(opened(built.folder), id, world) == set()
    assert opened(built.folder).verify() == []
    assert opened(built.folder).verify(deep=True) == []


def test_a_flipped_byte_at_every_border_is_found(built: Built) -> None:
    """A flipped bit at the first, middle and last byte of everything that lies in any file
    costs exactly the names that need it, in each snapshot."""
    for file, ranges in built.regions.items():
        content = (built.folder / file).read_bytes()
        places = {p for a, b, _, _ in ranges for p in (a, (a + b) // 2, b - 1)}
        for at in sorted(places)[:: max(1, len(places) // 60)]:
            flip(built, file, content, at, 1)


def flip(built: Built, file: str, content: bytes, at: int, bit: int) -> None:
    changed = content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :]
    check(built, file, changed, {id: built.cost(file, at, id) for id in built.worlds})


@given(st.data())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_flipped_bit_is_found(built: Built, data: st.DataObject) -> None:
    """Any bit of any file: found before loading, and it costs what needs it, nothing else."""
    file = data.draw(st.sampled_from(sorted(built.regions)))
    content = (built.folder / file).read_bytes()
    tail = st.integers(1, min(len(content), 9000)).map(lambda n: len(content) - n)
    at = data.draw(tail | st.integers(0, len(content) - 1))
    flip(built, file, content, at, 1 << data.draw(st.integers(0, 7)))


@given(st.data())
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_cut_file_is_found(built: Built, data: st.DataObject) -> None:
    """A file cut anywhere is no snapshot any more, and costs others what was cut off."""
    file = data.draw(st.sampled_from(sorted(built.regions)))
    content = (built.folder / file).read_bytes()
    length = data.draw(st.integers(0, len(content) - 1))
    own = file.removesuffix(".pack")
    costs: dict[str, set[str] | None] = {}
    for id in built.worlds:
        some = [
            built.cost(file, b - 1, id)
            for _, b, s, g in built.regions[file]
            if s == id and b > length and g
        ]
        costs[id] = None if id == own else {n for names in some for n in names or ()}
    check(built, file, content[:length], costs)
    with copied(built) as folder:
        damage(folder / file, content[:length])
        assert own not in opened(folder).ids()


def test_a_missing_file_is_found(built: Built) -> None:
    """A deleted file costs the names whose content lay in it."""
    for file in built.regions:
        own = file.removesuffix(".pack")
        costs: dict[str, set[str] | None] = {}
        for id in built.worlds:
            some = [built.cost(file, a, id) for a, _, s, g in built.regions[file] if s == id and g]
            costs[id] = None if id == own else {n for names in some for n in names or ()}
        check(built, file, None, costs)
        with copied(built) as folder:
            (folder / file).unlink()
            with pytest.raises(SnapshotNotFound):
                opened(folder).read(own)


def test_bytes_after_the_end_are_found(built: Built) -> None:
    """A file with more at its end is no snapshot."""
    content = (built.folder / "000003-00000003.pack").read_bytes()
    costs = {id: set() for id in built.worlds} | {"000003-00000003": None}
    check(built, "000003-00000003.pack", content + b"\0", costs)  # type: ignore[arg-type]


@pytest.mark.skipif(refs_module.fast is None, reason="xxhash is not installed")
def test_without_xxhash_everything_is_checked_all_the_same(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where xxhash is missing, data is checked by SHA-256, and what it wrote reads elsewhere."""
    chunk = built.manifests["000001-00000001"].groups[2].buffers[1].refs[0]
    content = (built.folder / "000001-00000001.pack").read_bytes()
    with monkeypatch.context() as without:
        without.setattr(refs_module, "fast", None)
        flip(built, "000001-00000001.pack", content, chunk.at + 1000, 4)
        with copied(built) as folder:
            write(opened(folder), "000004-00000004", built.worlds["000001-00000001"])
            assert same(
                built.worlds["000001-00000001"], read_back(opened(folder), "000004-00000004")
            )
            monkeypatch.undo()
            assert same(
                built.worlds["000001-00000001"], read_back(opened(folder), "000004-00000004")
            )


# -- forgery ---------------------------------------------------------------------------------


def manifest_of(path: Path) -> tuple[bytes, dict[str, object]]:
    content = path.read_bytes()
    begin, length = (int.from_bytes(content[-TRAILER:][a : a + 8], "little") for a in (16, 24))
    return content[:begin], json.loads(content[begin : begin + length])


class Kept:
    """An output that keeps what is written."""

    def __init__(self) -> None:
        self.content = b""

    def write(self, views: list[bytes]) -> None:
        self.content += b"".join(views)

    def finish(self) -> None:
        pass

    def abort(self) -> None:
        pass


def forged(before: bytes, value: dict[str, object], number: int, key: bytes) -> bytes:
    """A file with another manifest, signed with a key of the forger's."""
    kept = Kept()
    writer = PackWriter(kept, number)
    writer._append(before[32:])
    writer.finish(zlib.compress(json.dumps(value).encode()), key)
    return kept.content


def refused(folder: Path, id: str, word: str, session: str = "q3") -> None:
    with pytest.raises(SnapshotCorrupt, match=word):
        opened(folder, session).read(id)
    assert any(f.snapshot == id and not f.names for f in opened(folder, session).verify())


def test_a_manifest_signed_with_another_key_is_refused(built: Built) -> None:
    """A manifest that anybody else made, or changed, is not used, whatever it says."""
    id = "000002-00000002"
    with copied(built) as folder:
        before, value = manifest_of(folder / f"{id}.pack")
        damage(folder / f"{id}.pack", forged(before, value, pack_number(id) or 0, b"other" * 6))
        refused(folder, id, "not signed")
        damage(folder / f"{id}.pack", forged(before, value, pack_number(id) or 0, KEY))
        assert opened(folder).read(id).id == id  # the same forger with the key, to be sure
        content = (folder / f"{id}.pack").read_bytes()
        signature = content[-TRAILER:][72:104]
        damage(folder / f"{id}.pack", content.replace(signature, bytes(32)))
        refused(folder, id, "not signed")
    with pytest.raises(SnapshotCorrupt, match="not signed"):
        Snapshots(built.folder, session="q3", key=b"z" * 32).read(id)


def test_a_changed_manifest_is_refused(built: Built) -> None:
    """A manifest changed in place, its SHA-256 made to fit, has no valid signature."""
    id = "000002-00000002"
    with copied(built) as folder:
        before, value = manifest_of(folder / f"{id}.pack")
        signature = (folder / f"{id}.pack").read_bytes()[-TRAILER:][72:104]
        new = forged(before, {**value, "name": "evil"}, pack_number(id) or 0, b"x" * 32)
        new = new[: -TRAILER + 72] + signature + new[-TRAILER + 104 :]
        damage(folder / f"{id}.pack", new)
        refused(folder, id, "not signed")


def test_an_older_snapshot_under_a_newer_name_is_refused(built: Built) -> None:
    """A genuine file renamed over another is not taken for it."""
    old, new = "000001-00000001", "000003-00000003"
    with copied(built) as folder:
        (folder / f"{old}.pack").replace(folder / f"{new}.pack")
        refused(folder, new, "another snapshot")


def test_a_snapshot_of_another_session_is_refused(built: Built) -> None:
    """A genuine file of another session of the same home is not used."""
    refused(built.folder, "000001-00000001", "session 'q3'", session="q4")


def test_a_link_in_the_place_of_a_snapshot_is_not_followed(built: Built, tmp_path: Path) -> None:
    """A symbolic link is no snapshot, wherever it leads."""
    id = "000001-00000001"
    with copied(built) as folder:
        (folder / f"{id}.pack").rename(tmp_path / "elsewhere")
        (folder / f"{id}.pack").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(OSError, match="symbolic link"):
            opened(folder).read(id)


def test_a_manifest_of_a_newer_format_says_to_upgrade(built: Built) -> None:
    """A file of a later format is named as such."""
    id = "000003-00000003"
    with copied(built) as folder:
        content = (folder / f"{id}.pack").read_bytes()
        at = len(content) - TRAILER + 8
        damage(folder / f"{id}.pack", content[:at] + b"\x09" + content[at + 1 :])
        refused(folder, id, "newer")


def test_the_signature_is_checked_before_the_manifest_is_parsed(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of a forged manifest reaches the parser."""
    id = "000002-00000002"
    monkeypatch.setattr(json, "loads", lambda *_: pytest.fail("parsed"))
    monkeypatch.setattr(zlib, "decompress", lambda *_: pytest.fail("inflated"))
    with pytest.raises(SnapshotCorrupt):
        Snapshots(built.folder, session="q3", key=b"z" * 32).read(id)
    with contextlib.closing(LocalFolder(built.folder).open(id)) as pack:
        assert read_manifest(pack, KEY)


# -- after damage ----------------------------------------------------------------------------


def test_a_damaged_snapshot_is_no_base(built: Built) -> None:
    """A difference on entries that cannot be read is refused; a whole image heals all."""
    one, two = "000001-00000001", "000002-00000002"
    block = built.manifests[one].blocks[0].ref
    world = built.worlds[two]
    with copied(built) as folder:
        content = bytearray((folder / f"{one}.pack").read_bytes())
        content[block.at + 3] ^= 1
        damage(folder / f"{one}.pack", bytes(content))
        store = opened(folder)
        base = store.read(two)
        with pytest.raises(SnapshotCorrupt, match="damaged"):
            write(store, "000004-00000004", world, (base, world))
        store.write(
            image("000004-00000004", world, chunk=PAGE), base=base, cell=4, at=0.0, variables=()
        )
        assert same(world, read_back(opened(folder), "000004-00000004"))


def test_what_was_found_damaged_is_written_again(built: Built) -> None:
    """After a restore has found damage, the same content is not referred to where it was."""
    id = "000003-00000003"
    world = built.worlds[id]
    group = next(g for g in built.manifests[id].groups if g.id == "df")
    file = "000001-00000001.pack"
    with copied(built) as folder:
        with Packs(LocalFolder(folder)) as packs:
            leaf = next(r for d, r in nodes(group.buffers[0], packs) if not d and r.at > 1 << 18)
        for ref in (leaf, group.stream[0]):
            content = bytearray((folder / file).read_bytes())
            content[ref.at + 2] ^= 1
            damage(folder / file, bytes(content))
        store = opened(folder)
        base = store.read(id)
        plan = store.plan(base, live=None)
        plan.close()
        assert {note.name for note in plan.damaged} == {"df"}
        store.write(
            image("000004-00000004", world, chunk=PAGE), base=base, cell=4, at=0.0, variables=()
        )
        plan = opened(folder).plan(store.read("000004-00000004"), live=None)
        plan.close()
        assert plan.damaged == ()


def test_damaged_definitions_cost_what_uses_them(built: Built) -> None:
    """Without the session's classes their instances cannot be loaded: both are named."""
    id = "000003-00000003"
    (ref,) = built.manifests[id].groups[0].stream
    with copied(built) as folder:
        content = bytearray((folder / "000001-00000001.pack").read_bytes())
        content[ref.at] ^= 1
        damage(folder / "000001-00000001.pack", bytes(content))
        store = opened(folder)
        plan = store.plan(store.read(id), live=None)
        plan.close()
        assert {note.name for note in plan.damaged} == {"P", "def:P", "uses"}
        assert "classes or functions" in plan.damaged[-1].reason


def test_a_whole_image_does_without_packs_that_are_missing(built: Built) -> None:
    """What lay in a file that is gone is written again, by a process that did not know."""
    id = "000003-00000003"
    world = built.worlds[id]
    with copied(built) as folder:
        store = opened(folder)
        base = store.read(id)
        (folder / "000001-00000001.pack").unlink()
        given = image("000004-00000004", world, chunk=PAGE)
        store.write(given, base=base, cell=4, at=0.0, variables=())
        assert same(world, read_back(opened(folder), "000004-00000004"))
