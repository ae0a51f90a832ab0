"""One use of a skill in a cell, step by step: what goes to the host, what runs here.

A skill of the host is one message and its answer. A skill that runs here and has no effect
is a function. One that has an effect asks for leave first and tells what came of it after:
`begin`, run, `end`. `steps` knows the order; `use` and `use_async` carry it out.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import secrets
import sys
import time
import traceback
import types
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import calls, checks, codec, lanes, objects, observed, outcome
from .deadlines import Deadline
from .errors import SkillError, UnknownName, raised

if TYPE_CHECKING:
    from .calls import Call
    from .kernel import Kernel, Message

_TRACEBACK = 20_000
"""Characters of a traceback that go to the host."""
_FIRST, _LONGEST = 0.1, 10.0
"""Seconds before a function runs again: at first, and at most."""


@dataclass(slots=True)
class Skill:
    """A skill as this kernel knows it."""

    declaration: Mapping[str, Any]
    function: types.FunctionType | None
    session: str = ""
    of_cell: bool = False
    """Whether a cell defined it."""
    check: Callable[[dict[str, Any]], dict[str, Any]] | None = field(default=None)
    """Validates arguments by name; made at the first call."""

    @property
    def name(self) -> str:
        return str(self.declaration["name"])

    @property
    def effect(self) -> str:
        return str(self.declaration.get("effect", "none"))

    @property
    def is_async(self) -> bool:
        return bool(self.declaration.get("is_async"))


class Runtime:
    """`ctx.runtime`: the variables of the session."""

    def __init__(self, kernel: Kernel) -> None:
        self._shell = kernel.shell

    def get(self, name: str) -> Any:
        """The object called `name`. Raises `UnknownName`."""
        if name not in self._shell.user_ns:
            raise UnknownName(f"no variable {name!r} in the session")
        self._shell.touched.add([name])  # what is got can be changed in place
        return self._shell.user_ns[name]

    def put(self, **values: Any) -> None:
        """Bind objects to names."""
        self._shell.user_ns.update(values)
        self._shell.touched.add(values)


@dataclass(frozen=True, slots=True)
class Context:
    """`ctx` of a skill that runs here."""

    idempotency_key: str
    session: str
    attempt: int
    runtime: Runtime

    def log(self, text: object) -> None:
        """Say how far it is."""
        print(text)


@dataclass(slots=True)
class Run:
    """The step of running the function."""

    arguments: dict[str, Any]
    key: str = ""
    attempt: int = 1
    limit: Deadline | None = None
    """Of a skill that has a time limit, once it runs."""

    @property
    def over(self) -> bool:
        """Whether it ran out of its time."""
        return self.limit is not None and self.limit.passed

    def late(self) -> str:
        """What is to be said of a value that came too late; empty for one in time."""
        if self.limit is None or self.limit.caught is None:
            return ""
        return (
            f"{self.limit}, caught what was to stop it, and ended after {self.limit.caught:.1f} s"
        )


@dataclass(frozen=True, slots=True)
class Pause:
    """The step of waiting before a function runs again."""

    seconds: float


Steps = Generator["Call | Run | Pause", Any, Any]
"""Yields what is to be done, is sent what came of it, and returns the value of the call."""


def steps(kernel: Kernel, skill: Skill, arguments: dict[str, Any]) -> Steps:
    """What one call takes. To be made by the code that calls: the call has its place then."""
    if kernel.forked:
        raise RuntimeError(
            f"{skill.name}() in a forked child: skills are called by the session's own process; "
            f"give the arguments back to it, and call there"
        )
    if skill.declaration.get("runs") == "host":
        return _on_host(skill, _asking(kernel, skill, "call", arguments))
    if skill.check is None:
        assert skill.function is not None
        skill.check = checks.of(skill.name, skill.function, skill.declaration.get("context"))
    arguments = skill.check(arguments)
    if skill.effect == "none" and not skill.declaration.get("asks"):
        return _here(skill, arguments)
    return _with_leave(kernel, skill, arguments, _asking(kernel, skill, "begin", arguments))


def _here(skill: Skill, arguments: dict[str, Any]) -> Steps:
    """Run it, and again after an error that it names as transient."""
    retries, attempt = int(skill.declaration.get("retries") or 0), 0
    while True:
        attempt += 1
        run = Run(arguments, attempt=attempt)
        try:
            return _in_time(run, (yield run))
        except Exception as exc:
            if run.over or attempt > retries or not _transient(skill, exc):
                raise
            _say_again(skill, exc)
        yield Pause(min(_LONGEST, _FIRST * 2**attempt))


def _in_time(run: Run, value: Any) -> Any:
    """A value, unless it came too late. Raises `TimeoutError`."""
    if late := run.late():
        raise TimeoutError(f"{late}; what it gave is not taken")
    return value


def _transient(skill: Skill, exc: BaseException) -> bool:
    named = set(skill.declaration.get("transient") or ())
    return any(kind.__name__ in named for kind in type(exc).__mro__)


def _say_again(skill: Skill, exc: BaseException) -> None:
    said = f"{type(exc).__name__}: {_message(exc)}".removesuffix(": ")
    print(f"{skill.name}: {said}; it is called again")


def _on_host(skill: Skill, call: Call) -> Steps:
    return _result(skill, (yield call))


def _with_leave(kernel: Kernel, skill: Skill, arguments: dict[str, Any], call: Call) -> Steps:
    message = yield call
    while message["content"]["status"] == "go":
        leave = message["content"]
        if leave.get("kind"):  # who approved the call changed it
            arguments = value_of(message)
            arguments = arguments if skill.check is None else skill.check(arguments)
        run = Run(arguments, str(leave.get("key", "")), int(leave.get("attempt", 1)))
        told = {**call.content, "phase": "end", "key": run.key, "attempt": run.attempt}
        try:
            value = yield run
            if skill.effect == "read":
                value = _in_time(run, value)
        except BaseException as exc:
            cut = not isinstance(exc, Exception)
            failed = _failed(kernel, {**told, "over": run.over, "cut": cut}, exc)
            if cut:  # an interrupt: nobody waits for the host now
                kernel.calls.tell(failed)
                raise
            message = yield failed
            if message["content"]["status"] == "error":
                break  # what the host says of it: that it is in doubt
            if message["content"]["status"] != "go":
                raise
            _say_again(skill, exc)
            continue
        if late := run.late():
            print(f"{late}; it was done", file=sys.stderr)
        end, refused = _done(kernel, skill, told, value)
        message = yield end
        if refused is not None and message["content"]["status"] != "go":
            raise refused
        if message["content"]["status"] == "ok" and not message["content"].get("kind"):
            return value
    return _result(skill, message)


# -- carrying them out -----------------------------------------------------------------------


def use(kernel: Kernel, skill: Skill, work: Steps) -> Any:
    """Do the steps of a call; this thread waits."""
    try:
        step = next(work)
        while True:
            try:
                if isinstance(step, Run):
                    with _seen(skill):
                        done = _finished(kernel, skill, step)
                elif isinstance(step, Pause):
                    done = None
                    time.sleep(step.seconds)
                else:
                    done = kernel.calls.wait(step)
            except BaseException as exc:
                step = work.throw(exc)
            else:
                step = work.send(done)
    except StopIteration as end:
        return end.value


async def use_async(kernel: Kernel, skill: Skill, work: Steps) -> Any:
    """Do the steps of a call; the running loop goes on meanwhile."""
    try:
        step = next(work)
        while True:
            try:
                if isinstance(step, Run):
                    with _seen(skill):
                        done = await _finished_async(kernel, skill, step)
                elif isinstance(step, Pause):
                    done = await asyncio.sleep(step.seconds, None)
                else:
                    done = await kernel.calls.reply(step)
            except BaseException as exc:
                step = work.throw(exc)
            else:
                step = work.send(done)
    except StopIteration as end:
        return end.value


def _finished(kernel: Kernel, skill: Skill, run: Run) -> Any:
    if (limit := _limited(kernel, skill, run)) is None:
        return outcome.finish(_run(kernel, skill, run), print)
    return limit.finish(functools.partial(_run, kernel, skill, run), print)


async def _finished_async(kernel: Kernel, skill: Skill, run: Run) -> Any:
    if not skill.is_async:
        made = _finished(kernel, skill, run)
        return await made if inspect.isawaitable(made) else made
    if (limit := _limited(kernel, skill, run)) is None:
        return await outcome.finish_async(_run(kernel, skill, run), print)
    return await limit.finish_async(functools.partial(_run, kernel, skill, run), print)


def _limited(kernel: Kernel, skill: Skill, run: Run) -> Deadline | None:
    if (seconds := skill.declaration.get("timeout")) is not None:
        run.limit = Deadline(kernel, skill.name, float(seconds))
    return run.limit


def _seen(skill: Skill) -> AbstractContextManager[None]:
    """A skill with an effect is in the record: what it does is not the cell's own doing."""
    return nullcontext() if skill.effect == "none" else observed.recorded()


