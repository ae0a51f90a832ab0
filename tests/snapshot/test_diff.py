"""Differences of two snapshots, by name."""

from __future__ import annotations

import os
from pathlib import Path

from cave.report import Diff
from cave.snapshot import Snapshots, differences
from tests.snapshot._images import CHUNK, content, image, opened, write


def test_names_are_added_changed_removed_and_unchanged(store: Snapshots, folder: Path) -> None:
    """Names by content; roots that are no variables are left out."""
    frame = os.urandom(CHUNK * 20)
    old = {
        "a": content("a"),
        "b": content("b", frame),
        "c": content("c"),
        "hidden:cwd": content("/"),
    }
    new = {
        "a": content("a"),
        "b": content("b", frame[:-1] + bytes([frame[-1] ^ 1])),
        "d": content("d"),
    }
    one = write(store, "000001-00000001", old)
    two = write(store, "000002-00000002", new, (one, old))
    expected = Diff(added=("d",), changed=("b",), removed=("c",), unchanged=("a",))
    assert differences(one, two) == expected
    fresh = opened(folder)
    assert differences(fresh.read(one.id), fresh.read(two.id)) == expected
    assert differences(two, one) == Diff(("c",), ("b",), ("d",), ("a",))


def test_what_was_written_anew_but_is_equal_is_unchanged(store: Snapshots) -> None:
    """A whole image under other ids differs in nothing when its content is equal."""
    world = {"a": content("a", os.urandom(CHUNK * 9)), "b": content("b")}
    one = write(store, "000001-00000001", world)
    renamed = {
        f"id-{id}": content(c.stream, *c.buffers.values(), names=(id,)) for id, c in world.items()
    }
    two = store.write(
        image("000002-00000002", renamed), base=one, cell=2, at=0.0, variables=one.variables
    )
    assert differences(one, two) == Diff(unchanged=("a", "b"))


def test_of_names_stored_together_those_touched_changed(store: Snapshots) -> None:
    """In a group of several names that differs, the touched ones changed; all, when unknown."""
    old = {"g": content("old", names=("a", "b", "c")), "x": content("x")}
    new = {"g": content("new", names=("a", "b", "c")), "x": content("y")}
    one = write(store, "000001-00000001", old)
    two = write(store, "000002-00000002", new, (one, old))
    assert differences(one, two, touched={"b"}).changed == ("b", "x")
    assert differences(one, two, touched=None).changed == ("a", "b", "c", "x")
    assert differences(one, two, touched={"z"}).changed == ("a", "b", "c", "x")


def test_where_content_lies_makes_no_difference(store: Snapshots, folder: Path) -> None:
    """A buffer that was written again, elsewhere, is unchanged and stays in the kernel."""
    world = {"df": content("df", os.urandom(CHUNK * 5000))}
    one = write(store, "000001-00000001", world)
    two = write(store, "000002-00000002", {}, (one, world))
    fork = opened(folder.with_name("fork"), "q3")
    again = write(fork, "000003-00000003", world)
    assert again.groups[0].buffers[0].refs != one.groups[0].buffers[0].refs
    assert differences(one, again) == Diff(unchanged=("df",))
    plan = store.plan(one, live=again)
    plan.close()
    assert plan.load.keep == ("df",)
    assert differences(one, two) == Diff(removed=("df",))
