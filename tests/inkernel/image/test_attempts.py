"""Writing and reading end, and a fault costs the object that has it, not those beside it."""

# ruff: noqa: E501 (cells are code, whose lines count for themselves)

import sys
import types

import pytest

from tests import _inkernel

definitions = _inkernel.load("image.definitions")
pickler = _inkernel.load("image.pickler")
reader = _inkernel.load("image.reader")
lost = _inkernel.load("image.lost")
ready = _inkernel.load("image.ready")


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> dict:
    made = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", made)
    return made.__dict__


def run(source: str, space: dict) -> None:
    exec(source, space)


def crossed(roots: dict, *, inline: bool = False) -> tuple:
    """What is read of what was written, and all notes."""
    written = pickler.write(roots, definitions.Definitions(), inline=inline)
    loaded = reader.read(bytes(written.stream), [], definitions.Definitions())
    return loaded.roots, [(n.kind, n.name) for n in [*written.notes, *loaded.notes]]


@pytest.mark.parametrize("always", [1, 10**9])
def test_a_fault_of_the_pickler_itself_ends(main, monkeypatch, always) -> None:
    """When the look-up of rules raises, for once or for ever, writing ends all the same."""
    left = [always]
    before = pickler.Pickler._handler

    def handler(self, kind):
        left[0] -= 1
        if left[0] >= 0:
            raise SystemError("no rules")
        return before(self, kind)

    monkeypatch.setattr(pickler.Pickler, "_handler", handler)
    run("class C: pass\nc = C(); n = [1]", main)
    roots, notes = crossed({"c": main["c"], "n": main["n"]})
    assert type(roots["n"]) is lost.Lost or roots["n"] == [1]
    assert ("lost", "c") in notes


def test_what_nothing_can_be_done_about_is_placeholders(main, monkeypatch) -> None:
    """When the pickler fails at everything there are placeholders, each with a note."""
    monkeypatch.setattr(pickler.Pickler, "reducer_override", lambda *_: 1 / 0)
    roots, notes = crossed({"s": "text", "n": [1]})
    assert {type(value) for value in roots.values()} == {lost.Lost}
    assert notes == [("lost", "s"), ("lost", "n")]


def test_definitions_beside_one_that_nests_too_deeply_survive(main) -> None:
    """A class attribute 100,000 lists deep: all classes and functions come back, with it."""
    run(
        "class Deep: chain = None\nfor i in range(100_000): Deep.chain = [Deep.chain]\n"
        "def f(): return 5\nclass Other:\n    def g(self): return f()",
        main,
    )
    names = ("Deep", "f", "Other")
    roots, notes = crossed({name: main[name] for name in names}, inline=True)
    assert not notes
    main.update(roots)
    depth, at = 0, roots["Deep"].chain
    while at is not None:
        depth, at = depth + 1, at[0]
    assert (depth, roots["Other"]().g()) == (100_000, 5)


def test_a_deep_group_loses_only_what_cannot_be_read(main) -> None:
    """Beside 50,000 lists an object that refuses its state: it is named, the rest lives."""
    run(
        "class Bad:\n    x = 1\n    def __getstate__(self): return {'a': 1}\n"
        "    def __setstate__(self, state): raise ValueError('no')\n"
        "chain = None\nfor i in range(50_000): chain = [chain]\nbad = Bad(); all = [bad, chain, 7]",
        main,
    )
    world = definitions.Definitions()
    written = pickler.write({"all": main["all"]}, world)
    loaded = reader.read(bytes(written.stream), [], world)
    assert loaded.roots["all"][2] == 7
    assert [(note.kind, note.name, note.path) for note in loaded.notes] == [("lost", "all", "[0]")]


def test_every_module_of_rules_can_be_imported() -> None:
    """A recipe that cannot be imported fails here; kernels would say so in each image."""
    ready.load()
    assert ready.failed == {}


def test_the_namespace_as_a_dict_is_itself_afterwards(main) -> None:
    """`globals()` in a variable, alone and in a deep group, is the namespace that reads it."""
    run("held = {'g': globals()}\ndeep = [globals()]\nfor i in range(20_000): deep = [deep]", main)
    roots, notes = crossed({"held": main["held"], "deep": main["deep"]})
    assert roots["held"]["g"] is main
    at = roots["deep"]
    while type(at) is list:
        at = at[0]
    assert at is main
    assert not notes


def test_keys_that_are_ids_are_noted(main) -> None:
    """A dict keyed by ids of objects is not what it was: the note says so; other ints do not."""
    run(
        "o = object(); ids = {id(o): 'o'}; plain = {1: 2, 10**12: 3}; times = {1764457200000: 1}",
        main,
    )
    _, notes = crossed({name: main[name] for name in ("ids", "plain", "times")})
    assert notes == [("changed", "ids")]


def test_classes_in_a_deep_group_are_whole(main) -> None:
    """Bases, a metaclass, slots, an Enum, closures, exceptions, beside what nests too deeply."""
    run(
        "import enum, functools\n"
        "class Meta(type):\n    def loud(cls): return cls.__name__.upper()\n"
        "class A(metaclass=Meta):\n    x = [1]\n    def __init__(self): self.v = self.x\n"
        "class B(A):\n    __slots__ = ('s',)\n    def both(self): return super().__init__ is not None\n"
        "class E(enum.Enum):\n    P = 1\n    def up(self): return self.name\n"
        "def outer(n):\n    def inner(): return n, len(A.x)\n    return inner\n"
        "inner = outer(5); half = functools.partial(inner)\n"
        "b = B(); b.s = E.P; err = ValueError('e'); err.by = b\n"
        "deep = None\nfor i in range(50_000): deep = [deep]\nA.deep = deep",
        main,
    )
    names = ("Meta", "A", "B", "E", "outer", "inner", "half", "b", "err")
    roots, notes = crossed({name: main[name] for name in names}, inline=True)
    assert not notes
    main.clear()
    main.update(roots)
    run(
        "assert B.loud() == 'B' and isinstance(b, A) and b.both() and b.s is E.P and E.P.up() == 'P'\n"
        "assert inner() == (5, 1) == half() and err.by is b and b.v is A.x and type(B) is Meta\n"
        "assert A.deep and err.args == ('e',)",
        main,
    )
