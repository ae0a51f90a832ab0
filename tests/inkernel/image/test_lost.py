"""What cannot be written or read is Lost where it stands, with its reason; the rest lives."""

# ruff: noqa: E501 (kinds are code, whose lines count for themselves)

import pickle
import sys
import types

import pytest

from tests._inkernel import load
from tests.inkernel.image._worlds import World, cross

KINDS = {
    "code that is running": (
        """
        gen = (i for i in range(3)); next(gen)
        async def work(): return 1
        coro = work(); coro_holder = {"c": coro}
        async def ticks(): yield 1
        agen = ticks()
        import sys; frame = sys._getframe()
        try: 1 / 0
        except ZeroDivisionError as error: trace = error.__traceback__
        class Owner:
            def __init__(self): self.gen, self.data = gen, [1, 2]
        owner = Owner(); nested = {"a": [1, {"b": owner}]}
        """,
        """
        for lost in (gen, coro, agen, frame, trace):
            assert type(lost).__name__ == "Lost", lost
            try: next(lost)
            except RuntimeError as error: assert "did not come back" in str(error)
            else: raise AssertionError
        assert owner.data == [1, 2] and nested["a"][1]["b"] is owner and owner.gen is gen
        """,
    ),
    "objects that refuse": (
        """
        class Refuses:
            def __reduce__(self): raise RuntimeError("not me")
        class Wrong:
            def __reduce__(self): return 5
        class Deceives:
            def __reduce__(self): return Deceives, ("a", "b", "c")
        class Ends:
            def __reduce__(self): raise SystemExit(1)
        class Breaks:
            def __getstate__(self): return {}
            def __setstate__(self, state): raise ValueError("no state")
            x = 1
        class Bad(dict):
            def items(self): raise KeyError("items")
        class Generic:
            def __reduce__(self): return Generic, (), None, iter_bad()
        def iter_bad():
            yield 1
            raise OSError("half way")
        refuses, rest = Refuses(), [1, Refuses(), 2]
        wrong, deceives, ends, bad, half = Wrong(), [Deceives(), 3], Ends(), Bad(a=1), [Generic(), 4]
        """,
        """
        assert rest[0] == 1 and rest[2] == 2 and repr(rest[1]).startswith("<lost")
        assert "not me" in repr(refuses) and "Lost" in type(wrong).__name__ and type(ends).__name__ == "Lost"
        assert deceives[1] == 3 and type(deceives[0]).__name__ == "Lost" and half[1] == 4
        assert dict.__getitem__(bad, "a") == 1 and type(half[0]).__name__ == "Lost"
        """,
    ),
    "finalizers": (
        """
        import weakref
        class Held: pass
        held = Held(); ending = weakref.finalize(held, print, "ended"); ending.atexit = False
        """,
        "assert type(ending).__name__ == 'Lost' and type(held) is Held",
    ),
    "state that is refused": (
        """
        class Picky:
            def __init__(self): self.ok = True
            def __setstate__(self, state): raise ValueError("no state")
        picky, beside = {"p": Picky(), "q": [1]}, [2]
        """,
        "assert type(picky['p']).__name__ == 'Lost' and picky['q'] == [1] and beside == [2]",
    ),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return cross(KINDS, tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_lost_raises_on_use_and_its_owner_lives(world: World, kind: str) -> None:
    """A Lost object stands for the part that did not come back, and only for it."""
    assert world.wrong[kind] == ""


def test_each_loss_is_named_with_variable_path_and_reason(world: World) -> None:
    """Every variable that reaches something lost has a note that says where."""
    found = {(note[1], note[4]) for note in world.notes["code that is running"]}
    assert {("gen", ""), ("owner", ".gen"), ("nested", "['a'][1]['b'].gen"),
            ("coro_holder", "['c']"), ("trace", "")} <= found  # fmt: skip
    refused = {note[1]: note for note in world.notes["objects that refuse"]}
    assert "not me" in refused["refuses"][3]
    assert {"refuses", "rest", "wrong", "ends", "half", "deceives"} <= refused.keys()
    assert {note[1] for note in world.notes["state that is refused"]} == {"picky"}


# -- in this process -------------------------------------------------------------------------


def _write(**roots: object) -> object:
    return load("image.pickler").write(roots, load("image.definitions").Definitions())


def _read(written: object) -> object:
    views = [memoryview(bytearray(buffer.raw())) for buffer in written.buffers]
    return load("image.reader").read(written.stream, views, load("image.definitions").Definitions())


def test_a_module_that_is_gone_costs_only_what_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object of a library that cannot be imported is Lost; the group's other objects live."""
    module = types.ModuleType("vanishing")
    module.__spec__ = pickle.__spec__
    exec("class Thing: pass", module.__dict__)
    monkeypatch.setitem(sys.modules, "vanishing", module)
    written = _write(thing=[module.Thing(), 1], other={"a": 1})
    assert "vanishing" in written.libraries
    monkeypatch.delitem(sys.modules, "vanishing")
    loaded = _read(written)
    assert loaded.roots["other"] == {"a": 1}
    assert loaded.roots["thing"][1] == 1
    assert "vanishing" in repr(loaded.roots["thing"][0])
    assert [note.name for note in loaded.notes] == ["thing"]


def test_a_definition_that_is_not_there_is_lost_by_itself() -> None:
    """An instance whose class no group has brought is Lost, and its neighbours are not."""
    space = {"__name__": "__main__"}
    exec("class Local: pass", space)
    written = _write(local=space["Local"](), near=[1])
    assert len(written.uses) == 1
    loaded = _read(written)
    assert loaded.roots["near"] == [1]
    assert type(loaded.roots["local"]).__name__ == "Lost"


def test_who_has_the_namespace_at_hand_is_not_made_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss in another variable is none of an object that refers to the live globals."""
    space = sys.modules["__main__"].__dict__
    monkeypatch.setitem(space, "running", (number for number in [1]))
    holder = types.SimpleNamespace(space=space)
    notes = _write(running=space["running"], holder=holder).notes
    assert {note.name for note in notes} == {"running"}


def test_a_stream_that_is_cut_is_a_note_and_no_error() -> None:
    """Bytes that are no stream give no roots and say so."""
    written = _write(a=[1, 2])
    written.stream = bytes(written.stream[:10])
    loaded = _read(written)
    assert loaded.roots == {}
    assert loaded.notes[0].kind == "lost"


def test_an_ordinary_stream_is_a_pickle_that_dill_opens() -> None:
    """Without definitions a stream is what `dill.loads` takes, with its buffers."""
    dill = pytest.importorskip("dill")
    np = pytest.importorskip("numpy")
    written = _write(big=np.arange(100_000), words=["a"], both=({"x": 1},))
    assert written.uses == set()
    found = dill.loads(bytes(written.stream), buffers=[b.raw() for b in written.buffers])
    assert found["words"] == ["a"]
    assert found["big"][-1] == 99_999


def test_large_memory_is_not_copied_through_the_stream() -> None:
    """Arrays leave the stream as their own memory, the same memory once."""
    np = pytest.importorskip("numpy")
    large = np.zeros(1_000_000)
    written = _write(a=large, b=large[::2], c=[large])
    assert [buffer.raw().nbytes for buffer in written.buffers] == [8_000_000]
    assert len(written.stream) < 2_000
    address = large.__array_interface__["data"][0]
    assert np.frombuffer(written.buffers[0], "u1").__array_interface__["data"][0] == address


def test_members_are_the_mutable_objects_that_live() -> None:
    """What can be shared harmfully is a member; plain values and what was made only to be
    written are not."""
    inner, text = [1, 2], "text" * 10

    class Local:
        pass

    local = Local()
    local.inner = inner
    written = _write(outer={"k": (inner, text)}, local=local)
    assert id(inner) in written.members
    assert id(local) in written.members
    assert id(text) not in written.members
    assert id(Local) not in written.members
    assert len(written.members) <= 4


def test_the_same_objects_give_the_same_stream() -> None:
    """Nothing in a stream depends on the moment: what did not change is seen by its bytes."""
    space = {"__name__": "__main__"}
    exec("def f(x): return [x, {x}]\nclass C:\n  def m(self): return f(self)\n", space)
    roots = {"f": space["f"], "C": space["C"], "x": [space["C"](), {"a", "b"}]}
    definitions = load("image.definitions").Definitions()
    write = load("image.pickler").write
    first = bytes(write(roots, definitions, inline=True).stream)
    assert bytes(write(roots, definitions, inline=True).stream) == first


def test_what_is_lost_equals_nothing_quietly() -> None:
    """A comparison is a use: an `if` must not take the other branch without a word."""
    lost = load("image.lost").Lost("x", "int", "gone")
    assert lost == lost  # noqa: PLR0124 (itself)
    assert {lost: 1}[lost] == 1
    for use in (lambda: lost == 5, lambda: lost != 5, lambda: lost in [1, 2]):
        with pytest.raises(load("image.lost").ObjectLost, match="make it again"):
            use()
