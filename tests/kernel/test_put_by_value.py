"""What a notebook or script made itself arrives by value and lives in the kernel's `__main__`."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

HOST = """
import abc, collections, dataclasses, enum, functools, pickle, platform, sys, typing
sys.path.insert(0, {root!r})
from cave.kernel import values
from cave.ports import KernelFacts
peer = KernelFacts(1, platform.python_version(), "", {{}}, "open", "", 0)
{made}
parcel = values.pack(dict({names}), peer=peer)
pickle.dump((parcel.kind, parcel.header, [bytes(b) for b in parcel.buffers]), open({file!r}, "wb"))
"""

KERNEL = """
import pickle, sys
sys.path.insert(0, {tests!r})
import _inkernel
def arrive():
    kind, header, buffers = pickle.load(open({file!r}, "rb"))
    globals().update(_inkernel.load("values").load(kind, header, list(map(bytearray, buffers))))
arrive()
{used}
"""


def run(source: str, **parts: str) -> None:
    code = source.format(root=str(ROOT), tests=str(ROOT / "tests"), **parts)
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )
    assert not done.returncode, done.stderr


CASES = {
    "a function sees the kernel's live globals": (
        "K = 1\ndef f(): return K\ndef g():\n    global K; K = 7",
        "f=f, g=g",
        "K = 5\nassert f() == 5\ng(); assert K == 7 and f() == 7",
    ),
    "helpers and modules come along where their names are free": (
        "import math\ndef helper(x): return math.floor(x)\ndef f(x): return helper(x)",
        "f=f",
        "assert f(2.5) == 2\ndef helper(x): return 'mine'\nassert f(1) == 'mine'",
    ),
    "a helper that the kernel has is left alone": (
        "def helper(): return 'host'\ndef f(): return helper()",
        "f=f",
        "assert f() == 'host'\ndef helper(): return 'kernel'\narrive(); assert f() == 'kernel'",
    ),
    "recursion": ("def f(n): return 1 if n < 2 else n * f(n - 1)", "f=f", "assert f(5) == 120"),
    "closures share their cells": (
        (
            "def make():\n    n = 0\n    def inc():\n        nonlocal n; n += 1\n"
            "    return inc, lambda: n\ninc, get = make(); inc()"
        ),
        "inc=inc, get=get",
        "inc(); assert get() == 2",
    ),
    "defaults, annotations and attributes": (
        "def f(a: int, b=[1], *, c: 'str' = 'x') -> int:\n    'Doc.'\n    return a\nf.tag = 3",
        "f=f",
        (
            "assert f.tag == 3 and f.__doc__ == 'Doc.' and f.__defaults__ == ([1],)\n"
            "assert f.__kwdefaults__ == {'c': 'x'} and f.__annotations__['a'] is int"
        ),
    ),
    "a class and its instances": (
        (
            "class A:\n    count = 1\n    def __init__(self): self.x = 1\n"
            "    def up(self): return super().__init__() or type(self)\n"
            "    @property\n    def p(self): return self.x\n"
            "    @classmethod\n    def make(cls): return cls()\n"
            "    @staticmethod\n    def s(): return 4\n"
            "    @functools.cached_property\n    def c(self): return 5\n"
            "class B(A): __slots__ = ('y',)\nb = B(); b.y = 2"
        ),
        "a=A(), b=b, B=B",
        (
            "assert type(b) is B and isinstance(b, A) and type(a) is A and b.y == 2 and a.p == 1\n"
            "assert a.up() is A and type(A.make()) is A and A.s() == 4 and a.c == 5"
        ),
    ),
    "a class that comes twice is one class": (
        "class A: pass",
        "a=A()",
        "first = type(a)\narrive()\nassert type(a) is first is A",
    ),
    "dataclasses": (
        (
            "@dataclasses.dataclass\nclass P:\n    x: int\n"
            "    y: list = dataclasses.field(default_factory=list)\n"
            "@dataclasses.dataclass(frozen=True, kw_only=True)\nclass Q:\n    z: int = 5\n"
        ),
        "p=P(1), q=Q()",
        (
            "import dataclasses\nassert dataclasses.replace(p, x=2) == P(2) and P(3).y == []\n"
            "assert q == Q() and dataclasses.asdict(p) == {'x': 1, 'y': []}\n"
            "@dataclasses.dataclass\nclass R(P):\n    w: int = 1\nassert R(1).w == 1"
        ),
    ),
    "enums": (
        (
            "class C(enum.Enum):\n    RED = 1\n    ALSO = 1\n    BLUE = 2\n"
            "    @property\n    def nice(self): return self.name.lower()\n"
            "class F(enum.Flag):\n    A = enum.auto()\n    B = enum.auto()\n"
            "class I(enum.IntEnum):\n    ONE = 1"
        ),
        "c=C.RED, C=C, f=F.A | F.B, i=I.ONE",
        (
            "assert c is C.RED is C.ALSO and c.nice == 'red' and list(C) == [C.RED, C.BLUE]\n"
            "assert f == F.A | F.B and i == 1 and C(2) is C.BLUE and C['ALSO'] is c"
        ),
    ),
    "named tuples": (
        "N = collections.namedtuple('N', 'a b')\nclass T(typing.NamedTuple):\n    x: int = 3",
        "n=N(1, 2), t=T()",
        "assert n.a == 1 and n._replace(a=5) == (5, 2) and N(1, 2) == n and t.x == 3 and t == T()",
    ),
    "abstract classes": (
        (
            "class A(abc.ABC):\n    @abc.abstractmethod\n    def go(self): ...\n"
            "class B(A):\n    def go(self): return 1"
        ),
        "b=B(), A=A",
        (
            "assert b.go() == 1 and isinstance(b, A)\n"
            "try: A()\nexcept TypeError: pass\nelse: raise AssertionError"
        ),
    ),
    "generic classes": (
        "T = typing.TypeVar('T')\nclass G(typing.Generic[T]):\n    def m(self) -> T: ...",
        "g=G(), G=G",
        "assert isinstance(g, G) and G[int]",
    ),
    "exceptions": (
        "class E(Exception):\n    def __str__(self): return 'E!'",
        "e=E(1)",
        "try: raise e\nexcept E as caught: assert str(caught) == 'E!' and caught.args == (1,)",
    ),
    "partials and memoised functions": (
        "@functools.lru_cache(maxsize=3)\ndef f(n): return n * 2\np = functools.partial(f, 4)",
        "f=f, p=p",
        "assert f(2) == 4 and p() == 8 and f.cache_parameters()['maxsize'] == 3",
    ),
    "methods and lambdas": (
        "class A:\n    x = 3\n    def m(self): return self.x\na = A()",
        "m=a.m, l=lambda n: n + 1, d={'f': [lambda: 9]}",
        "assert m() == 3 and l(1) == 2 and d['f'][0]() == 9",
    ),
    "classes that announce themselves": (
        (
            "class Base:\n    made = []\n"
            "    def __init_subclass__(cls, *, tag): Base.made.append(cls); cls.tag = tag\n"
            "class A(Base, tag='a'): pass\nclass B(A, tag='b'): pass"
        ),
        "a=A(), b=B(), Base=Base",
        (
            "assert Base.made == [A, B] and B.tag == 'b' and B.__mro__ == (B, A, Base, object)\n"
            "class C(B, tag='c'): pass\nassert Base.made[-1] is C and isinstance(b, A)"
        ),
    ),
    "shared between variables": (
        "class A: pass\na = A(); a.l = []; a.self = a",
        "a=a, l=a.l, c=[a]",
        "assert a.l is l and c[0] is a and a.self is a",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_made_in_main_works_in_the_kernel(case: str, tmp_path: Path) -> None:
    """Functions and classes of `__main__` behave there as if they had been typed there."""
    made, names, used = CASES[case]
    file = str(tmp_path / "parcel")
    run(HOST, made=made, names=names, file=file)
    run(KERNEL, used=used, file=file)
