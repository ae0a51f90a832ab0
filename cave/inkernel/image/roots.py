"""Everything of a kernel that a snapshot keeps, by name; and the way back.

Variables are what the user's names are bound to, `_private` ones and modules too. IPython's
own names are told apart as IPython does it: by identity with what it keeps in
`user_ns_hidden`. Beside variables there are `out:N` (results in `Out`), `hidden:KIND` (state
outside of the namespace, see `hidden`) and `module:NAME:GLOBAL` (see `modules`).

Coming back has two halves: `begin` before streams are read (where modules are found, the
working directory), `bind` afterwards.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Iterable, Mapping
from typing import Any

from .. import kinds
from . import hidden, modules, remarks
from .lost import Lost

FIRST = hidden.FIRST
"""Roots that `begin` wants, read before all others: reading may import local modules."""

HISTORY = "hidden:history"
"""A root of nothing but texts and numbers, whose value is a new one after each cell."""

_MACHINERY = frozenset({
    "__name__", "__doc__", "__package__", "__loader__", "__spec__", "__builtin__", "__builtins__",
    "_ih", "_oh", "_dh", "In", "Out", "get_ipython",
})  # fmt: skip
_UNDERS = ("_", "__", "___")
_TEXTS = "_output_"
"""The kernel binds long outputs to such names, hidden from listings; they are data all the same."""
_CODE = (type, types.FunctionType, types.ModuleType)
_SOURCES = 100
_CHARACTERS = 32 << 10
"""How many sources of cells stay in `In`, and how long they are together."""


def roots(shell: Any) -> dict[str, Any]:
    """Every root by its name. What did not change is equal, where possible the same object."""
    found = variables(shell)
    found.update(_outputs(shell))
    found[HISTORY] = _history(shell)
    found.update(hidden.capture())
    found.update(modules.capture())
    return found


def variables(shell: Any) -> dict[str, Any]:
    """The user's variables alone."""
    ours, absent = shell.user_ns_hidden.get, _ABSENT
    found = {
        name: value
        for name, value in list(shell.user_ns.items())
        if (ours(name, absent) is not value or name[:8] == _TEXTS)
        and name not in _MACHINERY
        and type(name) is str
        and ":" not in name
    }
    for name in _UNDERS:  # before the first result they are not among the hidden names
        if name in found and found[name] is getattr(shell.displayhook, name):
            del found[name]
    return found


_ABSENT = object()


def begin(loaded: Mapping[str, Any]) -> list[Any]:
    """Bring back what reading depends on: the roots in `FIRST`, where `loaded` has them."""
    return hidden.apply(loaded, (), only=[name for name in FIRST if name in loaded])


def bind(shell: Any, loaded: Mapping[str, Any], keep: Iterable[str]) -> list[Any]:
    """Make the namespace that of `loaded`, with the roots in `keep` as they are."""
    stay = set(keep)
    _let_go(shell, stay)
    _bind_variables(shell, loaded, stay)
    _bind_outputs(shell, loaded, stay)
    if HISTORY not in stay:
        _bind_history(shell, loaded.get(HISTORY))
    notes = modules.apply(loaded, stay)
    notes += hidden.apply(loaded, stay)
    return notes + remarks.take()


def _let_go(shell: Any, stay: set[str]) -> None:
    """Old values end, the newest first, while the classes and functions that they end by are
    still there: a finaliser that ran later would find, and change, what was loaded."""
    space = shell.user_ns
    old = variables(shell)
    finalised = any(kinds.of(v, type) and "__del__" in kinds.space(v) for v in old.values())
    _let_results_go(shell, stay)
    for name in reversed([name for name in old if name not in stay]):
        if not kinds.of(old.pop(name), *_CODE):
            space[name] = None
    if finalised:  # objects in cycles are to end now, too
        gc.collect()


def _let_results_go(shell: Any, stay: set[str]) -> None:
    out, hook = shell.history_manager.output_hist, shell.displayhook
    going = [number for number in out if f"out:{number}" not in stay]
    ids = {id(out[number]) for number in going}
    for name in _UNDERS:
        if f"out:{name}" not in stay and id(getattr(hook, name)) in ids:
            _empty(shell, name, getattr(hook, name))
            setattr(hook, name, None)
    for number in reversed(going):
        _empty(shell, f"_{number}", out[number])
        out[number] = None


def _empty(shell: Any, name: str, value: Any) -> None:
    for space in (shell.user_ns, shell.user_ns_hidden):
        if space.get(name, _ABSENT) is value:
            space[name] = None


