"""Any process may die: what was acknowledged is there, and the session goes on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import cave
from cave.events import CellFinished, CellStarted, KernelEnded, KernelStarted, TurnFinished

from .conftest import Host, wait_until

Start = Callable[..., Host]


def kernels_of(home: Path) -> list[psutil.Process]:
    """Live kernel processes of a home."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "keeper.py" in " ".join(line):
            continue
        if any("inkernel" in word for word in line) and any(str(home) in w for w in line):
            found.append(process)
    return found


def test_a_killed_host_loses_nothing_of_a_running_cell(host: Start, marker: Path) -> None:
    """kill -9 of the host in a cell: the cell goes on in the same kernel, its objects are
    untouched, and the output of the gap is complete."""
    first = host(
        "s = cave.open('gap')\n"
        "s.run('y = 41; token = object(); ident = id(token)')\n"
        "print('ready', s.kernel.pid)\n"
        "print('go')\n"
        f"s.run('''import time\nfor i in range(12):\n    print('line', i, flush=True)\n"
        f"    open({str(marker)!r}, 'w').write(str(i))\n    time.sleep(0.15)''')\n"
    )
    first.wait_for("go")
    wait_until(lambda: marker.exists() and marker.read_text() not in ("", "0"))
    first.kill()
    s = cave.open("gap")
    after = s.run("print(y, id(token) == ident)")
    assert after.text == "41 True"
    assert [c.status for c in s.history] == ["ok"] * 3
    assert s.history[2].text.splitlines() == [f"line {i}" for i in range(12)]
    started = [e for e in s.events() if isinstance(e, KernelStarted)]
    assert [e.pid for e in started] == [s.kernel.pid]


def test_a_cell_that_ended_while_no_host_lived_is_whole(host: Start, marker: Path) -> None:
    """The end of a cell that came after its host died is read from the spool, with the error."""
    first = host(
        "s = cave.open('ended')\nprint('go')\n"
        f"s.run('''import time\nprint('one')\nopen({str(marker)!r}, 'w').close()\n"
        "time.sleep(1)\nz = 7\nprint('two')\n1 / 0''')\n"
    )
    first.wait_for("go")
    wait_until(marker.exists)
    first.kill()
    time.sleep(2)
    s = cave.open("ended")
    assert s["z"] == 7
    cell = s.history[1]
    assert cell.status == "error"
    assert cell.text.splitlines() == ["one", "two", "ZeroDivisionError: division by zero"]


def test_there_is_exactly_one_kernel_after_a_host_dies(host: Start, home: Path) -> None:
    """A killed host leaves one kernel, and the next owner uses that one."""
    first = host("s = cave.open('one')\ns.run('y = 41')\nprint('go')\nimport time; time.sleep(60)")
    first.wait_for("go")
    first.kill()
    assert len({p.pid for p in kernels_of(home)}) == 1
    s = cave.open("one")
    assert s["y"] == 41
    assert len({p.pid for p in kernels_of(home)}) == 1


def test_a_killed_kernel_is_known_at_once_and_named(sessions: None) -> None:
    """kill -9 of the kernel from outside: the cell ends long before its code would, with the
    signal, and the session works at once with the objects as they were, but for the lost ones,
    by name."""
    s = cave.open("outside")
    s.run("y = 41\nsteps = (i for i in 'ab')")
    pid = s.kernel.pid
    assert pid is not None
    killed: list[float] = []

    def kill() -> None:
        wait_until(lambda: s._inner._fold.running is not None)
        time.sleep(0.3)
        killed.append(time.monotonic())
        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    cell = s.run("print('begun', flush=True)\nimport time\ntime.sleep(60)")
    known = time.monotonic() - killed[0]
    thread.join()
    assert known < 30
    assert cell.status == "died"
    assert not cell.kept
    assert "signal 9" in str(cell.error)
    assert "as it was after cell 1, without steps (generator)" in str(cell.error)
    assert "begun" in cell.text
    assert s.run("1 + 1").text == "2"
    assert s.run("print(y)").text == "41"
    assert "generator" in str(s.run("next(steps)").error)
    ended = [e for e in s.events() if isinstance(e, KernelEnded)]
    assert [(e.signal, [v.name for v in e.lost]) for e in ended] == [(9, ["steps"])]


def test_an_exit_status_is_told(sessions: None) -> None:
    """os._exit in a cell is the kernel's death, with its status."""
    s = cave.open("status")
    cell = s.run("import os\nos._exit(3)")
    assert cell.status == "died"
    assert "exit status 3" in str(cell.error)
    assert s.run("1").ok


def test_both_dead_is_told_with_the_partial_output(host: Start, marker: Path) -> None:
    """Host and kernel killed in a cell: the cell is journaled as died with what it had put
    out, the objects are as before it, and it is not run again."""
    first = host(
        "s = cave.open('both')\ns.run('y = 41')\nprint('go')\n"
        f"s.run('''import time\nprint('partial', flush=True)\n"
        f"f = open({str(marker)!r}, 'a'); f.write('x'); f.close()\ntime.sleep(60)''')\n"
    )
    first.wait_for("go")
    wait_until(marker.exists)
    time.sleep(0.5)
    first.kill()
    s_pid = next(e.pid for e in _events("both") if isinstance(e, KernelStarted))
    os.kill(s_pid, signal.SIGKILL)
    s = cave.open("both")
    cell = s.history[2]
    assert cell.status == "died"
    assert "partial" in cell.text
    assert "as it was after cell 1" in str(cell.error)
    assert s["y"] == 41
    assert marker.read_text() == "x"
    assert s.run("2").text == "2"


