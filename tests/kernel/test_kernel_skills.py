"""Skills that run in the kernel: at once, or with leave; those of cells; `import cave` there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from typing import Any

import pytest

import cave
from cave.events import Fault
from cave.ports import Caller, Executed, SkillAnswer, SkillCall
from tests.kernel._desk import Desk, fault, until
from tests.kernel._host import Host, text


@pytest.fixture
def desk(host: Host) -> Desk:
    """A desk that answers the module's kernel."""
    return Desk(host).open()


def helper(n: int) -> int:
    return n + 1


@cave.skill
def grown(n: int, by: int = 1) -> int:
    """More than before."""
    return helper(n) + by - 1


@cave.skill
def slowly(n: int) -> Generator[str, None, int]:
    for step in range(n):
        yield f"step {step}"
    return n


@cave.skill
def bound(ctx: cave.SkillContext, name: str) -> str:
    ctx.log(f"{ctx.session} {ctx.attempt}")
    ctx.runtime.put(**{name: ctx.runtime.get("base") + 1})
    return name


@cave.skill(effect="write")
def posted(entry: dict[str, Any], ctx: cave.SkillContext) -> str:
    """An effect beside the live objects."""
    if entry.get("fail"):
        raise LookupError("no such account")
    return f"{ctx.idempotency_key} {ctx.attempt}"


def test_kernel_skills_run_at_once_without_a_message(desk: Desk) -> None:
    """Without an effect nothing goes to the host; helpers travel along; arguments are checked."""
    desk.define(grown, slowly, bound)
    host = desk.host
    assert text(host.run("print(grown(41), grown(1, by=2), await grown.aio(1))")) == "42 3 2\n"
    assert text(host.run("print(slowly(2))")) == "step 0\nstep 1\n2\n"
    host.run("base = 1")
    done = host.run("bound(name='top'), top")
    assert text(done) == "test 1\n('top', 2)"
    assert [v.name for v in done.delta.added] == ["top"]
    refused = host.run("grown('41')")
    assert refused.error is not None
    assert refused.error.name == "SkillError"
    assert "argument 'n'" in refused.error.message
    assert desk.calls == []
    host.run("del base, top")


def test_an_effect_in_the_kernel_asks_and_tells(desk: Desk) -> None:
    """Leave is asked before it runs, and what came of it told after: a value or an error."""
    desk.define(posted)
    host = desk.host
    assert text(host.run("posted({'a': 1})")) == "'key-1 1'"
    begin, end = desk.calls
    assert (begin.phase, begin.arguments, begin.ordinal) == ("begin", {"entry": {"a": 1}}, 1)
    assert (end.phase, end.id, end.key, end.attempt) == ("end", begin.id, "key-1", 1)
    assert end.result is not None
    assert end.result.kind == "safe"
    failed = host.run("posted({'fail': True})")
    assert failed.error is not None
    assert failed.error.name == "LookupError"
    assert "posted" in failed.error.traceback
    assert desk.calls[-1].fault is not None
    assert desk.calls[-1].fault.name == "LookupError"
    assert "Exception" in desk.calls[-1].bases


def test_an_effect_that_is_known_does_not_run(desk: Desk) -> None:
    """`begin` may be answered with the result, or with an error: the function is not called."""
    from cave.kernel import values

    desk.define(posted)

    async def known(call: SkillCall, _: Caller) -> SkillAnswer:
        desk.calls.append(call)
        return SkillAnswer("ok", values.encode("as before"))

    desk.host.kernel.on_call = known
    assert text(desk.host.run("posted({'fail': True})")) == "'as before'"
    assert [call.phase for call in desk.calls] == ["begin"]
    desk.host.kernel.on_call = fault("Divergence", "another one was called here")
    done = desk.host.run("posted({})")
    assert done.error is not None
    assert done.error.name == "Divergence"


