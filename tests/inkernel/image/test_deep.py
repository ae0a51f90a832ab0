"""What nests far deeper than any stack allows is written and read without recursion."""

# ruff: noqa: E501 (kinds are code, whose lines count for themselves)

import pytest

from tests.inkernel.image._worlds import World, another, cross

_COUNT = """
        def depth(x, step):
            n = 0
            while x:
                x, n = step(x), n + 1
            return n
"""
KINDS = {
    "linked nodes": (
        """
        class Node:
            def __init__(self, value): self.value, self.next, self.prev = value, None, None
        first = last = Node(0)
        for i in range(1, 100_000):
            node = Node(i); last.next, node.prev = node, last; last = node
        last.next = None
        ends = [first, last, {"shared": last}]
        """,
        """
        count, node = 0, first
        while node:
            assert node.value == count and type(node) is Node
            count, tail, node = count + 1, node, node.next
        assert count == 100_000 and tail is last is ends[1] is ends[2]["shared"] and last.prev.next is last
        """,
    ),
    "slots": (
        """
        class Link:
            __slots__ = ("next", "__weakref__")
        link = None
        for _ in range(20_000):
            new = Link(); new.next = link; link = new
        """,
        "n, at = 0, link\nwhile at: at, n = at.next, n + 1\nassert n == 20_000",
    ),
    "lists, dicts, tuples": (
        """
        deep_list, deep_dict, deep_tuple = [], {}, ()
        for i in range(20_000):
            deep_list, deep_dict, deep_tuple = [deep_list, i], {"in": deep_dict, "i": i}, (deep_tuple, i)
        """
        + _COUNT,
        """
        assert depth(deep_list, lambda x: x[0]) == 20_000 == depth(deep_tuple, lambda x: x[0])
        assert depth(deep_dict, lambda x: x["in"]) == 20_000
        """,
    ),
    "other things on the way": (
        """
        import collections, datetime
        class Step:
            def __init__(self, inner): self.inner = inner
            def __hash__(self): return 5
            def __eq__(self, other): return self is other
        step = None
        for i in range(8_000):
            step = Step(collections.deque([step]) if i % 2 else {"x": (i, [step])})
        step.extra = [datetime.date(2024, 1, 1), {1, 2}, collections.Counter("aab"), Step, lambda: step,
                      collections.defaultdict(list, a=[1]), {step}]
        step.loop = step
        """,
        """
        n, at = 0, step
        while at:
            at, n = (at.inner[0] if isinstance(at.inner, collections.deque) else at.inner["x"][1][0]), n + 1
        assert n == 8_000 and step.loop is step and step.extra[3] is Step and step.extra[4]() is step
        assert step.extra[2]["a"] == 2 and step.extra[5]["b"] == [] and step in step.extra[6]
        """,
    ),
    "something lost at the bottom": (
        """
        class Last: pass
        bottom = Last(); bottom.gen = (i for i in range(3))
        chain = bottom
        for _ in range(8_000): chain = [chain]
        """,
        """
        at = chain
        while isinstance(at, list): at = at[0]
        assert repr(at.gen).startswith("<lost chain (generator)") and at is bottom
        """,
    ),
}
NOTED = {"something lost at the bottom"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return cross(KINDS, tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("kind", KINDS)
def test_deep_structures_keep_identity_order_and_cycles(world: World, kind: str) -> None:
    """A structure deeper than any recursion limit is the same after it was read."""
    assert world.wrong[kind] == ""
    assert bool(world.notes[kind]) == (kind in NOTED)


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_deep_structures_cross_on_every_python(
    version: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The worklist needs no large stack: it works where C code counts its own recursion."""
    found = cross(KINDS, tmp_path_factory.mktemp("world"), python=another(version))
    assert not any(found.wrong.values())