def _bind_variables(shell: Any, loaded: Mapping[str, Any], stay: set[str]) -> None:
    space, ours = shell.user_ns, shell.user_ns_hidden
    for name in [name for name in variables(shell) if name not in loaded and name not in stay]:
        if name in ours and name[:8] != _TEXTS:
            space[name] = ours[name]  # `open = gzip.open` is over, IPython's is back
        else:
            del space[name]
            ours.pop(name, None)
    for name, value in loaded.items():
        if ":" not in name:
            space[name] = value
            if name[:8] == _TEXTS:
                ours[name] = value


# -- Out, _, __, ___ -----------------------------------------------------------------------------


def _outputs(shell: Any) -> dict[str, Any]:
    out = shell.history_manager.output_hist
    found = {f"out:{number}": value for number, value in list(out.items())}
    numbers = {id(value): number for number, value in list(out.items())}
    places: list[int | str] = []
    for name in _UNDERS:
        value = getattr(shell.displayhook, name)
        if id(value) in numbers:
            places.append(numbers[id(value)])
        elif type(value) is str and not value:
            places.append("")
        else:
            found[f"out:{name}"] = value
            places.append(name)
    if any(places):
        found["hidden:unders"] = tuple(places)
    return found


def _bind_outputs(shell: Any, loaded: Mapping[str, Any], stay: set[str]) -> None:
    out, hook = shell.history_manager.output_hist, shell.displayhook
    before = {name: getattr(hook, name) for name in _UNDERS}
    now = {
        name[4:]: value
        for name, value in ((f"out:{number}", value) for number, value in list(out.items()))
        if name in stay
    }
    now.update((name, before[name]) for name in _UNDERS if f"out:{name}" in stay)
    now.update((name[4:], value) for name, value in loaded.items() if name[:4] == "out:")
    for number in list(out):
        _forget(shell, f"_{number}", out.pop(number))
    for number in sorted(int(name) for name in now if name.isdecimal()):
        out[number] = now[str(number)]
        _hide(shell, f"_{number}", out[number])
    places = loaded.get("hidden:unders", ("", "", ""))
    if "hidden:unders" in stay:
        places = [_place(out, before[name], name) for name in _UNDERS]
    elif isinstance(places, Lost):
        places = ("", "", "")
    for name, place in zip(_UNDERS, places, strict=True):
        setattr(hook, name, now.get(str(place), ""))
        if "_" not in _builtins():
            owned = name not in loaded and name not in stay
            _hide(shell, name, getattr(hook, name), visible=owned)


def _place(out: Mapping[int, Any], value: Any, name: str) -> int | str:
    """Where a result is that stays; results are looked up by their identity."""
    return next((number for number, kept in out.items() if kept is value), name)


def _builtins() -> dict[str, Any]:
    import builtins

    return vars(builtins)


def _hide(shell: Any, name: str, value: Any, *, visible: bool = True) -> None:
    """Bind a name of IPython's, unless the user has it for a variable."""
    shell.user_ns_hidden[name] = value
    if visible:
        shell.user_ns[name] = value


def _forget(shell: Any, name: str, value: Any) -> None:
    for space in (shell.user_ns_hidden, shell.user_ns):
        if space.get(name, _ABSENT) is value:
            del space[name]


# -- In ------------------------------------------------------------------------------------------


def _history(shell: Any) -> tuple[Any, ...]:
    """Length of `In`, its newest entries (raw, and transformed where that differs), folders."""
    history = shell.history_manager
    raw, parsed = history.input_hist_raw, history.input_hist_parsed
    kept: list[tuple[str, str | None]] = []
    room = _CHARACTERS
    for source, plain in zip(reversed(raw[-_SOURCES:]), reversed(parsed[-_SOURCES:]), strict=False):
        room -= len(source)
        if room < 0:
            break
        kept.append((source, None if plain == source else plain))
    return len(raw), tuple(reversed(kept)), tuple(str(path) for path in history.dir_hist[-20:])


def _bind_history(shell: Any, value: Any) -> None:
    if not isinstance(value, tuple):  # there is none, or it is lost: a history that is empty
        value = (1, (("", None),), ())
    length, kept, folders = value
    history = shell.history_manager
    for name in [
        name for name in shell.user_ns_hidden if name[:2] == "_i" and name[2:].isdecimal()
    ]:
        _forget(shell, name, shell.user_ns_hidden[name])
    missing = [""] * (length - len(kept))
    history.input_hist_raw[:] = missing + [raw for raw, _ in kept]
    history.input_hist_parsed[:] = missing + [
        raw if plain is None else plain for raw, plain in kept
    ]
    for number in range(len(missing), length):
        if number:
            _hide(shell, f"_i{number}", history.input_hist_raw[number])
    if folders:
        history.dir_hist[:] = list(folders)
    last = ["", "", "", *history.input_hist_raw[1:]][::-1]
    history._i00, history._i, history._ii, history._iii = (*last, "")[:4]
    for name in ("_i", "_ii", "_iii"):
        _hide(shell, name, getattr(history, name))
