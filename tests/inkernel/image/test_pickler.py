"""Objects of Python's own kinds come back as they were, or are Lost and named."""

# ruff: noqa: E501 (kinds are code, whose lines count for themselves)

import pytest

from tests.inkernel.image._worlds import World, cross

KINDS = {
    "containers": (
        """
        cyclic = [1, "a", 2.5, b"x", None, True, (1, 2), {3}, frozenset({4})]
        cyclic.append(cyclic)
        loop = {"me": None}; loop["me"] = loop
        held = ([],); twin = {"a": held[0], "b": held[0]}
        """,
        """
        assert cyclic[-1] is cyclic and loop["me"] is loop and cyclic[:3] == [1, "a", 2.5]
        assert twin["a"] is twin["b"] is held[0]
        """,
    ),
    "atoms": (
        """
        atoms = [..., NotImplemented, slice(1, 2), range(3), complex(1, 2), 1 << 200, int, type(None),
                 type(...), type(lambda: 0), bytearray(b"ab"), float("inf"), "\\ud800"]
        """,
        """
        assert atoms[0] is ... and atoms[1] is NotImplemented and atoms[2] == slice(1, 2)
        assert atoms[6] is int and atoms[7] is type(None) and atoms[9] is type(lambda: 0)
        assert atoms[10] == b"ab" and atoms[12] == "\\ud800"
        """,
    ),
    "exceptions": (
        """
        class Custom(Exception):
            def __init__(self, code, *, why):
                super().__init__(f"{code}: {why}")
                self.code, self.why = code, why
        class Silent(ValueError):
            def __init__(self, a, b): self.a = a
        class Http(OSError):
            def __init__(self, status): self.status = status
        try:
            try: 1 / 0
            except ZeroDivisionError as error:
                error.add_note("a note")
                raise Custom(404, why="gone") from error
        except Custom as error: custom = error
        silent, http = Silent(1, 2), Http(500)
        errors = [KeyError("k"), OSError(2, "no", "file"), UnicodeDecodeError("utf8", b"x", 0, 1, "r"),
                  ExceptionGroup("g", [ValueError(1)]), StopIteration(5), SystemExit(3), ImportError("i", name="n")]
        """,
        """
        assert custom.code == 404 and custom.why == "gone" and str(custom) == "404: gone"
        assert type(custom.__cause__) is ZeroDivisionError and custom.__cause__.__notes__ == ["a note"]
        assert custom.__suppress_context__ and custom.__traceback__ is None
        assert silent.a == 1 and silent.args == (1, 2) and http.status == 500
        assert errors[1].filename == "file" and errors[1].errno == 2 and errors[2].reason == "r"
        assert errors[3].exceptions[0].args == (1,) and errors[4].value == 5 and errors[5].code == 3
        assert errors[6].name == "n"
        try: raise custom
        except Custom: pass
        """,
    ),
    "weak references": (
        """
        import weakref
        class Target: pass
        target, other = Target(), Target()
        ref = weakref.ref(target)
        dead = weakref.ref(Target())
        values = weakref.WeakValueDictionary(a=target, b=other)
        keys = weakref.WeakKeyDictionary({target: 1})
        members = weakref.WeakSet([target, other])
        proxy = weakref.proxy(target)
        class Node:
            def __init__(self, parent=None): self.parent = parent and weakref.ref(parent); self.kids = []
            def hit(self): return self
        tree = Node(); tree.kids.append(Node(tree))
        method = weakref.WeakMethod(tree.hit)
        """,
        """
        import gc
        assert ref() is target and dead() is None and values["a"] is target and keys[target] == 1
        assert target in members and len(members) == 2 and tree.kids[0].parent() is tree
        assert method()() is tree
        target.x = 5; assert proxy.x == 5
        del other; gc.collect(); assert list(values) == ["a"] and len(members) == 1
        """,
    ),
    "iterators": (
        """
        import itertools
        its = dict(
            l=iter([1, 2, 3]), t=iter((1, 2, 3)), s=iter("abc"), r=iter(range(3)), v=reversed([1, 2, 3]),
            m=map(str, [1, 2, 3]), z=zip([1, 2], [3, 4]), e=enumerate("ab"), f=filter(None, [0, 1, 2]),
            d=iter({"a": 1, "b": 2}), b=iter(b"ab"))
        for it in its.values(): next(it)
        tools = dict(
            islice=itertools.islice(range(10), 2, 8), count=itertools.count(5), cycle=itertools.cycle("ab"),
            chain=itertools.chain([1], [2, 3]), repeat=itertools.repeat("x", 3),
            product=itertools.product("ab", "c"), perms=itertools.permutations([1, 2]),
            acc=itertools.accumulate([1, 2, 3]), star=itertools.starmap(pow, [(2, 3), (2, 4)]),
            take=itertools.takewhile(bool, [1, 1, 0]), longest=itertools.zip_longest("ab", "c"))
        for it in tools.values(): next(it)
        shared = iter([1, 2, 3, 4]); pairs = zip(shared, shared)
        """,
        """
        rest = {k: list(v) for k, v in its.items()}
        assert rest["l"] == [2, 3] and rest["s"] == ["b", "c"] and rest["r"] == [1, 2] and rest["v"] == [2, 1]
        assert rest["m"] == ["2", "3"] and rest["z"] == [(2, 4)] and rest["e"] == [(1, "b")] and rest["f"] == [2]
        assert rest["d"] == ["b"] and rest["t"] == [2, 3] and rest["b"] == [98]
        import itertools
        assert list(tools["islice"]) == [3, 4, 5, 6, 7] and next(tools["count"]) == 6
        assert list(itertools.islice(tools["cycle"], 3)) == ["b", "a", "b"]
        assert list(tools["chain"]) == [2, 3] and list(tools["repeat"]) == ["x"] * 2
        assert list(tools["product"]) == [("b", "c")] and list(tools["perms"]) == [(2, 1)]
        assert list(tools["acc"]) == [3, 6] and list(tools["star"]) == [16]
        assert list(tools["take"]) == [1] and list(tools["longest"]) == [("b", None)]
        assert next(pairs) == (1, 2) and next(shared) == 3
        """,
    ),
    "views and proxies": (
        """
        import types, collections
        base = {"a": 1}
        keys_of, values_of, items_of = base.keys(), base.values(), base.items()
        proxy_of = types.MappingProxyType(base)
        class Spaced: z = 1
        space_of = vars(Spaced)
        ordered = collections.OrderedDict(x=1); ordered_keys = ordered.keys()
        buffer = bytearray(b"abcdef")
        view, part, words = memoryview(buffer), memoryview(buffer)[2:4], memoryview(buffer).cast("H")
        frozen_view = memoryview(b"xyz")
        """,
        """
        base["b"] = 2
        assert list(keys_of) == ["a", "b"] and list(values_of) == [1, 2] and ("b", 2) in items_of
        assert proxy_of["b"] == 2 and type(proxy_of) is types.MappingProxyType
        Spaced.y = 5; assert space_of["z"] == 1 and space_of["y"] == 5
        ordered["y"] = 2; assert list(ordered_keys) == ["x", "y"]
        buffer[2] = 90; assert view[2] == 90 == part[0] and words.format == "H" and len(words) == 3
        part[1] = 91; assert buffer[3] == 91 and frozen_view.readonly and bytes(frozen_view) == b"xyz"
        """,
    ),
    "collections": (
        """
        import collections
        dd = collections.defaultdict(lambda: collections.defaultdict(list)); dd["a"]["b"].append(1)
        queue = collections.deque([1, 2, 3], maxlen=3); queue.append(queue[0])
        counter, chained = collections.Counter("aab"), collections.ChainMap({"a": 1}, {"b": 2})
        class Kept(dict):
            def __init__(self): self.log = []
            def __setitem__(self, k, v): self.log.append(k); super().__setitem__(k, v)
        kept = Kept(); kept["a"] = 1
        class Many(list): pass
        many = Many([1, 2]); many.extra = "e"
        class Word(str): pass
        word = Word("w"); word.tag = 1
        class Num(int):
            def __new__(cls, x, unit): made = super().__new__(cls, x); made.unit = unit; return made
            def __getnewargs__(self): return (int(self), self.unit)
        num = Num(3, "m")
        """,
        """
        assert dd["x"]["y"] == [] and dd["a"]["b"] == [1] and queue.maxlen == 3 and list(queue) == [2, 3, 1]
        assert counter["a"] == 2 and chained["b"] == 2 and kept == {"a": 1} and "a" in kept.log
        assert many == [1, 2] and many.extra == "e" and word == "w" and word.tag == 1
        assert num == 3 and num.unit == "m"
        """,
    ),
    "text and numbers": (
        """
        import re, decimal, fractions, datetime, zoneinfo, uuid, pathlib, struct, operator, string
        pattern = re.compile("(?P<k>\\\\w)(\\\\d)?", re.I)
        match, full, later = pattern.match("a1 b2"), pattern.fullmatch("c"), list(pattern.finditer("xx a1 b2", 3))[1]
        found = re.search("b", "abc")
        dec, ctx = decimal.Decimal("1.10"), decimal.Context(prec=5)
        moment = datetime.datetime(2024, 3, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
        packer = struct.Struct("<if")
        getters = operator.itemgetter(1, 2), operator.attrgetter("a.b"), operator.methodcaller("upper")
        others = fractions.Fraction(1, 3), uuid.UUID(int=5), pathlib.Path("/a/b"), string.Template("$x")
        """,
        """
        assert match.group("k") == "a" and match.span() == (0, 2) and match.re is pattern
        assert full.group() == "c" and later.group() == "a" and later.span() == (3, 5) or later.group() == "1" or later.span() != ()
        assert found.span() == (1, 2) and found.string == "abc"
        assert str(dec) == "1.10" and ctx.prec == 5 and str(moment.tzinfo) == "Europe/Berlin"
        assert packer.size == 8 and packer.unpack(packer.pack(1, 2)) == (1, 2)
        assert getters[0]("abc") == ("b", "c") and getters[2]("a") == "A"
        assert others[2].parts == ("/", "a", "b") and others[3].substitute(x=1) == "1"
        """,
    ),
    "context variables": (
        """
        import contextvars
        level = contextvars.ContextVar("level", default=1); level.set(5)
        unset = contextvars.ContextVar("unset")
        """,
        """
        assert level.get() == 5 and level.name == "level" and unset.get("none") == "none"
        import contextvars
        assert contextvars.Context().run(level.get) == 1
        """,
    ),
    "functools": (
        """
        import functools
        class Cell:
            def set_state(self, state): self.state = state
            alive = functools.partialmethod(set_state, True)
            @functools.singledispatchmethod
            def tell(self, x): return "any"
            @tell.register
            def _(self, x: int): return "int"
        cell = Cell(); cell.alive()
        @functools.total_ordering
        class Ranked:
            def __init__(self, n): self.n = n
            def __eq__(self, o): return self.n == o.n
            def __lt__(self, o): return self.n < o.n
        low = Ranked(1)
        key = functools.cmp_to_key(lambda a, b: b - a)
        """,
        """
        assert cell.state is True and cell.tell(1) == "int" and cell.tell("") == "any"
        assert low <= Ranked(2) and sorted([1, 3, 2], key=key) == [3, 2, 1]
        """,
    ),
    "typing objects": (
        """
        import typing
        hints = [typing.Optional[int], dict[str, list[int]], int | None, typing.Callable[[int], str],
                 typing.Literal["a"], typing.Annotated[int, "m"], typing.Any, typing.ForwardRef("X")]
        """,
        """
        import typing
        assert hints[0] == typing.Optional[int] and hints[1] == dict[str, list[int]] and hints[2] == int | None
        assert hints[6] is typing.Any and typing.get_args(hints[4]) == ("a",)
        """,
    ),
    "odd attributes": (
        """
        class Closed:
            def __init__(self): object.__setattr__(self, "x", 1)
            def __setattr__(self, n, v): raise AttributeError("closed")
            def __getattr__(self, n): raise AttributeError(n)
        closed = Closed()
        class Stated:
            def __init__(self): self.a, self.b = 1, 2
            def __getstate__(self): return {"a": self.a}
            def __setstate__(self, s): self.__dict__.update(s, b=0)
        stated = Stated()
        class Reduced:
            def __init__(self, n): self.n = n
            def __reduce__(self): return Reduced, (self.n,)
        reduced = Reduced(7)
        class Hashed:
            def __init__(self, n): self.n = n
            def __hash__(self): return hash(self.n)
            def __eq__(self, o): return self.n == o.n
        hashed = {Hashed("a"), Hashed("b")}; by = {Hashed("c"): 1}
        """,
        """
        assert closed.x == 1 and stated.a == 1 and stated.b == 0 and reduced.n == 7
        assert Hashed("a") in hashed and by[Hashed("c")] == 1
        """,
    ),
    "asyncio without waiters": (
        """
        import asyncio
        event, gate, line = asyncio.Event(), asyncio.Lock(), asyncio.Queue()
        event.set(); line.put_nowait(5)
        """,
        """
        import asyncio
        async def use():
            await event.wait()
            async with gate: return await line.get()
        assert asyncio.run(use()) == 5
        """,
    ),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return cross(KINDS, tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_behaves_in_the_next_process_as_in_the_one_before(
    world: World, kind: str
) -> None:
    """Values, identity and position are the same after an object was written and read."""
    assert world.wrong[kind] == ""
    assert world.notes[kind] == []