def _run(kernel: Kernel, skill: Skill, run: Run) -> Any:
    assert skill.function is not None
    if skill.function.__globals__ is kernel.shell.user_ns:
        kernel.shell.touched.ran(skill.function.__code__)
        if skill.is_async:  # it may go on when the cell has ended
            kernel.shell.touched.everything()
    signature = inspect.signature(skill.function)
    given = dict(run.arguments)
    if (name := skill.declaration.get("context")) is not None:
        given[name] = Context(run.key, skill.session, run.attempt, Runtime(kernel))
    ordered = {name: given[name] for name in signature.parameters if name in given}
    bound = inspect.BoundArguments(signature, ordered)
    return skill.function(*bound.args, **bound.kwargs)


# -- messages --------------------------------------------------------------------------------


def _asking(kernel: Kernel, skill: Skill, phase: str, arguments: dict[str, Any]) -> Call:
    header, buffers = _encoded(skill, arguments)
    lane = lanes.current()
    content = {
        "call": secrets.token_hex(16),
        "phase": phase,
        "skill": skill.name,
        "hash": skill.declaration.get("hash", ""),
        "cell": lane.cell,
        "lane": lane.path,
        "ordinal": lane.call(),
    }
    if skill.of_cell:
        content["declaration"] = dict(skill.declaration)
    return _made(kernel, {**content, "kind": "safe"}, (header, *buffers))


