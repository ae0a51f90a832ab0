"""Modules of the user's own files and of no file, after their process was killed."""

from pathlib import Path
from typing import Any

import pytest

from tests.inkernel.image import _shells

_CONFIG = """
import threading
LIMIT = 5
NAMES = ["a"]
cache = {}
lock = threading.Lock()
_secret = LIMIT + 1
class Item:
    made = 0
    def __init__(self, n): self.n = n
def add(key, value): cache[key] = value
"""

_HOSTILE = """
class Meta(type):
    def __getattribute__(cls, name): raise RuntimeError(name)
class Kind(metaclass=Meta): pass
class Proxy:
    __class__ = property(lambda self: 1 / 0)
kind = Kind()
proxy = Proxy()
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = Path(tmp_path_factory.mktemp("modules"))
    for name, text in {
        "conf.py": _CONFIG,
        "odd.py": "def __getattr__(name): raise RuntimeError(name)\nx = 1\n",
        "pack/__init__.py": "from .inner import depth\n",
        "pack/inner.py": "depth = 1\nstate = None\n",
        "later/extra.py": "value = 1\n",
        "hostile.py": _HOSTILE,
    }.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return _shells.run(
        folder,
        [
            """
            import sys
            sys.path.insert(0, '')
            import conf, odd, pack, pack.inner as inner
            """,
            """
            conf.LIMIT = 7
            conf.NAMES.append('b')
            conf.add('k', [1])
            item = conf.Item(3)
            conf.NEW = 'new'
            conf._secret = 99
            shared = conf.cache
            inner.state = {'x': item}
            """,
            """
            sys.path.append('later')
            import extra
            extra.value = [2]
            odd.x = 2
            import hostile
            mine = [hostile.kind, hostile.proxy]
            """,
            r"""
            import types, importlib
            importlib.reload(extra)
            extra.value = 5
            made = types.ModuleType('made')
            sys.modules['made'] = made
            source = 'N = 3\nclass Thing:\n    pass\ndef get(): return N\n'
            exec(source + 'def put(n):\n    global N; N = n', made.__dict__)
            made.put(4)
            from made import Thing
            thing = Thing()
            loose = types.ModuleType('loose')
            loose.y = 6
            """,
            r"""
            open('conf.py', 'a').write('# changed\n')
            """,
        ],
        {
            "data": """
            assert conf.LIMIT == 7 and conf.NAMES == ['a', 'b'] and (conf.NEW == 'new')
            assert conf.cache == {'k': [1]} and conf._secret == 99 and conf.lock.acquire(timeout=1)
            """,
            "sharing": """
            assert shared is conf.cache
            conf.add('j', 2)
            assert shared['j'] == 2
            assert type(item) is conf.Item and inner.state['x'] is item and (item.n == 3)
            """,
            "packages": """
            assert pack.inner is inner and inner.depth == 1 and (odd.x == 2)
            """,
            "added to sys.path, reloaded": """
            assert extra.value == 5
            """,
            "changed source": """
            assert [n for n in notes if n[0] == 'changed' and 'conf' in n[3]]
            """,
            "answers by its own code": """
            assert not {n[1] for n in notes if n[0] == 'lost'}
            assert type(mine[0]) is hostile.Kind and type(mine[1]) is hostile.Proxy
            assert mine[0] is hostile.kind and mine[1] is hostile.proxy
            """,
            "made at run time": """
            import sys
            assert sys.modules['made'] is made and made.get() == 4
            assert type(thing) is made.Thing is Thing and loose.y == 6
            made.put(5)
            assert made.N == 5
            """,
        },
    )


@pytest.mark.parametrize(
    "name",
    ["data", "sharing", "packages", "added to sys.path, reloaded", "changed source",
     "made at run time", "answers by its own code"],
)  # fmt: skip
def test_local_modules_come_back(name: str, results: dict[str, Any]) -> None:
    """A module is imported again and has the data that cells gave it."""
    assert not results[name], results[name]


def test_step_back_undoes_changes_of_a_module(tmp_path: Path) -> None:
    """Globals of a live module are again what the snapshot has, or what the source gives."""
    (tmp_path / "conf.py").write_text(_CONFIG)
    errors = _shells.run(
        tmp_path,
        ["""
            import sys
            sys.path.insert(0, '')
            import conf
            """],
        {"all": """
            assert conf.LIMIT == 5 and (not hasattr(conf, 'NEW')) and (conf.cache == {})
            assert conf.NAMES == ['a']
            """},
        before=("""
            import sys
            sys.path.insert(0, '')
            import conf
            conf.LIMIT = 9
            conf.NEW = 1
            """,
                """
            conf.cache['z'] = 1
            conf.NAMES.append('q')
            """),
    )  # fmt: skip
    assert not errors["all"], errors["all"]
