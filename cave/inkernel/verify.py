"""Checks of the namespace: evaluated in a child, so that they change nothing.

The child is a copy of the kernel as it stands between two cells, and may do with it what it
likes. It is forked while no other thread runs. Where one does, or with libraries that do not
survive a fork, a check is evaluated in the kernel itself, with names of its own; so are
questions to databases, whose connections must not be used in two processes.

Objects of cells take part in it with their own code (`__eq__`, `__len__`): who makes them can
make a check come out as they like.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import reprlib
import select
import signal
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .image.copier import quiet

Message = dict[str, Any]
Function = Callable[[Mapping[str, Any]], Any]

_TEXT = 300
"""Characters of what is said of a check that fails."""
_REST = 0.005
"""Seconds between two threads' turns, as Python has it."""
_NO_FORK = frozenset({"polars", "torch", "tensorflow", "jax"})
"""Libraries whose threads do not survive a fork."""

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 120
_repr.maxlist = _repr.maxtuple = _repr.maxset = _repr.maxdict = 8


def run(
    names: Mapping[str, Any],
    checks: list[Message],
    functions: Mapping[str, Function],
    *,
    folder: str,
    seconds: float,
) -> tuple[list[Message], bool]:
    """`passed` and `message` of each check, in order; and whether the kernel evaluated any.

    `names` are the namespace, `folder` is where paths of files begin, `seconds` is what each
    check may take in a child.
    """
    found: list[Message] = []
    here = False
    while len(found) < len(checks):
        rest = checks[len(found) :]
        forked = [] if rest[0]["kind"] == "sql" or _NO_FORK & sys.modules.keys() else _until(rest)
        done = list(_in_child(names, forked, functions, folder, seconds)) if forked else []
        if not done:
            here = True
            done = [_outcome(names, rest[0], functions, folder)]
        found += done
    return found, here


def _until(checks: list[Message]) -> list[Message]:
    """The checks before the first that has to be evaluated here."""
    at = next((n for n, check in enumerate(checks) if check["kind"] == "sql"), len(checks))
    return checks[:at]


# -- the child -------------------------------------------------------------------------------


def _in_child(
    names: Mapping[str, Any],
    checks: list[Message],
    functions: Mapping[str, Function],
    folder: str,
    seconds: float,
) -> Iterator[Message]:
    """What a child found, up to the first check that ends it; nothing where none can be had."""
    reading, writing = os.pipe()
    with quiet() as calm, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads beside: they rest
        pid = os.fork() if calm else -1
        if pid == 0:
            _child(writing, names, checks, functions, folder)
    os.close(writing)
    if pid < 0:
        os.close(reading)
        return
    late, done = False, 0
    try:
        for line in _lines(reading, seconds):
            if line is None:
                late = True
                os.kill(pid, signal.SIGKILL)
                break
            done += 1
            yield json.loads(line)
    except BaseException:  # an interrupt: nobody waits for the child
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.close(reading)
        status = _buried(pid)
    if done < len(checks):
        how = f"did not end within {seconds:g} s" if late else f"ended its process ({status})"
        yield {"passed": False, "message": f"it {how}"}


def _child(
    writing: int,
    names: Mapping[str, Any],
    checks: list[Message],
    functions: Mapping[str, Function],
    folder: str,
) -> None:
    """Evaluate and leave, whatever happens: nothing of the kernel's own may run here."""
    try:
        sys.setswitchinterval(_REST)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        for name, needed in functions.items():  # what they call in their module came along
            sys.modules["__main__"].__dict__.setdefault(name, needed)
        for check in checks:
            outcome = _outcome(names, check, functions, folder)
            os.write(writing, json.dumps(outcome).encode() + b"\n")
    finally:
        os._exit(0)


def _lines(reading: int, seconds: float) -> Iterator[bytes | None]:
    """Lines as they come; None when one takes too long."""
    held = b""
    until = time.monotonic() + seconds
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            yield None
            return
        part = os.read(reading, 1 << 16)
        if not part:
            return
        *lines, held = (held + part).split(b"\n")
        for line in lines:
            yield line
            until = time.monotonic() + seconds


def _buried(pid: int) -> str:
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # a cell waits for any child
        return "nobody knows how"
    return f"signal {-code}" if code < 0 else f"exit status {code}"