def _events(name: str) -> list[cave.events.Event]:  # type: ignore[name-defined]
    from cave.cli.look import events

    return events(name)


def test_a_turn_goes_on_in_another_process(host: Start, marker: Path, tmp_path: Path) -> None:
    """A host killed in the middle of a turn: the turn waits, and resume goes on with the same
    objects, without running a finished cell again."""
    steps = tmp_path / "steps.py"
    steps.write_text(
        f"steps = ['n = 1', '''import time\nopen({str(marker)!r}, 'w').close()\n"
        "time.sleep(1.5)\nn += 1''']\n"
    )
    first = host(f"s = cave.open('turn', operator='script:{steps}')\nprint('go')\ns.ask('count')")
    first.wait_for("go")
    wait_until(marker.exists)
    first.kill()
    s = cave.open("turn", operator=["n += 1\nprint(n)"])
    assert s.pending is not None
    assert s.pending.prompt == "count"
    turn = s.resume()
    assert isinstance(turn, cave.Turn)
    assert (turn.status, turn.answer) == ("done", "3")
    assert [c.source[:1] for c in turn.cells] == ["n", "i", "n"]
    assert s["n"] == 3


def test_a_second_process_is_told_who_works_and_may_read(host: Start) -> None:
    """While one process operates another gets SessionBusy with its pid, may read and
    interrupt, and may wait."""
    first = host(
        "s = cave.open('busy')\ns.run('y = 41')\nprint('go')\n"
        "c = s.run('import time\\ntime.sleep(60)')\nprint(c.status)\nprint(s.run('y').text)"
    )
    first.wait_for("go")
    wait_until(lambda: any(isinstance(e, CellStarted) and e.cell == 2 for e in _events("busy")))
    s = cave.open("busy")
    with pytest.raises(cave.SessionBusy) as caught:
        s.run("1")
    assert caught.value.pid == first.pid
    assert s.history[1].ok
    assert [v.name for v in s.vars] == ["y"]
    assert s.interrupt().stopped
    first.wait_for("interrupted")
    first.wait_for("41")
    assert first.end() == 0
    assert s.run("y").text == "41"


def test_a_stopped_host_that_wakes_up_late_is_refused(
    host: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP of the owner, takeover by another, SIGCONT: neither store nor kernel obeys it."""
    first = host(
        "import time\ns = cave.open('fence')\ns.run('y = 41')\nprint('go')\n"
        "import sys; sys.stdin = open('/dev/stdin')\n"
        "time.sleep(2)\n"
        "print(s.run('y += 1').text)\n"
        "print('woke')\ntime.sleep(60)"
    )
    first.wait_for("go")
    first.send(signal.SIGSTOP)
    s = cave.open("fence")
    assert s.run("y").text == "41"
    first.send(signal.SIGCONT)
    first.wait_for("woke")
    assert s["y"] == 42
    numbers = [e.cell for e in s.events() if isinstance(e, CellFinished)]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize(
    "point",
    [
        "turn.before_row",
        "step.before_row",
        "step.before_settle",
        "cell.before_send",
        "cell.before_finish",
        "store.before_commit@6",
        "store.after_commit@6",
    ],
)
def test_a_host_killed_at_a_failpoint_leaves_a_session_that_works(host: Start, point: str) -> None:
    """At each failpoint: the journal is whole, nothing acknowledged is lost, no cell ran twice,
    and the session goes on."""
    name, _, after = point.partition("@")
    armed = f"{name}=kill" + (f"@{after}" if after else "")
    first = host(
        "from cave import failpoints\n"
        "s = cave.open('fp', operator=['n = n + 1', 'print(n)'])\n"
        "s.run('n = 1')\nprint('go')\n"
        f"import os\nname, action = {armed!r}.split('=')\n"
        "action, _, after = action.partition('@')\n"
        "failpoints.arm(name, action, after=int(after or 1))\n"
        "s.ask('count')\nprint('not reached')"
    )
    first.wait_for("go")
    assert first.end() == -signal.SIGKILL
    s = cave.open("fp", operator=["n = n + 1", "print(n)"])
    from cave.doctor import verify

    assert verify("fp")[0].state == "ok"
    assert s.run("n").ok
    if name == "cell.before_send":
        assert s.history[2].status == "interrupted"
        assert "did not run" in str(s.history[2].error)
    ran = [c.source for c in s.history if c.source == "n = n + 1" and c.ok]
    assert s["n"] == 1 + len(ran)
    if s.pending is not None:
        s.resume()
    assert s.ask("again").status == "done"
    assert not [e for e in s.events() if isinstance(e, TurnFinished) and e.status == "failed"]
