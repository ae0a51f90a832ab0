"""A namespace for the tests of images: cells run in it, images are taken of it and loaded."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from tests import _inkernel

threads: Any = _inkernel.load("threads")
touch: Any = _inkernel.load("image.touch")
hidden: Any = _inkernel.load("image.hidden")
modules: Any = _inkernel.load("image.modules")
take: Any = _inkernel.load("image.take")
load: Any = _inkernel.load("image.load")
fill: Any = _inkernel.load("image.fill")
hashes: Any = _inkernel.load("image.hashes")
lost: Any = _inkernel.load("image.lost")


class Space:
    """What of a shell images need. Its names are those of `__main__`."""

    def __init__(self) -> None:
        threads.remember_ours()  # those of the tests are not the user's
        self.main = types.ModuleType("__main__")
        self.user_ns: dict[str, Any] = self.main.__dict__
        self.user_ns_hidden: dict[str, Any] = {}
        self.displayhook = types.SimpleNamespace(_="", __="", ___="")
        self.history_manager = types.SimpleNamespace(
            output_hist={}, input_hist_raw=[""], input_hist_parsed=[""], dir_hist=[]
        )
        self.touched = touch.Touch()
        self.taker = take.Taker(self, self.touched)
        self.kept: dict[str, dict[str, Any]] = {}
        self.last: str | None = None

    def run(self, source: str) -> None:
        """A cell."""
        code = compile(source, "<cell>", "exec")
        self.touched.ran(code)
        before, sys.modules["__main__"] = sys.modules["__main__"], self.main
        try:
            exec(code, self.user_ns)
        finally:
            sys.modules["__main__"] = before
        self.touched.cell(self)

    def __getitem__(self, name: str) -> Any:
        return self.user_ns[name]

    last_of: ClassVar[dict[str, Any]] = {}
    """Variables of the space that `of` made last."""

    @classmethod
    def of(cls, space: Space, id: str | None = None) -> Space:
        """A new space that comes back to an image of another one."""
        made = cls()
        made.kept = dict(space.kept)
        made.back(id or space.last or "")
        cls.last_of = made.user_ns
        return made

    def back(self, id: str, keep: Iterable[str] = ()) -> list[Any]:
        """Come back to an image; the notes of it."""
        files: list[int] = []
        wanted = []
        for group, kept in self.kept[id].items():
            if group in keep:
                continue
            buffers = []
            for name, data in kept["buffers"].items():
                files.append(os.memfd_create(name))
                os.write(files[-1], data)
                buffers.append((name, len(data), [(files[-1], 0, len(data))]))
            wanted.append(
                load.Wanted(group, kept["names"], kept["definitions"], kept["stream"], buffers)
            )
        with self._alone():
            chunk = self.taker.buffers.chunk
            request = load.Load(id, chunk, self.taker.image, tuple(keep), wanted, [])
            notes, _, watch = load.load(self.taker, self, request)
            watch()
        for fd in files:
            os.close(fd)
        self.last = id
        found: list[Any] = notes
        return found

    def take(self, *, verify: bool = False, base: str | None = "last") -> Any:
        """An image, kept whole."""
        id = f"i{len(self.kept)}"
        with self._alone():
            taken = self.taker.take(id, self.last if base == "last" else base, verify=verify)
        self._keep(taken)
        self.last = id
        return taken

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """It is the main program; state of the test's own process stays out."""
        main = sys.modules["__main__"]
        before = hidden.capture, hidden.apply, modules.capture
        sys.modules["__main__"], hidden.capture, modules.capture = self.main, dict, dict
        hidden.apply = lambda *_, **__: []
        try:
            yield
        finally:
            sys.modules["__main__"] = main
            hidden.capture, hidden.apply, modules.capture = before

    def _keep(self, taken: Any) -> None:
        old = self.kept.get(taken.base or "", {})
        known = {id: data for one in old.values() for id, data in one["buffers"].items()}
        now = {}
        for one in taken.groups:
            group = one.group
            if one.same:
                now[group.id] = old[group.id]
                continue
            buffers = {}
            for seen in one.buffers:
                buffer = seen.buffer
                data = bytearray(known[buffer.id] if seen.base else buffer.size)
                for at, size in seen.runs:
                    data[at : at + size] = hashes.view(buffer.address + at, size)
                buffers[buffer.id] = bytes(data)
            now[group.id] = {
                "names": group.names, "stream": bytes(one.stream), "buffers": buffers,
                "definitions": group.definitions,
            }  # fmt: skip
        self.kept[taken.id] = now


def groups(taken: Any) -> list[set[str]]:
    """Names that go together, without hidden state."""
    found = [set(one.group.names) for one in taken.groups]
    return [names for names in found if not any(":" in name for name in names)]


def given_anew(taken: Any) -> set[str]:
    """Variables that were given anew."""
    names: Iterable[str] = (n for one in taken.groups if not one.same for n in one.group.names)
    return {name for name in names if ":" not in name}


def assumed(taken: Any) -> set[str]:
    """Names that were not looked at."""
    return {n for one in taken.groups if not one.checked for n in one.group.names}


def changed(space: Space, chance: random.Random) -> list[str]:
    """Bring a space that goes on back to its last image, keeping some groups in place."""
    image = space.last or ""
    names = [name for name in space.user_ns if not name.startswith("__")]
    space.run(f"{chance.choice(names)} = 'something else'")
    space.take()
    before, now = space.kept[image], space.kept[space.last or ""]
    same = [id for id, kept in now.items() if before.get(id) == kept and not kept["definitions"]]
    keep = [id for id in same if chance.random() < 0.7]
    space.back(image, keep)
    return keep
