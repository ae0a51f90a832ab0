"""Places where a secret can turn up in a session, ways to write it, and a search for it.

The search knows nothing of how secrets are masked: it looks for the canary's bytes in the
encodings that the places use, and in base64 at each alignment, also in what is deflated.
"""

from __future__ import annotations

import base64
import random
import zlib
from pathlib import Path
from urllib.parse import quote

NAME = "CANARY_OF_TESTS"
CANARY = "k/9+canary=Wm4t~Q7x&Zz"
"""Letters that each encoding writes in another way."""
_HERE = f"__import__('os').environ[{NAME!r}]"

WAYS = {
    "raw": "{}",
    "repr": "repr({})",
    "base64": "__import__('base64').b64encode(b'{pad}' + {}.encode()).decode()",
    "urlsafe": "__import__('base64').urlsafe_b64encode(b'{pad}' + {}.encode()).decode()",
    "hex": "{}.encode().hex()",
    "HEX": "{}.encode().hex().upper()",
    "json": "__import__('json').dumps([{}])",
    "quoted": "__import__('urllib.parse').parse.quote({}, safe='')",
    "amid": "'<<' + {} + '>>'",
}
"""Expressions for one way to write what `{}` gives."""

PLACES = {
    "print": "print({v})",
    "two prints": "import sys\nfor p in ({v}[:{cut}], {v}[{cut}:]):\n    "
    "sys.stdout.write(p); sys.stdout.flush()\nprint()",
    "between stderr": "import sys\nfor c in {v}:\n    sys.stdout.write(c); sys.stdout.flush()\n    "
    "sys.stderr.write('.'); sys.stderr.flush()\nprint()",
    "letters": "import time\nfor c in {v}:\n    print(c, end='', flush=True)\nprint()",
    "stderr": "import sys\nprint({v}, file=sys.stderr)",
    "descriptor": "import os\nos.write(1, ({v} + '\\n').encode())",
    "process": "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(input())'], "
    "input={v}, text=True)",
    "long": "print('x' * 70_000 + {v} + 'y' * 70_000)",
    "clipped": "print('x' * 900_000 + {v} + 'y' * 900_000)",
    "result": "{v}",
    "html": "from IPython.display import HTML, display\ndisplay(HTML('<b>' + {v} + '</b>'))",
    "json display": "from IPython.display import JSON, display\ndisplay(JSON({{'k': [{v}]}}))",
    "error": "raise ValueError({v})",
    "key error": "{{}}[{v}]",
    "traceback": "def fail{n}(x):\n    raise RuntimeError(f'no {{x}}')\nfail{n}({v})",
    "syntax error": "compile({v} + ' = = 1', 'f', 'exec')",
    "warning": "import warnings\nwarnings.warn({v})",
    "log": "import logging\nlogging.warning('it is %s', {v})",
    "variable": "text{n} = {v}",
    "short variable": "t{n} = {v}[:40]",
    "list": "list{n} = [1, {v}, None]",
    "dict": "dict{n} = {{'a': {v}, {v}: 'b'}}",
    "bytes": "bytes{n} = {v}.encode()",
    "wide": "import numpy as np\narray{n} = np.array([{v}, 'b'])",
    "attribute": "class C{n}: pass\nobject{n} = C{n}()\nobject{n}.it = {v}",
    "frame": "import pandas as pd\nframe{n} = pd.DataFrame({{'a': [{v}] * 3, 'b': [1, 2, 3]}})",
    "big frame": "import pandas as pd\nbig{n} = pd.DataFrame({{'a': ['x' * 50] * 3000 + [{v}]}})",
    "column": "import pandas as pd\ncolumn{n} = pd.DataFrame({{{v}: [1, 2]}})",
    "buffer": "import numpy as np\nbuffer{n} = np.frombuffer(bytearray(b'z' * 99_991 + "
    "{v}.encode() + b'z' * 200_000), dtype='u1')",
    "closure": "def make{n}(x):\n    return lambda: x\nclosure{n} = make{n}({v})",
    "exception": "try:\n    raise KeyError({v})\nexcept KeyError as e:\n    kept{n} = e",
    "environment": "import os\nos.environ['COPY{n}'] = {v}",
    "module": "import types\nmodule{n} = types.ModuleType('m')\nmodule{n}.it = {v}",
    "thread": "import threading\nt{n} = threading.Timer(0.01, print, [{v}])\nt{n}.start(); "
    "t{n}.join()\ndel t{n}",
    "late": "import threading\nthreading.Timer(0.05, print, [{v}]).start()",
    "argument": "tell({v})",
    "answer": "told{n} = echo({v})",
    "large answer": "large{n} = echo({v} + 'x' * 40_000)",
    "error of a skill": "break_down({v})",
    "note of a skill": "say({v})",
    "file": "open('f{n}.txt', 'w').write({v})",
    "name of a file": "open('f{n}-' + __import__('re').sub(r'\\W', '_', {v}), 'w').close()",
    "hint": "import pandas as pd\npd.DataFrame({{{v}: [1]}})[{v}[:-1]]",
    "lock": "import threading\nlocked{n} = {{{v}: threading.Lock()}}",
    "source": "literal{n} = {literal!r}",
    "comment": "x{n} = 1  # {literal}",
    "string of a function": "def f{n}():\n    '''{literal}'''\n    return {literal!r}",
}  # fmt: skip
"""Cells: `{v}` is the canary, written in some way; `{n}` the number of the place."""

_LITERAL = {
    "raw": CANARY,
    "base64": base64.b64encode(CANARY.encode()).decode(),
    "hex": CANARY.encode().hex(),
    "quoted": quote(CANARY, safe=""),
}


def cells(draw: random.Random, count: int) -> list[str]:
    """So many cells, each place at least once where there are as many."""
    places = list(PLACES) * (count // len(PLACES) + 1)
    draw.shuffle(places)
    return [_cell(draw, n, place) for n, place in enumerate(sorted(places[:count], key=str))]


def _cell(draw: random.Random, n: int, place: str) -> str:
    way = WAYS[draw.choice(list(WAYS))].replace("{pad}", "p" * draw.randrange(4))
    return PLACES[place].format(
        v=f"({way.replace('{}', _HERE)})",
        n=n,
        cut=draw.randrange(2, len(CANARY) - 2),
        literal=draw.choice(list(_LITERAL.values())),
    )


def needles() -> list[bytes]:
    """What no sink may hold."""
    data = CANARY.encode()
    found = [
        data,
        data.hex().encode(),
        data.hex().upper().encode(),
        quote(CANARY, safe="").encode(),
    ]
    found += [CANARY.encode(wide) for wide in ("utf-16-le", "utf-32-le")]
    for before in range(3):
        for after in range(3):
            letters = base64.b64encode(b"\0" * before + data + b"\0" * after).decode()
            inside = letters[
                (0, 2, 3)[before] : len(letters)
                - (0, 3, 2)[(before + len(data) + after) % 3]
                - after
            ]
            found += [inside.encode(), inside.replace("+", "-").replace("/", "_").encode()]
    return sorted({needle for needle in found if len(needle) > 12}, key=len)


def leaks(data: bytes) -> list[bytes]:
    """Which of the needles are in it."""
    return [needle for needle in needles() if needle in data]


def inflated(text: str) -> bytes:
    """A small snapshot's file, as its event carries it."""
    return zlib.decompress(base64.b64decode(text))


def files(folder: Path) -> dict[Path, bytes]:
    """Every regular file under a folder."""
    return {
        path: path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
