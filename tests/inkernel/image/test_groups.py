"""Groups: what shares something goes together, what nothing has reached is left alone."""

import random
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import _inkernel
from tests.inkernel.image._space import Space, assumed, changed, given_anew, groups, lost

grouping: Any = _inkernel.load("image.groups")


def test_names_that_share_something_mutable_are_one_group() -> None:
    """A list in two variables, an array and its view; not equal texts, numbers, dtypes."""
    space = Space()
    space.run(
        "import numpy as np\n"
        "a = [1]; b = {'k': a}; c = (a,)\n"
        "s = 'text'; t = s; n = 5; m = n\n"
        "x = np.zeros(50_000); y = x[10:]; z = np.zeros(50_000)\n"
        "d = [()]; e = [()]; f = ['text', 5, None, int]"
    )
    found = groups(space.take())
    assert {"a", "b", "c"} in found
    assert {"x", "y"} in found
    for name in ("s", "t", "n", "m", "z", "d", "e", "f", "np"):
        assert {name} in found


def test_definitions_come_first_and_draw_in_what_they_share() -> None:
    """Classes and functions are one group, with variables that a closure or a class holds."""
    space = Space()
    space.run(
        "class P:\n    shared = []\n"
        "def make(held):\n    def add(x): held.append(x)\n    return add\n"
        "log = []; add = make(log); alias = P.shared; p = P(); calls = [add]"
    )
    taken = space.take()
    (first,) = [one for one in taken.groups if one.group.definitions]
    assert set(first.group.names) == {"P", "make", "log", "add", "alias"}
    ordinary = [one.group for one in taken.groups if not one.group.definitions]
    assert {name for one in ordinary if one.uses for name in one.names} == {"p", "calls"}
    order = [one.group.definitions for one in taken.groups if ":" not in one.group.names[0]]
    assert order == sorted(order, reverse=True)


def test_a_definition_without_a_name_of_its_own_is_kept() -> None:
    """An instance of a class that was deleted, a lambda in a list."""
    space = Space()
    space.run("class Gone:\n    def f(self): return 7\ng = Gone(); del Gone; l = [lambda: 3]")
    taken = space.take()
    (first,) = [one for one in taken.groups if one.group.definitions]
    assert len(first.group.names) == 2
    other = Space.of(space)
    assert other["g"].f() == 7
    assert other["l"][0]() == 3
    space.run("g = l = None")
    assert not [one for one in space.take().groups if one.group.definitions]


def test_groups_keep_their_ids_and_come_apart() -> None:
    """A group keeps its id while it has any of its names; what no longer shares goes alone."""
    space = Space()
    space.run("a = [1]; b = [a]; c = [2]")
    first = ids(space.take())
    assert first["a"] == first["b"] != first["c"]
    space.run("b = 5; a.append(c)")
    second = ids(space.take())
    assert second["a"] == second["c"]
    assert {second["a"], second["b"]} == {first["a"], first["c"]}
    space.run("a = None")
    third = ids(space.take())
    assert second["a"] in {third["a"], third["c"]}
    assert third["a"] != third["c"]


def ids(taken: Any) -> dict[str, str]:
    return {name: one.group.id for one in taken.groups for name in one.group.names}


def test_only_what_was_reached_is_given_again() -> None:
    """A cell costs what it touches: the rest is the same."""
    space = Space()
    space.run("a = [1]; b = {'k': [2]}; c = 3\ndef grow(): a.append(4)")
    space.take()
    space.run("b")
    assert given_anew(space.take()) == set()
    space.run("b['k'].append(1)")
    assert given_anew(space.take()) == {"b"}
    space.run("grow()")
    assert given_anew(space.take()) == {"a"}
    space.run("del c")
    assert "c" not in ids(space.take())
    space.run("c = 3")
    assert given_anew(space.take()) == {"c"}


def test_a_group_that_an_untouched_one_shares_with_is_joined() -> None:
    """A new variable that holds an old list goes with it, though nothing named the list's owner."""
    space = Space()
    space.run("class Box: pass\nbox = Box(); box.inner = [1]; other = [2]")
    space.run("import gc\ndef inner(): return gc.inner")
    sys.modules["gc"].inner = space["box"].inner  # type: ignore[attr-defined]
    try:
        space.take()
        space.run("new = inner()")
        assert {"box", "new"} in groups(space.take())
    finally:
        del sys.modules["gc"].inner  # type: ignore[attr-defined]


