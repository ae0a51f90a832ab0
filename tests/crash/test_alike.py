"""Sessions that are killed end as those that are left alone: the same namespace, the same effects.

Each recorded session is a list of cells with skills of every kind. One session runs them all
without a kill; others run one list each and are killed on the way. What a list has made is
compared by digest. `CAVE_CRASH_SEED` repeats the lists and the kills; `scripts/crash` makes 100.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import textwrap
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import cave
from cave import facade
from cave.portal import portal

from . import world
from .conftest import Host
from .test_effects import POINTS, VICTIMS, kill_kernel, once

SEED = int(os.environ.get("CAVE_CRASH_SEED") or random.SystemRandom().randrange(1 << 32))
RECORDED = 100 if os.environ.get("CAVE_CRASH_ROUNDS") else 10

# what some of its skills touch, in the kernel, lies outside of the session's folder
pytestmark = pytest.mark.usefixtures("unconfined")

WORK = """
from cave import failpoints
from tests.crash import world
s = cave.open({name!r}, skills=world.SKILLS)
failpoints.arm({point!r}, 'kill', after={after})
for source in {sources!r}:
    s.run(source)
print('ended')
"""

CELLS = (
    "{p}log = [pay('{i}')]\n{p}same = {p}log",
    "{p}log.append(mail('{i}'))\n{p}count = {p}count + len({p}same)",
    "{p}log.append(await text('{i}'))\n{p}log.append(stamp('{i}'))",
    "import numpy\n{p}array = numpy.arange({i}) * {p}count\n{p}view = {p}array[1:]",
    "{p}by_name = {{str(e): price(str(e)) for e in {p}log[:3]}}\n{p}log.append(pay('n{i}'))",
    """\
import threading
{p}side = []
threads = [threading.Thread(target=lambda n=n: {p}side.append(mail(f'{i}.{{n}}'))) for n in (1, 2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
{p}side.sort()
del thread, threads""",
    "{p}count += 1\n{p}log.append({p}count)",
    """\
def {p}twin(x): return x, x
{p}twice = {p}twin({p}count)
{p}log += [stamp('d{i}'), await seal('{i}')]""",
)
"""Kinds of cells; every list begins with the first, and its names begin with `p`."""
NAMES = ("log", "same", "count", "array", "view", "by_name", "side", "twice")


def record(chance: random.Random, n: int) -> list[str]:
    """The cells of one recorded session."""
    kinds = [CELLS[0], *chance.sample(CELLS[1:], 3)]
    sources = [kind.format(p=f"s{n}_", i=i) for i, kind in enumerate(kinds, 2)]
    return [f"s{n}_count = {n}\n{sources[0]}", *sources[1:]]


def made(s: cave.Session, n: int, sources: Iterable[str]) -> str:
    """All that a list of cells has made: the values, what is shared, and the effects."""
    known = {name: plain(s[f"s{n}_{name}"]) for name in NAMES if f"s{n}_{name}" in s}
    shared = s.run(
        textwrap.dedent(
            f"""
            print(s{n}_same is s{n}_log)
            print('s{n}_view' in globals() and s{n}_view.base is s{n}_array)
            """
        )
    ).text
    wanted = set(sources)
    effects = sorted(
        (effect.skill, json.dumps(effect.arguments), effect.state, str(effect.result))
        for cell in s.history
        if cell.source in wanted
        for effect in cell.effects
    )
    return json.dumps([known, shared, effects], sort_keys=True)


def digest(text: str) -> str:
    """What stands for all of it."""
    return hashlib.sha256(text.encode()).hexdigest()


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    return value.tolist() if hasattr(value, "tolist") else value


def killed(host: Callable[..., Host], name: str, sources: list[str], chance: random.Random) -> str:
    """One host works until a failpoint kills it, perhaps with its kernel; what died."""
    point, victim = chance.choice(list(POINTS)), chance.choice(VICTIMS)
    worker = host(
        WORK.format(name=name, point=point, after=chance.randrange(1, 4), sources=sources)
    )
    died = worker.end(120) == -signal.SIGKILL
    if died and victim != "host":
        kill_kernel(name)
    return f"{point}, {victim if died else 'nothing'}"


def go_on(s: cave.Session, sources: list[str]) -> None:
    """What a person does: settles, resumes, and runs what never began."""
    for _ in range(4):
        for effect in s.in_doubt:
            done = world.was_done(effect.key)
            result = f"{effect.skill} {effect.arguments['item'][1:-1]}" if done else None
            s.settle(effect.id, "done" if done else "not_done", result=result)
        with suppress(cave.EffectInDoubt):  # found meanwhile: settled in the next round
            s.resume()
        if not s.in_doubt:
            break
    ran = [cell.source for cell in s.history if not unsent(cell)]
    assert ran == sources[: len(ran)]
    for source in sources[len(ran) :]:
        s.run(source).raise_for_error()


def unsent(cell: cave.Cell) -> bool:
    """Whether a cell never came to its kernel."""
    return cell.error is not None and cell.error.name == "CellNotRun"


@pytest.mark.timeout(120 + 30 * RECORDED)
def test_killed_sessions_end_as_those_left_alone(
    host: Callable[..., Host], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of recorded sessions each is killed at a random point of a random call, alone or with its
    kernel, and comes to the digest of the one that nobody killed."""
    print(f"seed {SEED}, {RECORDED} sessions")
    chance, deaths = random.Random(SEED), 0
    records = [record(chance, n) for n in range(RECORDED)]
    monkeypatch.setenv("WORLD", str(tmp_path / "alone.db"))
    wanted = []
    with cave.open("alone", skills=world.SKILLS) as alone:
        for n, sources in enumerate(records):
            for source in sources:
                alone.run(source).raise_for_error()
            wanted.append(made(alone, n, sources))
    for n, sources in enumerate(records):
        monkeypatch.setenv("WORLD", str(tmp_path / f"world{n}.db"))
        how = killed(host, f"killed{n}", sources, chance)
        deaths += not how.endswith("nothing")
        with cave.open(f"killed{n}", skills=world.SKILLS) as s:
            go_on(s, sources)
            found = made(s, n, sources)
            assert digest(found) == digest(wanted[n]), (n, how, sources, found, wanted[n])
            once(s)
        portal().call(facade.leave_all())
        print(n, how)
    assert len(set(wanted)) == len(wanted)
    assert deaths >= RECORDED // 2, f"{deaths} of {RECORDED} were killed"
