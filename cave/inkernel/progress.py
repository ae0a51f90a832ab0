"""Progress inside a long cell: an image between two of its statements, or two items of a loop.

Such an image goes where that of a kernel without a host goes (`image.pending`), as
`pending/progress`: a death is what it is for, so nobody else needs to be told. It says where
the cell is: the statement that comes next, the calls of skills so far, the items of the loop
that are done, and up to where output belongs to it. The cell begins there when it is sent
again. When the cell has ended the file goes.

None is taken while threads or tasks of the cell's run, or calls wait: they cannot go along.
"""

from __future__ import annotations

import ast
import os
import time
from typing import TYPE_CHECKING

from . import lanes, observed, threads

if TYPE_CHECKING:
    from types import FrameType

    from .each import Each
    from .kernel import Kernel, Message

LEAST = 1.0
"""Seconds from the beginning of a cell, and from one image, to the next at least."""
SHARE = 20
"""So many times what an image takes pass before it: of processor time, and of writing. Where
others want the processor too, the loop is slowed down as much as the image."""
DISK = 0.5e9
"""Bytes a second that are written, about."""
DEADLY = 2
"""Deaths of the kernel under one item after which the loop stops."""
_AGAIN = "__future__"


class Progress:
    """How far the cell has come that runs now."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._folder = os.path.join(kernel.settings.folder, "pending")
        self._cell: int | None = None
        self._begin: Message = {}
        self._base: str | None = None
        """The image that the host had on disk when the cell began."""
        self._last = self._due = 0.0
        """When the cell began or its last image was taken, and when the next is due."""
        self._statement = 0
        self._loop: Each | None = None
        self._expects = False
        """Whether the statement that runs is a loop whose `each` has not been called yet."""
        self._calls = 0
        self._left: list[str] = []
        self._item: int | None = None
        self._told = False

    # -- the shell tells ---------------------------------------------------------------------

    def begin(self, cell: int | None, begin: Message, base: str | None) -> tuple[int, int]:
        """A cell begins, at its start or where an earlier run had come to; the numbers of calls
        and of lanes so far."""
        on = self._kernel.settings.pending_after is not None
        self._cell, self._begin, self._base = (cell if on else None), dict(begin), base
        self._last = time.monotonic()
        self._due = self._last + LEAST
        self._statement, self._loop, self._expects = 0, None, False
        return int(begin.get("calls", 0)), int(begin.get("forks", 0))

    def skips(self, number: int, node: ast.stmt) -> bool:
        """Whether that statement was run before the image that the cell goes on from."""
        again = isinstance(node, ast.ImportFrom) and node.module == _AGAIN
        if number < self._begin.get("statement", 0) and not again:
            return True
        self._statement, self._loop = number, None
        self._expects = self._cell is not None and _is_loop(node)
        lane = lanes.running()
        self._calls = 0 if lane is None else lane.calls
        return False

    def boundary(self) -> None:
        """A statement has ended."""
        self._statement += 1
        self._expects, self._loop, self._item = False, None, None
        self._take()

    def end(self) -> None:
        """The cell has ended."""
        self._cell, self._loop, self._expects = None, None, False
        self._discard()
        if self._item is not None:
            self._note(b"")

    # -- the loop tells ----------------------------------------------------------------------

    def enters(self, caller: FrameType) -> bool:
        """Whether that call of `each` is the one that the statement which runs is made of."""
        lane = lanes.running()
        space = self._kernel.shell.user_ns
        mine = self._expects and caller.f_globals is space and caller.f_code.co_name == "<module>"
        if mine:
            self._expects = False
        return mine and lane is not None and lane.calls == self._calls

    def entered(self, loop: Each) -> tuple[int, dict[str, int]]:
        """The loop begins; how many of its items are done, in all and by key."""
        self._loop = loop
        found = self._begin.get("loop")
        if found is None or self._begin.get("statement") != self._statement:
            return 0, {}
        return int(found["count"]), dict(found["keys"])

    def item(self, key: str, number: int) -> None:
        """An item begins. Raises `LoopStopped` when it has ended the kernel before, twice."""
        from .errors import OURS

        at = f"{self._cell}:{self._statement}:{number}:{key}"
        deaths = self._begin.get("deaths", {}).get(at, 0)
        if deaths >= DEADLY:
            raise OURS["LoopStopped"](
                f"item {number} of the loop (key {key or number - 1}) has ended the kernel "
                f"{deaths} times, so the loop stopped before it; {number - 1} items are done. "
                f"Go on without it in a new cell, or see what it does"
            )
        self._note(at.encode())

    def item_done(self) -> None:
        """An item has ended: between two of them is a boundary as well."""
        self._take()

    def left(self) -> None:
        """The loop has ended."""
        self._loop = None

    def shifts(self) -> None:
        """The loop cannot go on in its midst: making its items calls skills."""
        self._loop, self._cell = None, None
        self._discard()

    def plain(self) -> None:
        """Say once that an `each` is plain iteration."""
        if not self._told:
            self._told = True
            print(
                "cave.each: here this is plain iteration, and after a death its cell begins "
                "again (effects come from the ledger); as a statement of its own at the top of "
                "a cell, `for x in cave.each(items):`, it goes on with the next item"
            )

    # -- the image ---------------------------------------------------------------------------

    def _take(self) -> None:
        now = time.monotonic()
        if self._cell is None or now < self._due or not self._quiet():
            return
        images = self._kernel.objects.images
        self._due = self._last + SHARE * images.taker.expense
        if now < self._due:
            return
        began, since = time.thread_time(), now - self._last
        self._kernel.boundary()
        self._kernel.publisher.settle()
        with observed.recorded():  # what it writes is no deed of the cell
            size, kept = images.pending.write_progress(
                self._place, self._base, lambda size: _price(size) <= since
            )
        self._kernel.interrupts.check()
        took = time.thread_time() - began
        end = time.monotonic()
        self._due = end + max(LEAST, SHARE * took)
        if kept:
            self._last = end
        else:
            self._due = max(self._due, self._last + _price(size))

    def _quiet(self) -> bool:
        kernel, lane = self._kernel, lanes.running()
        calls = kernel._calls
        if lane is None or lane.path or lane.cell != self._cell or kernel.forked:
            return False
        busy = lanes.has_tasks() or (calls is not None and calls.waits)
        return not busy and not threads.of_user()

    def _place(self) -> Message:
        lane = lanes.running()
        assert lane is not None
        loop, running = self._loop, self._kernel.running
        return {
            "cell": self._cell,
            "request": "" if running is None else running.msg_id,
            "statement": self._statement,
            "calls": lane.calls,
            "forks": lane.forks,
            "loop": None if loop is None else {"count": loop.count, "keys": dict(loop.done)},
            "mark": self._kernel.publisher.spool.number,
            "variables": self._kernel.objects.namespace.now(self._cell),
        }

    def _discard(self) -> None:
        if self._kernel.objects.imaged:
            self._kernel.objects.images.pending.discard_progress()

    def _note(self, text: bytes) -> None:
        """Write down which item runs, where a death leaves it."""
        try:
            if self._item is None:
                os.makedirs(self._folder, mode=0o700, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
                self._item = os.open(os.path.join(self._folder, "item"), flags, 0o600)
            os.pwrite(self._item, text.ljust(_ITEM), 0)
        except OSError:  # a full disk: then a deadly item is not known
            pass


_ITEM = 200


def _price(size: int) -> float:
    """Seconds that pass before so many bytes are written."""
    return SHARE * size / DISK


def _is_loop(node: ast.stmt) -> bool:
    """Whether a statement is `for x in cave.each(...)`, over items that are made anew."""
    if not isinstance(node, ast.For) or not _is_each(node.iter):
        return False
    assert isinstance(node.iter, ast.Call)
    inner = [part for given in ast.iter_child_nodes(node.iter) for part in ast.walk(given)]
    return not any(_is_each(part) for part in inner)


def _is_each(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    made = node.func
    name = made.attr if isinstance(made, ast.Attribute) else getattr(made, "id", "")
    return name == "each"
