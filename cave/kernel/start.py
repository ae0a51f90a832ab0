"""Starting kernels and taking over those of other hosts."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cave.errors import CaveError, KernelStartError
from cave.kernel import launch, processes, reach
from cave.kernel.cells import Tape
from cave.kernel.deaths import death_of
from cave.kernel.kernel import STATUS_WAIT, Kernel, left
from cave.kernel.launch import OWN, Launch, Record, WarmFailed
from cave.kernel.wire import Codec
from cave.ports import Death, KernelFacts, SpooledCell, SpooledOutput

_MANNERS = 3.0
"""Seconds that a kernel which answered as a stranger has to answer as ours."""

_QUIET_WARM = 5.0
"""As `reach.QUIET`, of a kernel that a template forked: a cold start comes after it."""


async def start(launched: Launch) -> Kernel:
    """A new kernel that has answered. Raises `KernelStartError`, and leaves nothing then."""
    began = time.monotonic()
    try:
        return await _start(launched, began)
    except WarmFailed as exc:
        failed = exc
    kernel = await _start(dataclasses.replace(launched, templates=None), began)
    # only now it is known that the template was at fault
    _aside(lambda: failed.template.end(str(failed)))
    return kernel


async def _start(launched: Launch, began: float) -> Kernel:
    if launched.home.exists():
        raise KernelStartError(f"{launched.home} is there already; use a new kernel number")
    runtime: Path | None = None
    try:
        launched.home.mkdir(mode=0o700, parents=True)
        runtime = launch.make_runtime(launched.runtime)
        kept, key = await _spawned(launched, runtime)
        try:
            kernel = await _first_answer(launched, kept, runtime, key, began)
        except BaseException as exc:
            await asyncio.to_thread(kept.give_up)
            if kept.start == "warm" and kept.template and isinstance(exc, KernelStartError):
                raise WarmFailed(str(exc), kept.template) from exc
            raise
    except BaseException as exc:
        if runtime is not None:
            launch.remove(runtime)
        launch.remove(launched.home)
        if isinstance(exc, OSError):
            raise KernelStartError(f"kernel {launched.kernel!r} did not start: {exc}") from exc
        raise
    if kept.start == "cold" and kept.template:
        _aside(kept.template.begin)
    return kernel


def _aside(work: Callable[[], None]) -> None:
    """Let a thread do it; nobody waits, and nobody can give up here with a kernel that is up."""
    asyncio.get_running_loop().run_in_executor(None, work)


async def _spawned(launched: Launch, runtime: Path) -> tuple[launch.Kept, str]:
    """Spawn in a thread; who gives up meanwhile leaves no keeper and no socket behind."""
    spawning = asyncio.ensure_future(asyncio.to_thread(_spawn, launched, runtime))
    try:
        return await asyncio.shield(spawning)
    except asyncio.CancelledError:
        await asyncio.wait([spawning])
        if spawning.exception() is None:
            await asyncio.to_thread(spawning.result()[0].give_up)
        raise


def _spawn(launched: Launch, runtime: Path) -> tuple[launch.Kept, str]:
    key, base = secrets.token_hex(16), str(runtime / "k")
    launch.write_connection_file(runtime / "kernel.json", base, key, launched.kernel)
    if launched.kernel != OWN:
        return launch.spawn(launched, launch.spec_argv(launched, runtime), runtime, []), key
    listeners = launch.listen(base)
    try:
        fds = [listener.fileno() for listener in listeners]
        argv = launch.own_argv(launched, runtime, fds)
        return launch.spawn(launched, argv, runtime, fds), key
    finally:
        for listener in listeners:
            listener.close()


async def _first_answer(
    launched: Launch, kept: launch.Kept, runtime: Path, key: str, began: float
) -> Kernel:
    record = launch.newborn(kept, launched, runtime, key)
    try:
        kernel = Kernel(record, launched.home, facts=_facts(record, 0))
    except ProcessLookupError:
        raise await _failed(launched, "it ended at once") from None
    try:
        hello = await _hello(kernel, launched)
        record = dataclasses.replace(
            record,
            python=str(hello.get("python", "")),
            executable=str(hello.get("executable", "")),
            packages=_packages(hello.get("packages")),
        )
        record.write(launched.home / "kernel.json")
        kernel.facts = _facts(record, time.monotonic() - began)
        kept.confirm()
    except BaseException:
        await kernel.detach()
        raise
    return kernel


async def _hello(kernel: Kernel, launched: Launch) -> dict[str, Any]:
    """Wait for the first answer, as long as there are signs of life."""
    asked = asyncio.ensure_future(kernel.client.request("control", "cave_hello_request"))
    stranger: asyncio.Future[Any] | None = None
    if launched.kernel != OWN:
        stranger = asyncio.ensure_future(kernel.client.request("shell", "kernel_info_request"))
    life = reach.Life(kernel.record.pid, launched.home / "log")
    try:
        while not asked.done():
            await asyncio.wait([asked], timeout=0.25)
            if stranger is not None and stranger.done() and not stranger.exception():
                await asyncio.wait([asked], timeout=_MANNERS)
                if not asked.done():
                    raise await _failed(launched, "it came up, but does not speak cave")
            limit = reach.QUIET if kernel.record.start == "cold" else min(reach.QUIET, _QUIET_WARM)
            if not asked.done() and life.silent > limit:
                quiet = f"{limit:.0f} seconds"
                raise await _failed(launched, f"it gave no sign of life for {quiet}")
        return asked.result().content
    except CaveError as exc:
        if isinstance(exc, KernelStartError):
            raise
        raise await _failed(launched, str(kernel.death or exc)) from exc
    finally:
        for waiting in (asked, stranger):
            if waiting is not None:
                waiting.cancel()
                with contextlib.suppress(asyncio.CancelledError, CaveError):
                    await waiting


async def _failed(launched: Launch, how: str) -> KernelStartError:
    tail = await asyncio.to_thread(launch.read_tail, launched.home / "log")
    printed = f"; it printed:\n{tail}" if tail else "; it printed nothing"
    return KernelStartError(f"kernel {launched.kernel!r} did not start: {how}{printed}")


def _packages(value: Any) -> dict[str, str]:
    return {str(k): str(v) for k, v in value.items()} if isinstance(value, dict) else {}


def _facts(record: Record, seconds: float) -> KernelFacts:
    return KernelFacts(
        pid=record.pid,
        python=record.python,
        executable=record.executable,
        packages=record.packages,
        profile=record.profile,
        layers=tuple(record.layers),
        degraded=tuple(record.degraded),
        policy=record.policy,
        connection_file=record.connection_file,
        seconds=seconds,
        start=record.start,
    )


async def adopt(folder: Path, number: int) -> Kernel | Death | None:
    """The kernel that an earlier host started: alive, how it ended, or None without a record."""
    home = launch.home(folder, number)
    record = launch.read_record(home / "kernel.json")
    if record is None:
        return None
    alive = record.boot == processes.boot_id() and processes.started(record.pid) == record.began
    if alive:
        try:
            return Kernel(record, home, facts=_facts(record, 0))
        except ProcessLookupError:
            alive = False
    found = await processes.await_end_record(
        home / "end",
        limit=STATUS_WAIT,
        writer=lambda: processes.started(record.keeper) == record.keeper_began,
    )
    launch.remove(Path(record.runtime))
    return death_of(record, home, found)


async def left_behind(
    folder: Path, number: int, *, after: int
) -> Sequence[SpooledCell | SpooledOutput]:
    """What a dead kernel had put out after message `after`; cut cells have status `died`."""
    home = launch.home(folder, number)
    record = launch.read_record(home / "kernel.json")
    if record is None:
        return []
    tape = Tape(home / "spool", Codec(record.key))
    death = death_of(record, home, processes.end_record(home / "end"))
    return await asyncio.to_thread(left, tape, after=after, death=death)