def test_an_effect_runs_again_when_the_host_says_so(desk: Desk) -> None:
    """`end` may be answered with `go`: one more attempt with the same key."""
    desk.define(posted)

    async def again(call: SkillCall, _: Caller) -> SkillAnswer:
        desk.calls.append(call)
        if call.phase == "begin" or call.attempt < 100:
            return SkillAnswer("go", key="k", attempt=call.attempt + 1)
        return SkillAnswer("ok")

    desk.host.kernel.on_call = again
    assert text(desk.host.run("posted({})")) == "'k 100'"
    assert [call.attempt for call in desk.calls] == list(range(101))


@cave.skill(timeout=0.3)
def patient(seconds: float) -> str:
    time.sleep(seconds)
    return "woke"


@cave.skill(timeout=0.3)
async def awaited(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "woke"


@cave.skill(timeout=0.3)
def stubborn() -> None:
    while True:
        try:
            time.sleep(600)
        except BaseException:  # noqa: BLE001  on purpose
            continue


@cave.skill(timeout=0.3, effect="write")
def caught(give: bool) -> str:
    try:
        time.sleep(600)
    finally:
        if give:
            return "done"  # noqa: B012, SIM
    return "woke"


def told_of(done: Executed) -> str:
    assert done.error is not None
    return f"{done.error.name}: {done.error.message}"


def test_a_skill_is_stopped_when_its_time_is_over(desk: Desk) -> None:
    """In a sleep, in a thread, awaited, in a gather, and when it holds on to what stops it: a
    TimeoutError that names the skill; what comes after is not struck."""
    desk.define(patient, awaited, stubborn)
    host = desk.host
    over = "TimeoutError: skill {!r}: it did not end within 0.3 s"
    for source, name in (
        ("patient(600)", "patient"),
        ("await patient.aio(600)", "patient"),
        ("await awaited(600)", "awaited"),
        ("stubborn()", "stubborn"),
    ):
        done = host.run(source)
        assert told_of(done) == over.format(name)
        assert text(host.run("sum(range(1000)), patient(0)")) == "(499500, 'woke')"
    together = (
        "import asyncio\nawait asyncio.gather(awaited(600), awaited(0), return_exceptions=True)"
    )
    assert "did not end" in text(host.run(together))
    threaded = (
        "import threading, time\ndef busy():\n    try:\n        while True: time.sleep(0.01)\n"
        "    finally: gone.append(1)\nimport cave\ngone = []\n"
        "limited = cave.skill(timeout=0.3)(busy)\n"
        "def call():\n    try: limited()\n    except TimeoutError as error: gone.append(error)\n"
        "t = threading.Thread(target=call); t.start(); t.join()\ngone"
    )
    done = host.run(threaded)
    assert "[1, TimeoutError(" in text(done)
    assert not done.observed
    host.run("del limited, busy, call, gone, t, threading, time, asyncio, cave")


def test_an_effect_past_its_time_is_told_as_such(desk: Desk) -> None:
    """The host learns that it was stopped, and its word is what the cell gets; what had caught
    that and given a value was done."""
    desk.define(caught)

    async def told(call: SkillCall, _: Caller) -> SkillAnswer:
        desk.calls.append(call)
        if call.phase == "begin":
            return SkillAnswer("go", key="k", attempt=1)
        fault = Fault("EffectInDoubt", "nobody knows") if call.over else None
        return SkillAnswer("error" if call.over else "ok", fault=fault)

    desk.host.kernel.on_call = told
    stopped = desk.host.run("caught(False)")
    assert told_of(stopped) == "EffectInDoubt: nobody knows"
    assert "caught what was to stop it" in text(desk.host.run("caught(True)"))
    assert [(call.over, call.fault is None) for call in desk.calls if call.phase == "end"] == [
        (True, False), (False, True),
    ]  # fmt: skip


def test_a_transient_error_has_it_run_again(desk: Desk) -> None:
    """Without an effect the kernel itself runs it again, as often as the skill says."""

    @cave.skill(retries=1, transient=OSError)
    def flaky(fails: int, ctx: cave.SkillContext) -> int:
        if ctx.attempt <= fails:
            raise ConnectionError(f"attempt {ctx.attempt}")
        return ctx.attempt

    desk.define(flaky)
    again = "flaky: ConnectionError: attempt 1; it is called again\n"
    assert text(desk.host.run("flaky(0), flaky(1)")) == again + "(1, 2)"
    assert told_of(desk.host.run("flaky(2)")) == "ConnectionError: attempt 2"


def test_an_interrupted_effect_is_told(desk: Desk) -> None:
    """An effect that is interrupted while it runs ends with that error at the host; one that
    waits for leave says that it has not run."""
    host = desk.host

    @cave.skill(effect="write")
    def sleepy() -> None:

        print("begun", flush=True)
        time.sleep(600)

    desk.define(sleepy)

    async def interrupted(ready: Callable[[], bool]) -> Any:
        cell = asyncio.ensure_future(host.send("sleepy()", on_output=said.append))
        await until(ready)
        assert await host.kernel.interrupt()
        return await cell

    said: list[Any] = []
    assert host(interrupted(lambda: bool(said))).status == "interrupted"

    def told() -> bool:
        return desk.calls[-1].phase == "end"

    host(until(told))
    end = desk.calls[-1]
    assert end.fault is not None
    assert (end.fault.name, end.ran, end.cut) == ("KeyboardInterrupt", True, True)
    desk.calls.clear()
    desk.hold.clear()
    assert host(interrupted(lambda: bool(desk.calls))).status == "interrupted"
    desk.hold.set()
    host(until(told))
    assert (desk.calls[-1].ran, desk.calls[-1].key) == (False, "key-1")


def test_a_cell_defines_a_skill(make_host: Callable[..., Host]) -> None:
    """`@cave.skill` in a cell makes a kernel skill; its effects carry its own declaration."""
    host = make_host()
    host.start()
    desk = Desk(host)
    desk.answer()
    done = host.run(
        "import cave\n"
        "@cave.skill(effect='write', approval='always')\n"
        "def send(to: str, ctx) -> str:\n    'Send it.'\n    return f'{to} {ctx.attempt}'\n"
        "@cave.skill\ndef plain(n: int): return n + 1\n"
        "print(send('ann'), plain(1), send)"
    )
    assert text(done) == "ann 1 2 <skill send(to: str) -> str>\n"
    begin, end = desk.calls
    assert begin.declaration is not None
    assert begin.declaration["approval"] == "always"
    assert begin.hash == end.hash != ""
    assert "@s.skill" in told_of(host.run("@cave.skill(runs='host')\ndef f(): pass"))
    for wrong in ("timeout='1'", "timeout=0", "retries=-1", "version=2", "transient='OSError'"):
        refused = told_of(host.run(f"@cave.skill({wrong})\ndef f(): pass"))
        assert refused.startswith(f"SkillError: skill 'f': {wrong.partition('=')[0]} is ")


def test_the_facade_is_no_variable(make_host: Callable[..., Host]) -> None:
    """`import cave` in a cell gives what cells need, and nothing that a delta tells of."""
    host = make_host()
    host.start()
    done = host.run(
        "import cave\n"
        "print(callable(cave.resource), callable(cave.skill), cave.SkillError.__name__)\n"
        "cave.open"
    )
    assert not done.delta.added
    assert text(done).startswith("True True SkillError\n")
    assert done.error is not None
    assert "in cells cave has no 'open'" in done.error.message


def test_a_kernel_without_skills_loads_nothing_for_them(make_host: Callable[..., Host]) -> None:
    """The start of a kernel does not pay for skills: their modules come with the first one."""
    host = make_host()
    host.start()
    source = (
        "import sys\n"
        "ours = ('calls', 'skills', 'invoke', 'checks', 'errors', 'cell_skills')\n"
        "print([n for n in ours if f'_cave_kernel.{n}' in sys.modules], 'pydantic' in sys.modules)"
    )
    assert text(host.run(source)) == "[] False\n"
    Desk(host, grown).open()
    assert "'skills'" in text(host.run(source))