def test_what_the_analysis_missed_is_found_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verifying image looks at all, gives what had changed, and says so; sharing included."""
    monkeypatch.setattr(sys.modules["_cave_kernel.image.take"], "SPARE", -1.0)
    space = Space()
    space.run("a = [1]; b = [[2]]; c = {1: 2}; d = {'x': [2]}")
    space.take()
    space["b"][0].append(3)
    space["d"]["x"] = space["c"]
    taken = space.take()
    assert given_anew(taken) == set()
    assert {"a", "b", "c", "d"} <= assumed(taken)
    taken = space.take(verify=True)
    assert set(taken.missed) >= {"b", "d"}
    assert {"c", "d"} in groups(taken)
    assert not assumed(taken)
    assert Space.of(space)["d"]["x"] is Space.last_of["c"]
    assert space.take(verify=True).missed == []


def test_cheap_groups_are_looked_at_in_any_case() -> None:
    """In an ordinary session small variables are checked at every image or at the next ones."""
    space = Space()
    space.run("\n".join(f"v{at} = {{'k': [{at}]}}" for at in range(60)) + "\nx = 0")
    space.take()
    space["v7"]["k"].append(8)
    for number in range(30):
        space.run(f"x = {number + 1000}")
        if "v7" in space.take().missed:
            break
    else:
        pytest.fail("nobody looked")
    assert Space.of(space)["v7"] == {"k": [7, 8]}


def test_an_unknown_base_gives_everything() -> None:
    """The host that lost an image gets all, under the same ids."""
    space = Space()
    space.run("a = [1]; b = 2")
    first = space.take()
    taken = space.take(base="nobody knows")
    assert taken.base is None
    assert given_anew(taken) == {"a", "b"}
    assert ids(taken) == ids(first)


def test_a_failed_image_costs_a_full_one_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """When taking an image raises, the next one is whole."""
    space = Space()
    space.run("a = [1]")
    space.take()
    space.run("a.append(2)")
    with monkeypatch.context() as patch:
        patch.setattr(space.taker, "_finish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            space.take()
    taken = space.take()
    assert taken.base is None
    assert Space.of(space)["a"] == [1, 2]


def test_objects_that_misbehave_while_they_are_written() -> None:
    """What raises, prints or changes other variables costs itself alone."""
    space = Space()
    space.run(
        "class Raises:\n    def __reduce__(self): raise RuntimeError('no')\n"
        "class Meddles:\n    def __reduce__(self):\n"
        "        print('hello'); other.append(1); globals()['new'] = [1]; return list, ()\n"
        "raises = Raises(); meddles = Meddles(); other = [0]; fine = [1]"
    )
    taken = space.take()
    notes = [note for one in taken.groups for note in one.group.notes]
    assert [(note.kind, note.name) for note in notes] == [("lost", "raises")]
    back = Space.of(space)
    assert back["fine"] == [1]
    assert isinstance(back["raises"], lost.Lost)
    space.run("fine.append(2)")
    space.take(verify=True)
    assert Space.of(space)["fine"] == [1, 2]


# -- any graph of objects ----------------------------------------------------------------------


def build(seed: int, names: int, nodes: int) -> dict[str, Any]:
    """Variables over one random graph of lists, dicts, sets of tuples, objects and arrays."""
    chance = random.Random(seed)
    made: list[Any] = []
    for number in range(nodes):
        kind = chance.choice(["list", "dict", "object", "array", "view", "number", "tuple"])
        old = [chance.choice(made) for _ in range(min(len(made), chance.randrange(3)))]
        match kind:
            case "list":
                made.append(old)
            case "dict":
                made.append({str(at): one for at, one in enumerate(old)})
            case "object":
                one = random.Random.__new__(Plain)
                one.__dict__.update({f"a{at}": part for at, part in enumerate(old)})
                made.append(one)
            case "array":
                made.append(np.full(chance.choice([3, 20_000]), number, "f8"))
            case "view":
                whole = np.full(chance.choice([5, 20_000]), number, "f8")
                made.append([whole, whole[1:]])
            case "tuple":
                made.append(tuple(old))
            case _:
                made.append(number)
    for one in made:  # cycles
        if type(one) is list and chance.random() < 0.3:
            one.append(chance.choice(made))
    return {f"v{at}": chance.choice(made) for at in range(names)}


class Plain(random.Random):
    """An object with attributes."""

    def __reduce__(self) -> Any:
        return (Plain.__new__, (Plain,), self.__dict__)

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)


def shape(values: dict[str, Any]) -> list[Any]:
    """All that can be told of variables: values, and which objects are one."""
    seen: dict[int, int] = {}
    told: list[Any] = []

    def walk(one: Any) -> None:
        if type(one) in (int, str, tuple):
            told.append(one if type(one) is not tuple else ("tuple", len(one)))
            for part in one if type(one) is tuple else ():
                walk(part)
            return
        if id(one) in seen:
            told.append(("again", seen[id(one)]))
            return
        seen[id(one)] = len(seen)
        told.append(type(one).__name__)
        if isinstance(one, np.ndarray):
            told.append(one.tolist()[:50])
            return
        inside = one if type(one) is list else one.values() if type(one) is dict else (
            one.__dict__.values()
        )  # fmt: skip
        for part in inside:
            walk(part)
        told.append("end")

    for name in sorted(values):
        told.append(name)
        walk(values[name])
    told.append(sorted(_overlaps(values)))
    return told


def _overlaps(values: dict[str, Any]) -> list[tuple[str, str]]:
    arrays = {
        name: one
        for name, one in values.items()
        if type(one) is list and len(one) == 2 and isinstance(one[0], np.ndarray)
    }
    return [
        (a, b) for a, left in arrays.items() for b, right in arrays.items()
        if isinstance(right[1], np.ndarray) and np.shares_memory(left[0], right[1])
    ]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), names=st.integers(1, 8), nodes=st.integers(1, 14))
def test_any_sharing_comes_back(seed: int, names: int, nodes: int) -> None:
    """However objects are shared between variables, across images and changes: so after."""
    space, chance = Space(), random.Random(seed)
    values = build(seed, names, nodes)
    space.user_ns.update(values)
    space.take()
    for step in range(3):
        name = chance.choice(sorted(values))
        other = chance.choice(sorted(values))
        act = chance.randrange(4)
        if act == 0 and type(space[name]) is list:
            space.run(f"{name}.append({other})")
        elif act == 1:
            space.run(f"{name} = {other}")
        elif act == 2 and type(space[name]) is dict:
            space.run(f"{name}['new{step}'] = [{other}]")
        else:
            space.run(f"{name} = [{other}, {step}]")
        space.take(verify=chance.random() < 0.3)
    wanted = {name: space[name] for name in values}
    back = Space.of(space)
    assert shape({name: back[name] for name in values}) == shape(wanted)
    keep = changed(space, chance)
    assert shape({name: space[name] for name in values}) == shape(
        {name: back[name] for name in values}
    ), keep


def test_classes_of_odd_modules_are_no_trouble() -> None:
    """A class may say that it comes from nowhere, or from a module that cannot be."""
    space = Space()
    space.run(
        "class P: pass\nclass Q: pass\nP.__module__ = ''; Q.__module__ = 'no such/module'\n"
        "p = P(); q = Q(); plain = [1]"
    )
    assert "plain" in given_anew(space.take())
    assert Space.of(space)["plain"] == [1]


def test_large_memory_is_not_hashed_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pages are not tracked, memory that nothing has reached waits for a verifying image."""
    monkeypatch.setenv("CAVE_TRACKING", "hashes")
    space = Space()
    space.run("import numpy as np; big = np.zeros(4_000_000); x = 0")
    space.take()
    for number in range(3):
        space.run(f"x = {number + 1000}")
        assert "big" in assumed(space.take())
    space["big"][5] = 1
    assert space.take(verify=True).missed == ["big"]


def test_a_value_that_replaces_another_at_its_address_is_seen() -> None:
    """Numbers and texts count as the same only while the very object is held."""
    space = Space()
    space.run("x = 0.5; y = [1]; t = 'text'")
    space.take()
    for turn in range(6):
        space.run(f"for _ in range({turn + 2}): x = x + 1.0; t = t + '.'")
        assert given_anew(space.take()) - {"_"} == {"x", "t"}
    space.run("y = None")
    assert given_anew(space.take()) == {"y"}
    space.run("x; t; y")
    assert given_anew(space.take()) == set()
