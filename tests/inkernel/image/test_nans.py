"""NaN are the same objects afterwards wherever more than one holds them."""

import json
import math
from typing import Any

from tests import _inkernel
from tests.inkernel.image._space import Space

nans: Any = _inkernel.load("image.nans")


def back(source: str) -> Space:
    space = Space()
    space.run(source)
    space.take()
    return Space.of(space)


def test_variables_that_share_a_nan_share_it_afterwards() -> None:
    """Also what nests too deeply for pickle, and also negative ones."""
    made = back(
        "n = float('nan'); m = -float('nan'); items = [n, m]; table = {n: 1}; deep = [n]\n"
        "for _ in range(3000): deep = [deep]\n"
        "alone = [float('nan')]"
    )
    n, m, deep = made["n"], made["m"], made["deep"]
    while type(deep) is list:
        (deep,) = deep
    assert deep is n
    assert (math.copysign(1, n), math.copysign(1, m)) == (1, -1)
    assert made["items"] == [n, m]
    assert made["table"][n] == 1
    assert math.isnan(made["alone"][0])
    assert made["alone"][0] is not n


def test_the_nan_of_a_module_is_the_modules() -> None:
    """It joins no variables: whoever uses it refers to the module."""
    made = back("import math, json\na = [math.nan]; b = json.loads('[NaN]')")
    assert made["a"] == [math.nan]
    assert made["b"] == [json.decoder.NaN]


def test_bytes_that_look_like_a_nan_stay() -> None:
    """The stream is changed at NaN only."""
    made = back(
        "data = b'G' + bytes.fromhex('7ff8000000000000') + b'x'; n = float('nan')\n"
        "both = [data, n, n, data + data]"
    )
    assert made["data"] == b"G\x7f\xf8\0\0\0\0\0\0x"
    assert made["both"] == [made["data"], made["n"], made["n"], made["data"] * 2]


def test_other_nan_are_shared_as_well() -> None:
    """Decimals, complex numbers and those of numpy: also one that signals when it is compared."""
    made = back(
        "import decimal, numpy as np\n"
        "d = decimal.Decimal('NaN'); s = decimal.Decimal('sNaN'); c = complex('nan')\n"
        "f = np.float64('nan'); t = np.datetime64('NaT', 's'); one = 1 + 0j\n"
        "held = [d, s, c, f, t, one]"
    )
    for name, other in zip("dscft", made["held"], strict=False):
        assert made[name] is other
    assert made["held"][-1] == made["one"]
