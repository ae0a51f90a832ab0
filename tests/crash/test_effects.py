"""Kills around effects: the outside has each at most once, and once where it was done.

Each round a host dies at a failpoint of a call, alone or with its kernel, or stands still while
the kernel dies; the next one goes on with what was cut. `CAVE_CRASH_SEED` repeats a choice of
rounds, `CAVE_CRASH_ROUNDS` sets their number; the product of all runs behind `scripts/crash`.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import cave
from cave import facade
from cave.events import KernelStarted
from cave.portal import portal
from tests.time._kill import kill_process

from . import world
from .conftest import Host, wait_until

SEED = int(os.environ.get("CAVE_CRASH_SEED") or random.SystemRandom().randrange(1 << 32))
FULL = bool(os.environ.get("CAVE_CRASH_ROUNDS"))

# what some of its skills touch, in the kernel, lies outside of the session's folder
pytestmark = pytest.mark.usefixtures("unconfined")

POINTS = {
    "cell.before_send": world.KINDS,
    "cell.after_send": world.KINDS,
    "effect.before_intent": ["pay", "mail", "text", "stamp", "seal"],
    "effect.after_intent": ["pay", "mail", "text", "stamp", "seal"],
    "effect.before_call": ["pay", "mail", "text"],
    "effect.after_call": ["pay", "mail", "text", "price"],
    "effect.before_result": world.KINDS,
    "effect.after_result": world.KINDS,
    "cell.before_finish": world.KINDS,
    "snapshot.after_image": world.KINDS,
    "snapshot.mid_write": world.KINDS,
    "snapshot.before_event": world.KINDS,
}
"""Failpoints, and the skills whose calls pass them."""
INSIDE = {"before": ["stamp", "seal"], "after": ["stamp", "seal"]}
"""Moments of the run of a skill in the kernel: before and after it has touched the outside."""
VICTIMS = ("host", "both", "kernel")
PAUSED = "paused"
"""A host that stands still until another one has taken over and gone on."""
LEASE = 5.0
"""Seconds for which its lease holds."""
AWAITED = ("text", "seal")

WORK = """
from cave import failpoints
from cave.store import SQLStore
from tests.crash import world
SQLStore.__init__.__kwdefaults__['lease_ttl'] = {ttl}
s = cave.open('effects', skills=world.SKILLS)
if 'log' not in s:
    s.run('log = []').raise_for_error()
failpoints.arm({arm[0]!r}, {arm[1]!r}, after={arm[2]})
cell = s.run({source!r})
print('ended', cell.status)
"""
SOURCE = "item = {item!r}\nlog.append({call}(item))\nlog.append('after ' + item)"


def rounds() -> list[tuple[str, str, str]]:
    """Point, kind of skill and victim of each round: all of them, or each point a time or two."""
    points, victims = POINTS | INSIDE, (*VICTIMS, PAUSED)
    everything = [
        (point, kind, victim)
        for (point, kinds), victim in itertools.product(points.items(), victims)
        for kind in kinds
    ]
    chance = random.Random(SEED)
    if FULL:
        chance.shuffle(everything)
        return everything
    chosen = []
    for point, kinds in points.items():
        chosen.append((point, chance.choice(kinds), chance.choice(VICTIMS)))
    point, kind, _ = chosen[0]
    return [(point, kind, PAUSED), *chosen[1:]]


@pytest.mark.timeout(600 if not FULL else 6000)
def test_effects_happen_once_wherever_it_dies(
    host: Callable[..., Host], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever kind of skill, wherever in its call, whoever dies: after recovery, settling and
    resuming the namespace is that of a session left alone, and the outside has each effect once."""
    print(f"seed {SEED}")
    monkeypatch.setenv("WORLD", str(tmp_path / "world.db"))
    expected: list[str] = []
    for n, (point, kind, victim) in enumerate(rounds()):
        item = f"{n}"
        print(n, point, kind, victim)
        source = SOURCE.format(item=item, call=f"await {kind}" if kind in AWAITED else kind)
        paused = die_at(host, point, victim, source)
        s = cave.open("effects", skills=world.SKILLS, wait=60)
        go_on(s, source)
        if paused is not None:
            paused.send(signal.SIGCONT)
            assert paused.end(120, keep=True) != -signal.SIGKILL
        expected += [f"{kind} {item}", f"after {item}"]
        assert s["log"] == expected, (point, kind, victim)
        once(s)
        portal().call(facade.leave_all())


