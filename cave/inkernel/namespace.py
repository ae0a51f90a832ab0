"""The user's variables: which there are, and what a cell did to them.

A cell's delta has two parts. By identity: names that are new, gone or bound to another
object; one pass over the namespace. By content: for the names that the cell's code reaches
(its own names, and those of the session's functions that it calls) a *fingerprint* of the
object is compared with the one taken before. Only what changed is described, with what
differs from before (`marks`), and with the name that holds the same object or memory.

The namespace stays the plain dict that IPython made: a subclass would slow every loop.
"""

from __future__ import annotations

import time
import types
import weakref
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from . import describe, fingerprint, kinds, marks, prints
from .image import touch

_NOT_OURS = frozenset({"In", "Out", "exit", "quit", "open", "get_ipython"})
_SECONDS = 0.05
"""After this time a delta no longer looks into what changed, and names it only."""

_PRINTING = 0.02
"""After this time of the processor a delta makes no more prints."""

Facts = dict[str, Any]


class Namespace:
    """What the user's names are bound to, as the last cell left them."""

    def __init__(self, shell: Any) -> None:
        self._space: dict[str, Any] = shell.user_ns
        self._hidden: dict[str, Any] = shell.user_ns_hidden
        self._bound: dict[str, object] = {}
        self._prints: dict[str, object] = {}
        self._cells: dict[str, int | None] = {}
        self._facts: dict[str, Facts] = {}
        self._marks: dict[str, marks.Mark | None] = {}
        self._absent = object()
        self._printing = 0.0
        self.delta(None, "")

    def delta(self, cell: int | None, code: str | Collection[str]) -> dict[str, Any]:
        """What changed since the last call, as `{"added", "changed", "removed"}`.

        `code` is what ran: a source, or the names in it.
        """
        added, changed = self._rebound()
        removed = [name for name in self._bound if name not in self._space]
        for name in [name for name in changed if not self._is_ours(name, self._space[name])]:
            changed.remove(name)
            removed.append(name)
        self._forget(removed)
        changed += self._mutated(code, {*added, *changed})
        end = time.perf_counter() + _SECONDS
        self._printing = 0.0
        before = {name: self._marks.get(name) for name in changed}
        rows = {name: self._printed(name, cell, end) for name in (*added, *changed)}
        self._compare(rows, before)
        return {
            "added": [rows[name] for name in added],
            "changed": [rows[name] for name in changed],
            "removed": removed,
        }

    def _compare(self, rows: dict[str, Facts], before: dict[str, marks.Mark | None]) -> None:
        """Say what changed of each, and whose object or memory it is."""
        shared = marks.sharing(self._space, self._bound, rows)
        for name, row in rows.items():
            told = marks.change(name, before.get(name), self._marks.get(name))
            if told := "; ".join(filter(None, (shared.get(name, ""), told))):
                row["change"] = describe.clip(told, describe.LIMIT)

    def _printed(self, name: str, cell: int | None, end: float) -> Facts:
        """Its description, and its print while there is time for those."""
        facts = dict(self._note(name, cell, end))
        if cell is None or self._printing > _PRINTING:
            return facts
        began = time.thread_time()
        made = prints.of(self._space[name])
        self._printing += time.thread_time() - began
        return {**facts, "print": made}

    def variables(self) -> list[Facts]:
        """Every variable of the user, in the order of their making."""
        end = time.perf_counter() + _SECONDS
        names = [name for name in self._bound if name in self._space]
        return [self._known(name, end) for name in names]

    def now(self, cell: int | None) -> list[Facts]:
        """Every variable of the user in the midst of a cell, which sees nothing of it."""
        end = time.perf_counter() + _SECONDS
        found = []
        for name, obj in list(self._space.items()):
            if self._is_ours(name, obj):
                known = self._bound.get(name, self._absent)
                same = known is obj or _stands_for(known, obj)
                told = describe.describe if time.perf_counter() < end else describe.named
                found.append({**told(name, obj), "cell": self._cells.get(name) if same else cell})
        return found

    def note_put(self, names: Iterable[str]) -> list[Facts]:
        """These names were bound from outside; their descriptions."""
        end = time.perf_counter() + _SECONDS
        return [self._note(name, None, end) for name in names if name in self._space]

    def note_deleted(self, names: Iterable[str]) -> None:
        """These names were unbound from outside."""
        self._forget(list(names))

    def let_go(self, stay: Collection[str]) -> None:
        """Hold no longer what is about to be replaced: all but what is in `stay`."""
        self._forget([n for n in self._bound if n not in stay or n not in self._space])

    def restored(self, cells: Mapping[str, int | None], stay: Collection[str]) -> None:
        """The namespace is that of a snapshot: `cells` made it; what is in `stay` is as it was.

        Nothing is described yet: that would read what nobody has used.
        """
        self.let_go(stay)
        for name, obj in self._space.items():
            if not self._is_ours(name, obj):
                continue
            if name not in self._bound:
                self._bound[name] = _held(obj)
                self._prints[name] = fingerprint.of(obj)
            self._cells[name] = cells.get(name, self._cells.get(name))
            if name in self._facts:
                self._facts[name]["cell"] = self._cells[name]
        self._bound = {name: self._bound[name] for name in self._space if name in self._bound}

    # -- what is noted -----------------------------------------------------------------------

    def _rebound(self) -> tuple[list[str], list[str]]:
        """Names that are new, and known names of another object: the pass over all names."""
        added, changed = [], []
        bound, absent = self._bound, self._absent
        for name, obj in list(self._space.items()):
            known = bound.get(name, absent)
            if known is obj:
                continue
            if known is absent:
                if self._is_ours(name, obj):
                    added.append(name)
            elif not _stands_for(known, obj):
                changed.append(name)
        return added, changed

    def _is_ours(self, name: str, obj: object) -> bool:
        if name[:1] == "_" or name in _NOT_OURS or type(obj) is types.ModuleType:
            return False
        hidden = self._hidden
        return name not in hidden or hidden[name] is not obj

    def _note(self, name: str, cell: int | None, end: float) -> Facts:
        obj = self._space[name]
        self._bound[name] = _held(obj)
        self._cells[name] = cell
        in_time = time.perf_counter() < end
        told = describe.describe if in_time else describe.named
        facts = self._facts[name] = {**told(name, obj), "cell": cell}
        self._marks[name] = marks.of(obj) if in_time else None
        self._prints[name] = fingerprint.of(obj)
        return facts

    def _known(self, name: str, end: float) -> Facts:
        """What was told of a name, or what is true now when its object has changed since."""
        obj = self._space[name]
        known = self._bound[name]
        same = known is obj or _stands_for(known, obj)
        facts = self._facts.get(name)
        if same and facts is not None and facts["summary"] and not self._differs(name):
            return facts
        return self._note(name, self._cells[name], end)

    def _forget(self, names: list[str]) -> None:
        for name in names:
            self._bound.pop(name, None)
            self._prints.pop(name, None)
            self._cells.pop(name, None)
            self._facts.pop(name, None)
            self._marks.pop(name, None)

    # -- what a cell reaches -----------------------------------------------------------------

    def _mutated(self, code: str | Collection[str], fresh: set[str]) -> list[str]:
        """Names whose objects changed in place: where one did, others may hold it too."""
        found = [n for n in self._reached(code) if n not in fresh and self._differs(n)]
        if found:
            end = time.perf_counter() + _SECONDS
            known = fresh.union(found)
            reach = fingerprint.held_by([self._space[name] for name in found])
            found += [n for n in self._bound if n not in known and time.perf_counter() < end
                      and self._may_hold(n, reach) and self._differs(n)]  # fmt: skip
        return found

    def _may_hold(self, name: str, reach: set[int] | None) -> bool:
        """Whether the object of a name can have changed with others that reach so far."""
        if reach is None or not fingerprint.is_flat(self._prints.get(name)):
            return True
        return id(self._space[name]) in reach

    def _differs(self, name: str) -> bool:
        now = fingerprint.of(self._space[name])
        return now is not None and now != self._prints.get(name)

    def _reached(self, code: str | Collection[str]) -> list[str]:
        """Known names whose objects the cell may have changed in place."""
        if not code or not self._bound:
            return []
        names = touch.of_source(code) if isinstance(code, str) else code
        space = self._space
        used = touch.closure(names, lambda name: touch.of_object(space.get(name)))
        return list(self._bound) if used is None else [n for n in used if n in self._bound]


class _Place:
    """Where an array is: numpy does not resize arrays that anything refers to, even weakly."""

    __slots__ = ("number",)

    def __init__(self, obj: object) -> None:
        self.number = id(obj)


_NOT_WEAKLY = frozenset({"ParamSpecArgs", "ParamSpecKwargs"})
"""Types whose objects, on Python 3.12, leave weak references to them dangling when they end."""


def _held(obj: object) -> object:
    """What stands for an object: not itself, so that a cell can free it, and what hangs on it."""
    if any(kinds.name(base) == "ndarray" for base in kinds.mro(type(obj))):
        return _Place(obj)
    if kinds.name(type(obj)) in _NOT_WEAKLY:
        return obj
    try:
        return weakref.ref(obj)
    except TypeError:
        return obj


def _stands_for(known: object, obj: object) -> bool:
    if type(known) is weakref.ref:
        return known() is obj
    return type(known) is _Place and known.number == id(obj)
