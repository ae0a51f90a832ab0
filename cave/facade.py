"""Session: the sync facade. It waits on the portal, delivers events where the caller is,
and tells people what was lost. All that it does is in `cave.session.AsyncSession`.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO, TypeVar, cast

from cave import config, home
from cave.check import checks_of
from cave.config import Options
from cave.deciding import Deciding
from cave.directing import Directing
from cave.display.told import STALE, told, told_open
from cave.display.waiting import Waiting
from cave.errors import SessionBusy
from cave.events import (
    Event,
    ForkEffects,
    KernelEnded,
    Restored,
    SkillsOffered,
    SnapshotCommitted,
    SnapshotFailed,
    Usage,
    Variable,
)
from cave.policy import Budget, Policy
from cave.policy.answering import Approver
from cave.portal import at_exit, portal
from cave.recovery import KernelView, names
from cave.report import Diff, RestoreReport, Snapshot
from cave.session import RAISE, AsyncSession
from cave.skills import Registry
from cave.turn import Cell, Numbered, Turn
from cave.wishes import Interruption

if TYPE_CHECKING:
    from cave.display import VarTable
    from cave.ports import SessionInfo, Store

T = TypeVar("T")


_CALM = {"closed", "asleep", "restart"}
"""Ends of kernels that somebody wanted."""


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _tell(
    name: str, event: KernelEnded | Restored | SkillsOffered | SnapshotFailed, text: str
) -> None:
    """In a notebook a restore is shown as what it is, a RestoreReport."""
    from cave.display.live import in_notebook

    if isinstance(event, Restored) and in_notebook():
        from IPython.display import display

        display(RestoreReport.of(event))  # type: ignore[no-untyped-call]
    else:
        _say(f"cave: {name!r}: {text}")


class Session(Deciding, Directing):
    """A durable Python session; made by `cave.open(name)`.

    Calls from several threads queue. `with cave.open(name) as s:` closes it at the end.
    """

    def __init__(self, inner: AsyncSession) -> None:
        self._inner = inner
        self.narration: TextIO | None = None
        """Where turns are narrated; None: in the notebook or terminal, if there is one."""
        self._ended: queue.SimpleQueue[KernelEnded | Restored | SkillsOffered | SnapshotFailed] = (
            queue.SimpleQueue()
        )
        self._failures: list[str] = []
        self._told_open: set[str] = set()
        inner.listen(self._note)

    @property
    def name(self) -> str:
        """Its name, unique in its home."""
        return self._inner.name

    def _note(self, event: Event) -> None:
        if isinstance(event, SnapshotFailed):
            if event.reason not in self._failures:  # said once, not after each cell
                self._failures.append(event.reason)
                self._ended.put(event)
            return
        if isinstance(event, SkillsOffered):
            self._ended.put(event)
            return
        quiet = {"closed", "asleep"} if isinstance(event, KernelEnded) and event.lost else _CALM
        died = isinstance(event, KernelEnded) and event.reason not in quiet
        back = isinstance(event, Restored) and event.reason != "asked"
        if died or back:
            self._ended.put(cast("KernelEnded | Restored", event))
        if isinstance(event, SnapshotCommitted):
            self._failures.clear()

    def _wait(
        self,
        work: Coroutine[Any, Any, T],
        *,
        inbox: queue.SimpleQueue[Any] | None = None,
        deliver: Callable[[Event], None] | None = None,
    ) -> T:
        try:
            return portal().call(
                work, inbox=inbox, deliver=deliver, on_interrupt=self._inner.interrupt
            )
        finally:
            self._tell_losses()

    def _tell_losses(self) -> None:
        """Say on stderr what a death cost and what came back, and once which layers are missing;
        silent when nothing is amiss."""
        kernel = self._inner.kernel
        lines = [*told_open(kernel.profile, kernel.degraded), *([STALE] if kernel.stale else [])]
        for line in lines if kernel.alive else ():
            if line not in self._told_open:
                _say(f"cave: {self.name!r}: {line}")
                self._told_open.add(line)
        while not self._ended.empty():
            event = self._ended.get()
            if text := told(event):
                _tell(self.name, event, text)

    # -- cells and turns ---------------------------------------------------------------------

    def run(self, code: str, *, timeout: float | None = None) -> Cell:
        """Run your own cell in the kernel and wait for its end.

        `timeout` in seconds (None: the policy's, else no limit). Returns for faults, time-outs
        and deaths too: they are in `cell.error`; `cell.raise_for_error()` raises.
        Raises `SessionBusy` while another process operates.
        """
        return self._wait(self._inner.run(code, timeout=timeout))

    def ask(
        self,
        prompt: str,
        *,
        budget: Budget | None = None,
        returns: str | None = None,
        done_when: Any = (),
        on_event: Callable[[Event], None] | None = None,
    ) -> Turn:
        """Let the operator work on `prompt`; streams into this cell or terminal.

        `done_when`, besides what the session was opened with, has to hold when it is done.
        `returns` names the variable whose object becomes `turn.value`; `on_event` gets every
        event, in this thread. Raises `OperatorError` when there is no model.
        """
        return self._gone_on_with(
            self._shown(
                lambda listen: self._inner.ask(
                    prompt, budget=budget, returns=returns, done_when=done_when, on_event=listen
                ),
                on_event,
            ),
            on_event,
        )

    def resume(
        self,
        *,
        budget: Budget | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> Turn | Cell | None:
        """Run again the cells that `plan` tells of, and go on with a turn that was cut or waits.

        Gives the turn or the cell; None when nothing was cut or waits.
        """
        return self._gone_on_with(self._resumed(budget, on_event), on_event)

    def _resumed(
        self, budget: Budget | None, on_event: Callable[[Event], None] | None
    ) -> Turn | Cell | None:
        return self._shown(
            lambda listen: self._inner.resume(budget=budget, on_event=listen), on_event
        )

    def _gone_on_with(self, result: T, on_event: Callable[[Event], None] | None) -> T:
        """What comes of it when the person who is here approves what it waits for."""
        while self._answered_here(result):
            result = cast(T, self._resumed(None, on_event))
        return result

    def _shown(
        self,
        work: Callable[[Callable[[Event], None]], Coroutine[Any, Any, T]],
        on_event: Callable[[Event], None] | None,
    ) -> T:
        from cave.display import LiveTurn

        inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        live = LiveTurn.for_environment(self.narration, answer=self.narration is None)

        def deliver(event: Event) -> None:
            live(event)
            if on_event is not None:
                on_event(event)

        try:
            result = self._wait(work(inbox.put), inbox=inbox, deliver=deliver)
            if isinstance(result, Turn) and result.ok and result.reason:
                _say(f"cave: {result.reason}")
            if isinstance(result, Turn) and live.shows:
                return cast(T, replace(result, streamed=True))
            return result
        finally:
            live.close()

    @property
    def pending(self) -> Turn | None:
        """The turn that was cut or waits; `resume()` goes on with it."""
        self._wait(self._inner.refresh())
        return self._inner.pending

    def interrupt(self, *, kill: bool = False) -> Interruption:
        """Stop what runs, from any thread or process: SIGINT, and after 10 seconds SIGKILL
        when `kill`. The result is true when nothing runs any more, and says what was done."""
        return self._wait(self._inner.interrupt(kill=kill))

    # -- skills and effects ------------------------------------------------------------------

    @property
    def skills(self) -> Registry:
        """What cells may call; `s.skills.add(...)` takes skills, modules, folders, packages."""
        return self._inner.skills

    def skill(self, function: Any) -> Any:
        """`@s.skill`: let cells call this skill, or this function as one."""
        return self._inner.skill(function)

    def use_skill(self, name: str) -> str:
        """Activate a skill that `cave skills list` shows: cells can call its functions from the
        next one on. Gives its instructions. Raises `SkillError`."""
        return self._inner.use_skill(name)

    # -- values ------------------------------------------------------------------------------

    def put(self, /, **values: Any) -> None:
        """Objects into the kernel, all or none. Raises `PutError` naming the variable."""
        self._wait(self._inner.put(**values))

    def get(self, name: str, default: Any = RAISE, *, allow_pickle: bool = False) -> Any:
        """An object out of the kernel by the safe codecs (JSON types, numpy, pandas, Arrow).

        Raises `UnknownName` without a `default`, and `NotPortable` for an object that only
        pickle carries, which `allow_pickle=True` allows when you trust the kernel.
        """
        return self._wait(self._inner.get(name, default, allow_pickle=allow_pickle))

    def __getitem__(self, name: str) -> Any:
        return self.get(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.put(**{name: value})

    def __delitem__(self, name: str) -> None:
        self._wait(self._inner.delete(name))

    def __contains__(self, name: object) -> bool:
        name = config.normal(name)
        return any(v.name == name for v in self.vars)

    def __iter__(self) -> Iterator[str]:
        return iter([v.name for v in self.vars])

    def _ipython_key_completions_(self) -> list[str]:
        return [v.name for v in self.vars]

    @property
    def vars(self) -> VarTable:
        """The variables: name, type, shape, size, last cell, fidelity, summary."""
        return self._wait(self._inner.vars())

    # -- time ----------------------------------------------------------------------------

    def snapshot(self, name: str = "") -> Snapshot:
        """Take a snapshot now; a named one is always kept. Raises `SnapshotError`."""
        return self._wait(self._inner.snapshot(name))

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """The snapshots that are kept, oldest first."""
        self._wait(self._inner.refresh())
        return self._inner.snapshots

    def restore(self, at: Any) -> RestoreReport:
        """Bring the namespace back to an earlier moment, in the same kernel.

        `at` is a cell number (the state after it), "turn 4", "before turn 4", the name of a
        snapshot, or a Snapshot. Raises `SnapshotNotFound`, `SnapshotCorrupt`.
        """
        return self._wait(self._inner.restore(at))

    @property
    def last_restore(self) -> RestoreReport | None:
        """How the namespace came back last; None when it never had to."""
        self._wait(self._inner.refresh())
        return self._inner.last_restore

    def diff(self, old: Any, new: Any) -> Diff:
        """Names added, changed, removed and unchanged between two moments (see `restore`)."""
        return self._wait(self._inner.diff(old, new))

    def fork(self, name: str, at: Any = None, *, effects: ForkEffects = "ask") -> Session:
        """Another session with the same objects, as they are now or were `at` a moment.

        `effects`: of calls that touch the world, `ask` a person before one that this session
        has made since that moment, `deny` all, or `allow` all. Raises `ConfigError` when there
        is a session of that name, `SnapshotNotFound`.
        """
        with _lock:
            inner = self._wait(self._inner.fork(name, at, effects=effects))
            return _opened(inner)

    # -- looking back ------------------------------------------------------------------------

    @property
    def history(self) -> Numbered[Cell]:
        """The cells that have ended, by their numbers: `s.history[7]`, `s.history[-1]`."""
        self._wait(self._inner.refresh())
        return self._inner.history

    @property
    def turns(self) -> Numbered[Turn]:
        """The turns that have ended, by their numbers."""
        self._wait(self._inner.refresh())
        return self._inner.turns

    @property
    def usage(self) -> Usage:
        """What the session has spent in all."""
        self._wait(self._inner.refresh())
        return self._inner.usage

    def events(self, after: int = 0) -> list[Event]:
        """The journal's events with `seq > after`."""
        return self._wait(self._inner.events(after))

    # -- files -------------------------------------------------------------------------------

    @property
    def workdir(self) -> Path:
        """The cwd of cells."""
        return self._inner.workdir

    @property
    def files(self) -> tuple[str, ...]:
        """Regular files that cells wrote in `workdir`, as relative paths."""
        return self._inner.files

    def save(self, name: str, to: str | Path) -> Path:
        """Copy a file out of `workdir` to a path, or into a folder (`out/`). Links are refused."""
        return self._inner.save(name, to)

    def export(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the story of the session to a new file: `.ipynb` or `.py`."""
        return self._wait(self._inner.export(path, overwrite=overwrite))

    # -- the kernel --------------------------------------------------------------------------

    @property
    def kernel(self) -> KernelView:
        """The kernel: `pid`, `alive`, `profile`, `layers`, `connection_file`."""
        return self._inner.kernel

    def attach(self) -> str:
        """Admit JupyterLab or `jupyter console` to this kernel; prints and gives how to join."""
        line = self._wait(self._inner.attach())
        _say(f"join the kernel of {self.name!r} with:\n  {line}")
        return line

    def restart(self) -> tuple[Variable, ...]:
        """End the kernel and all its processes and start it again with the last snapshot; gives
        the variables that are lost, which no snapshot has."""
        return self._wait(self._inner.restart())

    def close(self, *, discard: bool = False) -> None:
        """Take a snapshot and end the kernel; `cave.open` brings the namespace back.

        Says which variables are lost, if any: those that no snapshot can hold. Raises
        `SnapshotError` when the disk is full, unless what is in memory only may be lost.
        """
        lost = self._wait(self._inner.close(discard=discard))
        if _sessions.get(_key(self._inner)) is self:
            del _sessions[_key(self._inner)]
        if lost:
            _say(f"cave: closed {self.name!r}; these are gone: {names(lost)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        kernel = self.kernel
        state = f"kernel {kernel.pid}" if kernel.alive else "no kernel"
        return f"<Session {self.name!r}: {state}, {len(self._inner.history)} cells>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from cave.display import mimebundle

        return mimebundle(self)


_sessions: dict[tuple[Path, str], Session] = {}
_lock = threading.RLock()


def _key(inner: AsyncSession) -> tuple[Path, str]:
    return inner.home.path, inner.name


def open(
    name: str,
    *,
    operator: Any = None,
    skills: Sequence[Any] = (),
    policy: Policy | None = None,
    budget: Budget | None = None,
    done_when: Any = (),
    kernel: str | None = None,
    python: str | None = None,
    store: Store | str | Path | None = None,
    persistence: str | None = None,
    wait: float | None = None,
    snapshot_every: int | None = None,
    seed: str | Path | None = None,
    allow_pickle: bool | None = None,
    resume: str | None = None,
    approver: Approver | None = None,
) -> Session:
    """Create the session `name`, or resume it with the same objects. Never calls a model.

    Open twice in one process it is the same Session, and new settings apply. `operator` is
    an Operator, a list of scripted steps, or a name (`anthropic:MODEL`,
    `openai:MODEL@http://host/v1`, `llama:/path.gguf`, `script:file.py`, `human`). `skills` are
    what cells may call: skills, modules, folders or names of packages. `done_when` is what has
    to hold at the end of every turn: checks, expressions, functions. `python` names another
    environment's interpreter (it needs ipykernel and dill). `wait` is how many seconds to wait
    for another process that operates the session. `persistence` is "hybrid"
    (the default: a snapshot after every `snapshot_every` cells), "live" (none at all) or
    "snapshot" (the kernel ends after each turn). `seed` is a file that `s.export("x.dill")`
    or dill wrote, which a new session starts with; reading it runs code, so
    `allow_pickle=True` must be given. `resume` says what follows when kernel and host have
    died: "auto" (the default) runs again what was cut where that is safe, "ask" and "never"
    leave it to `s.resume()`. `approver` is a function, sync or async, of an `Approval` that
    gives True, False, or None to ask people.
    Raises `ConfigError`, `KernelStartError`, `StoreError`.
    """
    options = Options(
        operator,
        policy,
        budget,
        kernel,
        python,
        persistence,
        wait,
        snapshot_every,
        seed,
        allow_pickle,
        tuple(skills),
        resume,
        approver,
        checks_of(done_when),
    )
    with _lock:
        at = home.at(store=store)
        known = _sessions.get((at.path, name))
        if known is not None and known._inner.closed:
            portal().call(known._inner.close())  # another thread does; waits for its end
            known = None
        if known is not None:
            known._inner.apply(options)
            return known
        return _opened(AsyncSession(at, name, options))


def _opened(inner: AsyncSession) -> Session:
    if not _sessions:
        at_exit(leave_all)
    session = Session(inner)
    portal().call(inner.open())
    session._tell_losses()
    _sessions[_key(inner)] = session
    return session


def open_async(
    name: str,
    *,
    operator: Any = None,
    skills: Sequence[Any] = (),
    policy: Policy | None = None,
    budget: Budget | None = None,
    done_when: Any = (),
    kernel: str | None = None,
    python: str | None = None,
    store: Store | str | Path | None = None,
    persistence: str | None = None,
    wait: float | None = None,
    snapshot_every: int | None = None,
    seed: str | Path | None = None,
    allow_pickle: bool | None = None,
    resume: str | None = None,
    approver: Approver | None = None,
) -> AsyncSession:
    """`open` for code with its own event loop: `async with cave.open_async(name) as s:`."""
    options = Options(
        operator,
        policy,
        budget,
        kernel,
        python,
        persistence,
        wait,
        snapshot_every,
        seed,
        allow_pickle,
        tuple(skills),
        resume,
        approver,
        checks_of(done_when),
    )
    return AsyncSession(home.at(store=store), name, options)


def approvals(store: Store | str | Path | None = None) -> Waiting:
    """What waits to be approved in all sessions of the home, the oldest first."""
    found = [asked for info in sessions(store) for asked in reach(info.name, store).approvals]
    return Waiting(sorted(found, key=lambda asked: asked.asked_at))


def sessions(store: Store | str | Path | None = None) -> Sequence[SessionInfo]:
    """Every session of the home, the last changed first."""
    return portal().call(home.at(store=store).sessions())


def reach(name: str, store: Store | str | Path | None = None) -> Session:
    """A session that is there already, without making a kernel for it.

    Raises `SessionNotFound`, which proposes the nearest name.
    """
    with _lock:
        at = home.at(store=store)
        portal().call(at.store.info(config.checked_name(name)))
        known = _sessions.get((at.path, name))
        return known if known is not None else Session(AsyncSession(at, name, Options()))


def delete(name: str, store: Store | str | Path | None = None) -> None:
    """End the session's kernel and forget its journal and files.

    Raises `SessionNotFound`, and `SessionBusy` while another process operates it.
    """
    with _lock:
        session = reach(name, store)
        portal().call(session._inner.close(discard=True))
        _sessions.pop(_key(session._inner), None)
        portal().call(home.at(store=store).forget(name))


async def leave_all() -> None:
    """Let go of every session and store of this process; kernels go on."""
    for session in list(_sessions.values()):
        await session._inner.leave()
    _sessions.clear()
    await home.close_all()


def _forget_after_fork() -> None:
    global _lock  # noqa: PLW0603 - another thread may have held it
    _lock = threading.RLock()
    _sessions.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
__all__ = ["Session", "SessionBusy", "approvals", "delete", "open", "open_async", "sessions"]