def die_at(host: Callable[..., Host], point: str, victim: str, source: str) -> Host | None:
    """One host works until the point is hit, and then what is to die dies; gives it paused."""
    inside = point in INSIDE
    action = "kill" if victim in {"host", "both"} and not inside else "stop"
    arm = ("cell.before_send", action, 10**9) if inside else (point, action, 1)
    hold = Path(f"{os.environ['WORLD']}.{point}")
    if inside:
        hold.touch()
    ttl = LEASE if victim == PAUSED else 30.0
    worker = host(WORK.format(arm=arm, source=source, ttl=ttl))
    here = Path(f"{hold}_here")
    if inside:
        wait_until(lambda: worker.ended or here.exists())
    elif action == "stop":
        wait_until(lambda: worker.ended or stopped(worker.pid))
    else:
        assert worker.end(keep=True) == -signal.SIGKILL, f"{point} was not hit: {worker.rest()}"
    if inside or action == "stop":
        assert not worker.ended, f"{point} was not hit: {worker.rest()}"
        worker.send(signal.SIGSTOP)
    if victim in {"host", "both"} and inside:
        worker.kill()
    if victim in {"kernel", "both"}:
        kill_kernel()
    for file in (hold, here):
        file.unlink(missing_ok=True)
    if victim == "kernel":
        worker.send(signal.SIGCONT)
        assert worker.end(keep=True) == 0, worker.rest()
    return worker if victim == PAUSED else None


def stopped(pid: int) -> bool:
    """Whether a process stands still."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def kernel_pid(name: str = "effects") -> int:
    """The session's kernel, as the journal knows it."""
    from cave.cli.look import events

    return [e.pid for e in events(name) if isinstance(e, KernelStarted)][-1]


def kill_kernel(name: str = "effects") -> None:
    """kill -9 of the session's kernel; returns when it is gone."""
    kill_process(kernel_pid(name))


def go_on(s: cave.Session, source: str) -> None:
    """What a person does: says what became of doubts, and goes on; runs what never began."""
    for _ in range(3):
        for effect in s.in_doubt:
            done = world.was_done(effect.key)
            result = f"{effect.skill} {effect.arguments['item'][1:-1]}" if done else None
            s.settle(effect.id, "done" if done else "not_done", result=result)
        with suppress(cave.EffectInDoubt):  # found meanwhile: settled in the next round
            s.resume()
        if not s.in_doubt:
            break
    assert not s.plan().runs
    last = s.history[-1]
    if last.source != source or (last.error and last.error.name == "CellNotRun"):
        last = s.run(source)
    assert last.ok, (last, last.error, str(s.plan()), last.observed)


def once(s: cave.Session) -> None:
    """The outside has every key at most once, and every effect that is recorded as done."""
    counts = Counter(key for key, _, _ in world.rows())
    assert max(counts.values(), default=1) == 1
    for cell in s.history:
        for effect in cell.effects:
            if effect.kind == "write":
                assert counts.pop(effect.key, 0) == (effect.state == "done"), effect
    assert not counts


AGAIN = """
from cave import failpoints
from tests.crash import world
failpoints.arm({point!r}, 'kill')
s = cave.open('effects', skills=world.SKILLS)
s.resume()
print('ended')
"""


