"""Recipes of others: entry points, resources, persistent classes."""

import importlib.metadata
import sys
import types
from typing import Any

import pytest

from tests import _inkernel

definitions: Any = _inkernel.load("image.definitions")
frozen: Any = _inkernel.load("image.frozen")
pickler: Any = _inkernel.load("image.pickler")
plugins: Any = _inkernel.load("image.plugins")
reader: Any = _inkernel.load("image.reader")
remarks: Any = _inkernel.load("image.remarks")


class Handle:
    """Something of a library that pickle would take and not give back."""

    def __init__(self, to: str) -> None:
        self.to = to


class Slim:
    """One that cannot be referred to weakly."""

    __slots__ = ("to",)

    def __init__(self, to: str) -> None:
        self.to = to


def cross(**roots: Any) -> tuple[dict[str, Any], list[Any]]:
    """Write and read within this process."""
    known = definitions.Definitions()
    written = pickler.write(roots, known)
    inline = pickler.write({f"def:{k}": known.find(k) for k in written.uses}, known, inline=True)
    there = definitions.Definitions()
    kept = reader.read(bytes(inline.stream), inline.buffers, there)
    loaded = reader.read(bytes(written.stream), written.buffers, there)
    del kept
    return loaded.roots, written.notes + loaded.notes + remarks.take()


def test_libraries_register_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point is called with `rule`; one that fails is noted and hinders nobody."""

    def write(pickler: Any, obj: Any) -> Any:
        pickler.rebuilt(obj, "connected again")
        return make, (obj.to,)

    def make(to: str) -> Any:
        return Handle(to + " again")

    frozen.frozen(make)
    module = types.ModuleType("case_plugin")
    module.__dict__["register"] = lambda rule: rule(f"{__name__}.Handle")(write)
    monkeypatch.setitem(sys.modules, "case_plugin", module)
    entries = [
        importlib.metadata.EntryPoint("good", "case_plugin:register", plugins.GROUP),
        importlib.metadata.EntryPoint("bad", "case_plugin:missing", plugins.GROUP),
    ]
    pickler._load_rules()
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: entries)
    plugins.load_entry_points()
    found, notes = cross(h=Handle("db"))
    assert found["h"].to == "db again"
    assert {note.kind for note in notes} == {"rebuilt", "lost"}
    assert "bad cannot be used" in notes[-1].reason


def test_resources_are_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a resource made is made again; without its variables it is lost, and they are named."""
    calls = []

    @plugins.resource(name="slim", env=["CASE_SLIM"])
    def connect(to: str, *, twice: bool = False) -> Slim:
        calls.append(to)
        return Slim(to * 2 if twice else to)

    with pytest.raises(LookupError, match="needs CASE_SLIM"):
        connect("x")
    monkeypatch.setenv("CASE_SLIM", "1")
    made = connect("x", twice=True)
    other = Slim("plain")
    found, notes = cross(made=made, also=[made], other=other)
    assert found["made"].to == "xx"
    assert found["also"][0] is found["made"]
    assert found["other"].to == "plain"
    assert [note.name for note in notes if note.kind == "rebuilt"][:1] == ["made"]
    monkeypatch.delenv("CASE_SLIM")
    found, notes = cross(made=made)
    assert "needs CASE_SLIM" in repr(found["made"])
    assert any(note.kind == "lost" and "CASE_SLIM" in note.reason for note in notes)


def test_a_resource_that_fails_is_lost() -> None:
    """An exception of the function at restore is the reason of the loss."""
    fails: list[int] = []

    @plugins.resource(name="flaky")
    def connect() -> Handle:
        if fails:
            raise OSError("no route")
        return Handle("ok")

    made = connect()
    fails.append(1)
    found, _ = cross(made=made)
    assert "raised OSError: no route" in repr(found["made"])


def test_persistent_classes_say_what_is_kept() -> None:
    """Instances are written as `save` gives them and rebuilt by `load`."""

    @plugins.persistent(save=lambda box: box.value, load=lambda value: Handle(f"loaded {value}"))
    class Box:
        def __init__(self, value: int) -> None:
            self.value = value
            self.unpicklable = iter(lambda: 1, 2)

    box = Box(3)
    found, notes = cross(box=box, also=(box,))
    assert found["box"].to == "loaded 3"
    assert found["also"][0] is found["box"]
    assert not [note for note in notes if note.kind == "lost"]


def test_names_that_a_resource_needs_go_along() -> None:
    """Functions, classes, modules and plain data that it uses; not what could lead back to it."""
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(
        "import json\nDSN = {'a': [1]}\nloop = object()\n"
        "class Link:\n    def go(self): return helper()\n"
        "def helper(): return DSN\n"
        "def connect(): return Link(), json, loop\n",
        space,
    )
    assert set(plugins.needs(space["connect"])) == {"json", "DSN", "Link", "helper"}