def _made(kernel: Kernel, content: Message, parts: Sequence[Any]) -> Call:
    made: Call = kernel.calls.make(content, parts)
    return made


def _encoded(skill: Skill, arguments: dict[str, Any]) -> tuple[bytes, list[memoryview]]:
    ordered = {name: arguments[name] for name in sorted(arguments)}
    try:
        return _safe(ordered)
    except codec.Unportable:
        ordered = {name: checks.plain(value) for name, value in ordered.items()}
    try:
        return _safe(ordered)
    except codec.Unportable:
        for name, value in ordered.items():
            _blame(skill, name, value)
        raise


def _safe(value: Any) -> tuple[bytes, list[memoryview]]:
    encoder = codec.Encoder()
    with codec.Uncollected():
        return encoder.finish(encoder.node(value))


def _blame(skill: Skill, name: str, value: Any) -> None:
    try:
        _safe(value)
    except codec.Unportable as error:
        where = (
            "this skill runs outside of the kernel"
            if skill.function is None
            else ("calls of this skill are recorded")
        )
        raise SkillError(
            f"{skill.name}() was not called: argument {name!r} is a {codec.typename(value)}, "
            f"which cannot leave the kernel ({error.reason}), and {where}; give the data that it "
            f"is made of: texts, numbers, lists, dicts, arrays, DataFrames"
        ) from None


def _done(
    kernel: Kernel, skill: Skill, told: Message, value: Any
) -> tuple[Call, SkillError | None]:
    content = {**told, "status": "ok", "token": None, "layout": []}
    try:
        try:
            header, buffers = _safe(value)
        except codec.Unportable:
            header, buffers = _safe(checks.plain(value))
    except codec.Unportable as error:
        refused = SkillError(
            f"{skill.name}() ran, but its result, a {codec.typename(value)}, cannot be recorded "
            f"({error.reason}); let it return data: texts, numbers, lists, dicts, DataFrames"
        )
        return _failed(kernel, {**told, "done": True}, refused), refused
    return _made(kernel, {**content, "kind": "safe"}, (header, *buffers)), None


def _failed(kernel: Kernel, told: Message, exc: BaseException) -> Call:
    lines = "".join(traceback.format_exception(exc))
    error = {
        "name": type(exc).__name__,
        "message": _message(exc),
        "traceback": lines[-_TRACEBACK:],
        "bases": [kind.__name__ for kind in type(exc).__mro__],
    }
    content = {**told, "status": "error", "error": error, "token": None, "layout": []}
    return _made(kernel, {**content, "kind": ""}, ())


def _message(exc: BaseException) -> str:
    """What it says; of a `KeyError`, whose text is the repr of its key, the key."""
    key = exc.args[0] if isinstance(exc, KeyError) and len(exc.args) == 1 else None
    return key if isinstance(key, str) else objects.text_of(exc)


def _result(skill: Skill, message: Message) -> Any:
    """The value that an answer brings. Raises what it tells of."""
    content = message["content"]
    if content["status"] != "ok":
        error = content.get("error") or {}
        name, said = str(error.get("name", "Error")), str(error.get("message", ""))
        raise raised(skill.name, name, said) from None
    try:
        return value_of(message)
    except Exception as exc:
        raise SkillError(
            f"{skill.name}() gave a result that cannot be made here: {type(exc).__name__}: {exc}"
        ) from exc


def value_of(message: Message) -> Any:
    """The object of an answer's parcel; names that it brings along are bound where free."""
    kind = message["content"].get("kind")
    if not kind:
        return None
    header, *buffers = calls.parts_of(message)
    if kind == "safe":
        with codec.Uncollected():
            return codec.Decoder(buffers).value(bytes(header))
    from . import values

    found = values.load(kind, bytes(header), buffers)
    value = found.pop("value")
    for name, needed in found.items():
        sys.modules["__main__"].__dict__.setdefault(name, needed)
    return value