@pytest.mark.timeout(600 if not FULL else 6000)
def test_a_death_in_the_recovery_changes_nothing(
    host: Callable[..., Host], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever goes on with a cut cell dies at a point of its own, with its kernel: the next one
    comes to the namespace of a session left alone, and the outside has each effect once."""
    print(f"seed {SEED}")
    monkeypatch.setenv("WORLD", str(tmp_path / "world.db"))
    expected: list[str] = []
    firsts = {"effect.before_intent": ["pay", "mail"], "effect.after_call": ["pay"]}
    pairs = [(first, point, kind) for first, kinds in firsts.items()
             for point, kind in itertools.product(POINTS, kinds)]  # fmt: skip
    random.Random(SEED).shuffle(pairs)
    for n, (first, second, kind) in enumerate(pairs if FULL else pairs[:2]):
        print(n, first, second, kind)
        source = SOURCE.format(item=str(n), call=kind)
        die_at(host, first, "both", source)
        again = host(AGAIN.format(point=second))
        assert again.end(120, keep=True) == -signal.SIGKILL, f"{second}: {again.rest()}"
        with suppress(ProcessLookupError):
            kill_kernel()
        s = cave.open("effects", skills=world.SKILLS)
        go_on(s, source)
        expected += [f"{kind} {n}", f"after {n}"]
        assert s["log"] == expected, (first, second, kind)
        once(s)
        portal().call(facade.leave_all())


BUSY = """
from tests.crash import world
s = cave.open('effects', skills=world.SKILLS)
s.run('log = []').raise_for_error()
s.run({source!r}).raise_for_error()
"""


def test_a_fork_beside_a_running_cell_calls_with_keys_of_its_own(
    host: Callable[..., Host],
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    marker: Path,
) -> None:
    """What the running cell has done is asked about in the fork; the fork's call has another key,
    and the cell goes on as if nothing had been."""
    monkeypatch.setenv("WORLD", str(tmp_path / "world.db"))
    source = (
        "log.append(pay('a'))\nimport pathlib, time\n"
        f"while not pathlib.Path({str(marker)!r}).exists(): time.sleep(0.01)\n"
        "log.append(pay('b'))"
    )
    worker = host(BUSY.format(source=source))
    wait_until(lambda: len(world.rows()) == 1)
    s = cave.open("effects", skills=world.SKILLS)
    with s.fork("other", at=1) as other:
        asked = other.run("log.append(pay('a'))")
        assert asked.error is not None
        assert "of session 'effects'" in asked.error.message
        (doubt,) = other.in_doubt
        other.settle(doubt.id, "not_done")
        other.resume()
        assert other["log"] == ["pay a"]
    marker.touch()
    assert worker.end(120, keep=True) == 0, worker.rest()
    assert s["log"] == ["pay a", "pay b"]
    assert sorted(item for _, _, item in world.rows()) == ["a", "a", "b"]
    assert len({key for key, _, _ in world.rows()}) == 3


UNDO = """
from cave import failpoints
from tests.crash import world
s = cave.open('effects', skills=world.SKILLS)
(effect,) = s.run({source!r}).raise_for_error().effects
failpoints.arm({point!r}, 'kill')
s.undo(effect.id)
"""


@pytest.mark.parametrize("kind", ["pay", "text"])
def test_a_compensation_happens_once_wherever_it_dies(
    host: Callable[..., Host],
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """Undoing is gone on with after kill -9, by its key or by a person's answer; then the effect
    does not stand, and the outside has been told once."""
    monkeypatch.setenv("WORLD", str(tmp_path / "world.db"))
    points = ("effect.after_intent", "effect.after_call", "effect.after_result")
    for n, point in enumerate(points):
        source = f"await text('{n}')" if kind == "text" else f"pay('{n}')"
        worker = host(UNDO.format(point=point, source=source))
        assert worker.end(keep=True) == -signal.SIGKILL, worker.rest()
        s = cave.open("effects", skills=world.SKILLS)
        (effect,) = s.history[-1].effects
        for doubt in s.in_doubt:
            assert (doubt.undoes, kind) == (effect.id, "text")
            s.settle(doubt.id, "done" if world.was_done(doubt.key) else "not_done")
        if not s.history[-1].effects[0].undone:
            s.undo(effect.id)
        with pytest.raises(cave.ConfigError, match="was undone already"):
            s.undo(effect.id)
        portal().call(facade.leave_all())
    undone = Counter(item for _, skill, item in world.rows() if skill in {"refund", "unsend"})
    assert undone == Counter({str(n): 1 for n in range(len(points))})


def test_a_cell_that_ran_again_is_the_moment_after_it(
    host: Callable[..., Host], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot of what a cell had come to when it stopped at a doubt does not pass for the
    namespace after it, once it has run to its end."""
    monkeypatch.setenv("WORLD", str(tmp_path / "world.db"))
    source = "log = ['a']\nlog.append(await text('b'))"
    die_at(host, "effect.after_call", "host", source)
    with cave.open("effects", skills=world.SKILLS) as s:
        (effect,) = s.in_doubt
        s.snapshot()
        assert not s.plan().runs
        assert [n for n, _ in s.recover().left] == [effect.cell]
        s.settle(effect.id, "done", result="text b")
        assert "the namespace goes back to before cell 2, which had stopped" in str(s.plan())
        assert s.recover().cells == (effect.cell,)
        cell = s.history[effect.cell]
        assert cell.ok
        s.run("log.append('c')").raise_for_error()
        s.restore(at=cell.n)
        assert s["log"] == ["a", "text b"]
