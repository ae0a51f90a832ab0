"""Classes and functions of a session, and what belongs to them, come back as they were."""

# ruff: noqa: E501 (kinds are code, whose lines count for themselves)

import sys

import pytest

from tests.inkernel.image._worlds import World, another, cross

KINDS = {
    "live globals": (
        """
        level = 1
        def read_level():
            return level
        def raise_level():
            global level
            level += 1
        """,
        """
        raise_level()
        assert level == 2 == read_level()
        assert read_level.__globals__ is globals()
        """,
    ),
    "shared cell": (
        """
        def pair():
            n = 0
            def up():
                nonlocal n
                n += 1
                return n
            def show():
                return n
            return up, show
        up, show = pair()
        up()
        """,
        "assert up() == 2 == show()",
    ),
    "closure over a variable": (
        """
        log = [1]
        def logger(to):
            def put(x):
                to.append(x)
            return put
        put = logger(log)
        """,
        "put(2); assert log == [1, 2]",
    ),
    "recursion": (
        """
        def outer():
            def fact(n):
                return 1 if n < 2 else n * fact(n - 1)
            return fact
        fact = outer()
        def even(n): return True if n == 0 else odd(n - 1)
        def odd(n): return False if n == 0 else even(n - 1)
        """,
        "assert fact(5) == 120 and even(10) and not odd(10)",
    ),
    "decorated": (
        """
        import functools
        def twice(f):
            @functools.wraps(f)
            def inner(*args):
                return 2 * f(*args)
            return inner
        @twice
        def three(): "Doc."; return 3
        """,
        """
        assert three() == 6 and three.__name__ == "three" and three.__doc__ == "Doc."
        assert three.__wrapped__() == 3
        """,
    ),
    "lru_cache": (
        """
        import functools
        calls = []
        @functools.lru_cache(maxsize=7, typed=True)
        def slow(x):
            calls.append(x)
            return x + 1
        slow(1)
        """,
        """
        assert slow.cache_parameters() == {"maxsize": 7, "typed": True}
        assert slow(1) == 2 and calls == [1, 1] and slow(1) == 2 and calls == [1, 1]
        """,
    ),
    "singledispatch": (
        """
        import functools
        @functools.singledispatch
        def tell(x): return "any"
        @tell.register
        def _tell_int(x: int): return "int"
        @tell.register(list)
        def _tell_list(x): return "list"
        tell(1)
        """,
        """
        assert tell(1) == "int" and tell([]) == "list" and tell("") == "any"
        tell.register(str, lambda x: "str")
        assert tell("") == "str" and tell.dispatch(int) is _tell_int
        """,
    ),
    "partial": (
        """
        import functools
        def add(a, b): return a + b
        add_one = functools.partial(add, 1)
        """,
        "assert add_one(2) == 3 and add_one.func is add",
    ),
    "lambdas": (
        "twins = (lambda x: x + 1), (lambda x: x * 2); by = {'f': lambda: twins}",
        "assert [f(5) for f in twins] == [6, 10] and by['f']() is twins",
    ),
    "defaults": (
        """
        store = []
        def keep(x, to=store, *, scale=2):
            "Keep."
            to.append(x * scale); return to
        keep.note = {"a": 1}
        """,
        """
        assert keep(1) is store and store == [2] and keep.note == {"a": 1}
        assert keep.__doc__ == "Keep." and keep.__kwdefaults__ == {"scale": 2}
        """,
    ),
    "class and instances": (
        """
        class Point:
            count = 0
            def __init__(self, x): self.x = x
            def __eq__(self, other): return self.x == other.x
            __hash__ = None
            @classmethod
            def make(cls): return cls(0)
            @staticmethod
            def zero(): return 0
            @property
            def twice(self): return 2 * self.x
            class Inner: pass
            def who(self): return __class__
        Point.count = 5
        Point.later = lambda self: self.x + 100
        point, other = Point(1), [Point(2), Point.Inner()]
        """,
        """
        assert type(point) is Point is type(other[0]) and type(other[1]) is Point.Inner
        assert Point.count == 5 and point.later() == 101 and point.twice == 2
        assert Point.make().x == 0 and Point.zero() == 0 and point.who() is Point
        """,
    ),
    "super": (
        """
        class Base:
            def hi(self): return "base"
        class Derived(Base):
            def hi(self): return super().hi() + "!"
        derived = Derived()
        """,
        "assert derived.hi() == 'base!' and isinstance(derived, Base)",
    ),
    "slots": (
        """
        class Slotted:
            __slots__ = ("a", "_b", "__c", "unset")
            def __init__(self): self.a, self._b, self.__c = 1, [2], 3
            def c(self): return self.__c
        class Mixed(Slotted):
            __slots__ = ("d", "__dict__")
        slotted, mixed = Slotted(), Mixed()
        mixed.d, mixed.e = 4, 5
        """,
        """
        assert (slotted.a, slotted._b, slotted.c()) == (1, [2], 3)
        assert not hasattr(slotted, "unset") and not hasattr(slotted, "__dict__")
        assert (mixed.d, mixed.e, mixed.c()) == (4, 5, 3)
        """,
    ),
    "abc": (
        """
        import abc
        class Shape(abc.ABC):
            @abc.abstractmethod
            def area(self): ...
            @property
            @abc.abstractmethod
            def name(self): ...
        class Square(Shape):
            name = "square"
            def area(self): return 4
        class Foreign: pass
        Shape.register(Foreign)
        square, foreign = Square(), Foreign()
        """,
        """
        assert isinstance(square, Shape) and isinstance(foreign, Shape) and square.area() == 4
        assert issubclass(Foreign, Shape) and not issubclass(int, Shape)
        try: Shape()
        except TypeError: pass
        else: raise AssertionError
        """,
    ),
    "dataclass": (
        """
        from dataclasses import dataclass, field
        @dataclass(order=True)
        class Item:
            name: str
            tags: list = field(default_factory=list, compare=False)
        @dataclass(frozen=True, slots=True)
        class Frozen:
            x: int = 1
            y: float = field(default=2.0, metadata={"unit": "m"})
        item, frozen = Item("a", ["t"]), Frozen(5)
        """,
        """
        import dataclasses
        assert item == Item("a") and Item("a") < Item("b") and item.tags == ["t"]
        assert Item("z").tags == [] and dataclasses.asdict(item) == {"name": "a", "tags": ["t"]}
        assert frozen == Frozen(5) and dataclasses.replace(frozen, x=6).x == 6
        assert dataclasses.fields(Frozen)[1].metadata["unit"] == "m"
        try: frozen.x = 1
        except dataclasses.FrozenInstanceError: pass
        else: raise AssertionError
        """,
    ),
    "namedtuples": (
        """
        import collections, typing
        Pair = collections.namedtuple("Pair", "a b", defaults=[9])
        class Typed(typing.NamedTuple):
            x: int
            y: str = "d"
            def both(self): return (self.x, self.y)
        class Opts(typing.TypedDict, total=False):
            k: int
        pair, typed, opts = Pair(1), Typed(2), Opts(k=1)
        """,
        """
        assert pair == (1, 9) and pair.b == 9 and pair._replace(a=3).a == 3 and Pair(4, 5).a == 4
        assert typed.both() == (2, "d") and type(typed) is Typed and Typed._fields == ("x", "y")
        assert Pair._make([7, 8]).a == 7 and opts == {"k": 1} and Opts.__total__ is False
        """,
    ),
    "enums": (
        """
        import enum
        class Colour(enum.Enum):
            RED = 1
            GREEN = "g"
            ALIAS = 1
            def shout(self): return self.name + "!"
        class Perm(enum.Flag):
            R = enum.auto()
            W = enum.auto()
            RW = R | W
        class Level(enum.IntEnum):
            LOW, HIGH = 1, 2
        class Planet(enum.Enum):
            EARTH = (1.0, 2.0)
            def __init__(self, mass, radius): self.mass, self.radius = mass, radius
            @property
            def gravity(self): return self.mass / self.radius
        class Name(enum.StrEnum):
            A = enum.auto()
        class Coord(bytes, enum.Enum):
            def __new__(cls, value, label):
                made = bytes.__new__(cls, [value])
                made._value_ = value
                made.label = label
                return made
            PX = (0, "P.X")
        Fun = enum.Enum("Fun", "ONE TWO")
        held = [Colour.RED, Perm.R | Perm.W, Level.HIGH, Planet.EARTH, Name.A, Fun.TWO, Coord.PX]
        by_colour = {Colour.RED: 1}
        """,
        """
        assert held[0] is Colour.RED is Colour.ALIAS is Colour(1) and Colour.RED.shout() == "RED!"
        assert held[1] is Perm.RW and Perm.R in held[1] and list(Colour) == [Colour.RED, Colour.GREEN]
        assert held[2] is Level.HIGH and held[2] > 1 and held[3].gravity == 0.5
        assert held[4] is Name.A and Name.A == "a" and held[5] is Fun.TWO and Fun(1).name == "ONE"
        assert held[6] is Coord.PX and Coord.PX.label == "P.X" and Coord(0) is Coord.PX
        assert by_colour[Colour.RED] == 1 and ~Perm.R == Perm.W
        """,
    ),
    "protocol and generic": (
        """
        import typing
        T = typing.TypeVar("T")
        @typing.runtime_checkable
        class Sized(typing.Protocol):
            def size(self) -> int: ...
        class Box(typing.Generic[T]):
            def __init__(self, x: T): self.x = x
            def size(self): return 1
        class IntBox(Box[int]): pass
        UserId = typing.NewType("UserId", int)
        box, intbox, alias, maybe = Box(1), IntBox(2), Box[int], typing.Optional[Box[int]]
        """,
        """
        assert isinstance(box, Sized) and not isinstance(1, Sized) and intbox.x == 2
        assert alias.__origin__ is Box and alias(3).x == 3 and Box.__parameters__ == (T,)
        assert typing.get_args(maybe)[0] == Box[int] and UserId(5) == 5
        class Another(Box[T]): pass
        assert Another[str].__args__ == (str,)
        """,
    ),
    "metaclass": (
        """
        class Meta(type):
            made = []
            def __new__(mcls, name, bases, space, **options):
                cls = super().__new__(mcls, name, bases, dict(space, tag=name.lower()))
                mcls.made.append(name)
                return cls
            def __call__(cls, *args):
                made = super().__call__(*args)
                made.called = True
                return made
            @property
            def loud(cls): return cls.__name__.upper()
        class Thing(metaclass=Meta): pass
        class Sub(Thing, option=1): pass
        thing = Sub()
        """,
        """
        assert Meta.made == ["Thing", "Sub"] and type(Thing) is Meta and Thing.loud == "THING"
        assert Sub.tag == "sub" and thing.called and Sub().called and isinstance(thing, Thing)
        """,
    ),
    "init_subclass registry": (
        """
        class Plugin:
            registry = {}
            def __init_subclass__(cls, /, name, **rest):
                super().__init_subclass__(**rest)
                Plugin.registry[name] = cls
        class First(Plugin, name="first"): pass
        class Second(First, name="second"): pass
        """,
        """
        assert Plugin.registry == {"first": First, "second": Second}
        assert Plugin.__subclasses__() == [First] and Second.__mro__[1] is First
        class Third(Plugin, name="third"): pass
        assert Plugin.registry["third"] is Third
        """,
    ),
    "descriptors": (
        """
        class Positive:
            def __set_name__(self, owner, name):
                self.name = "_" + name
                heard.append(name)
            def __get__(self, obj, owner=None): return self if obj is None else getattr(obj, self.name)
            def __set__(self, obj, value): setattr(obj, self.name, abs(value))
        heard = []
        class Uses:
            x = Positive()
        uses = Uses(); uses.x = -3
        """,
        "assert uses.x == 3 and heard == ['x']; uses.x = -9; assert uses.x == 9",
    ),
    "cached_property": (
        """
        import functools
        class Lazy:
            runs = 0
            @functools.cached_property
            def value(self):
                Lazy.runs += 1
                return 42
        lazy, filled = Lazy(), Lazy()
        filled.value
        """,
        "assert lazy.value == 42 == filled.value and lazy.value == 42 and Lazy.runs == 2",
    ),
    "property objects": (
        """
        prop = property(lambda self: 1, doc="One.")
        static, classy = staticmethod(len), classmethod(lambda cls: cls)
        """,
        """
        assert prop.fget(None) == 1 and prop.__doc__ == "One."
        class Uses2: one = prop; n = static; me = classy
        assert Uses2().one == 1 and Uses2.n("ab") == 2 and Uses2.me() is Uses2
        """,
    ),
    "bound methods": (
        """
        class Counter:
            def __init__(self): self.n = 0
            def up(self): self.n += 1; return self.n
            def __private(self): return "p"
            def private(self): return self.__private
            @classmethod
            def name(cls): return cls.__name__
        counter = Counter()
        bound, named, hidden = counter.up, Counter.name, counter.private()
        more, plus = [].append, (3).__add__
        """,
        """
        assert bound() == 1 == counter.n and bound.__self__ is counter and named() == "Counter"
        assert hidden() == "p" and plus(4) == 7
        more(1); assert more.__self__ == [1]
        """,
    ),
    "redefined class": (
        """
        class Version:
            n = 1
        old = Version()
        class Version:
            n = 2
        new = Version()
        """,
        "assert old.n == 1 and new.n == 2 and type(new) is Version is not type(old)",
    ),
    "run-time module": (
        """
        import sys, types
        tool = types.ModuleType("tool_at_run_time")
        exec("count = 0\\ndef up():\\n    global count\\n    count += 1\\n    return count\\n"
             "class Kept: pass", tool.__dict__)
        sys.modules["tool_at_run_time"] = tool
        from tool_at_run_time import up as tool_up, Kept
        kept = Kept(); tool_up()
        """,
        """
        import sys
        assert tool_up() == 2 == tool.count and sys.modules["tool_at_run_time"] is tool
        assert type(kept) is tool.Kept is Kept
        """,
    ),
    "del": (
        """
        class Loud:
            def __del__(self): print("deleted")
        loud = Loud()
        """,
        "assert type(loud) is Loud",
    ),
    "class attributes shared with variables": (
        """
        settings = {"a": 1}
        class Reader:
            options = settings
        """,
        "settings['a'] = 2; assert Reader.options['a'] == 2",
    ),
    "equality that raises": (
        """
        class Odd(type):
            def __eq__(cls, other): raise RuntimeError("no")
            __hash__ = type.__hash__
        class Strange(metaclass=Odd): pass
        strange = Strange()
        """,
        "assert type(strange) is Strange",
    ),
    "source": (
        """
        def shown(x):
            return x + 1  # a comment
        """,
        """
        import inspect
        assert "a comment" in inspect.getsource(shown)
        """,
    ),
    "annotations": (
        """
        from __future__ import annotations
        def noted(x: Missing) -> list[int]: return x
        class Noted:
            a: Missing
            b: int = 1
        """,
        "assert noted.__annotations__['x'] == 'Missing' and Noted.__annotations__['b'] == 'int'",
    ),
    "code object": ("spare = compile('6 * 7', '<spare>', 'eval')", "assert eval(spare) == 42"),
}
if sys.version_info >= (3, 12):
    KINDS["type parameters"] = (
        """
        class Sack[T]:
            def __init__(self, x: T): self.x = x
            def get(self) -> T: return self.x
        def first[K](items: list[K]) -> K: return items[0]
        type Twice[T] = tuple[T, T]
        sack, sack_of, twice_of = Sack(1), Sack[int], Twice[int]
        """,
        """
        assert sack.get() == 1 and sack_of(2).x == 2 and first([3]) == 3
        assert first.__type_params__[0].__name__ == "K" and Sack.__type_params__ == Sack.__parameters__
        assert Twice.__value__.__origin__ is tuple and twice_of.__origin__ is Twice
        """,
    )
OF_ONE_VERSION = {"run-time module", "code object", "type parameters"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return cross(KINDS, tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_definition_behaves_in_the_next_process_as_in_the_one_before(
    world: World, kind: str
) -> None:
    """What a session defines, and objects made of it, are the same after they were read."""
    assert world.wrong[kind] == ""
    assert world.notes[kind] == []


def test_nothing_is_finalised_by_writing_and_reading(world: World) -> None:
    """A class with `__del__` has no side effect on the way."""
    assert world.output == ""


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_definitions_are_compiled_again_on_another_minor_version(
    version: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Functions and classes come by their source; code without source is lost, by name."""
    found = cross(KINDS, tmp_path_factory.mktemp("world"), into=another(version))
    assert {kind for kind, wrong in found.wrong.items() if wrong} <= OF_ONE_VERSION
    (note,) = found.notes["code object"]
    assert note[:2] == ["lost", "spare"]
    assert "Python" in note[3]