# -- one check -------------------------------------------------------------------------------


def _outcome(
    names: Mapping[str, Any], check: Message, functions: Mapping[str, Function], folder: str
) -> Message:
    try:
        passed, message = _KINDS[check["kind"]](names, check, functions, folder)
    except (Exception, SystemExit) as error:
        passed, message = False, f"{type(error).__name__}: {error}".removesuffix(": ")
    return {"passed": passed, "message": " ".join(message.split())[:_TEXT]}


def _expression(
    names: Mapping[str, Any], check: Message, _functions: Any, _folder: str
) -> tuple[bool, str]:
    scope = {**names}
    value = _value(check["text"], scope)
    if true(value):
        return True, ""
    if left := _left(check["text"]):
        return False, f"{left} is {short(_value(left, scope))}"
    return False, "" if isinstance(value, bool) else f"it gives {short(value)}"


def _value(text: str, scope: dict[str, Any]) -> Any:
    return eval(compile(text, "<check>", "eval"), scope)  # noqa: S307  it is code of the person's


def _left(text: str) -> str:
    """The left side of a comparison; empty for anything else, and for what is plain to see."""
    tree = ast.parse(text, mode="eval").body
    if isinstance(tree, ast.Compare) and not isinstance(tree.left, ast.Constant):
        return ast.unparse(tree.left)
    return ""


def _function(
    names: Mapping[str, Any], check: Message, functions: Mapping[str, Function], _folder: str
) -> tuple[bool, str]:
    value = functions[check["name"]](types.MappingProxyType({**names}))
    return (True, "") if true(value) else (False, f"it gives {short(value)}")


def _file(_names: Any, check: Message, _functions: Any, folder: str) -> tuple[bool, str]:
    if os.path.exists(os.path.join(folder, check["text"])):
        return True, ""
    return False, f"there is no file {check['text']!r}"


def _sql(names: Mapping[str, Any], check: Message, *_: Any) -> tuple[bool, str]:
    if check["on"] not in names:
        return False, f"there is no {check['on']!r} to ask"
    rows = _rows(names[check["on"]], check["text"])
    told = "; ".join(short(tuple(row)) for row in rows[:3])
    return not rows, f"it gives rows: {told}" if rows else ""


def _rows(database: Any, query: str) -> list[Any]:
    """The first rows of an answer; nothing that the question did stays."""
    kind = type(database).__module__.partition(".")[0]
    if kind == "sqlalchemy":
        return _rows_of_sqlalchemy(database, query)
    idle = getattr(getattr(database, "info", None), "transaction_status", None) == 0
    cursor = database.cursor()
    try:
        with _read_only(cursor) if kind == "sqlite3" else contextlib.nullcontext():
            cursor.execute(query)
            return list(cursor.fetchmany(4))
    finally:
        cursor.close()
        if idle:  # psycopg begins a transaction with every question
            database.rollback()


@contextlib.contextmanager
def _read_only(cursor: Any) -> Iterator[None]:
    (before,) = cursor.execute("PRAGMA query_only").fetchone()
    cursor.execute("PRAGMA query_only=1")
    try:
        yield
    finally:
        cursor.execute(f"PRAGMA query_only={before}")


def _rows_of_sqlalchemy(database: Any, query: str) -> list[Any]:
    asked = sys.modules["sqlalchemy"].text(query)
    if hasattr(database, "connect"):
        with database.connect() as connection:  # goes back to its pool with nothing committed
            return list(connection.execute(asked).fetchmany(4))
    inside = database.begin_nested() if database.in_transaction() else database.begin()
    try:
        return list(database.execute(asked).fetchmany(4))
    finally:
        inside.rollback()


_KINDS = {"expression": _expression, "function": _function, "file": _file, "sql": _sql}


def true(value: Any) -> bool:
    """Whether a value is true; of arrays and tables, whether all of it is."""
    while getattr(value, "ndim", 0) and callable(getattr(value, "all", None)):
        value = value.all()
    if hasattr(value, "shape") and not hasattr(value, "ndim") and hasattr(value, "all"):
        value = value.all()
    return bool(value)


def short(value: Any) -> str:
    """A value in a line."""
    return " ".join(_repr.repr(value).split())
