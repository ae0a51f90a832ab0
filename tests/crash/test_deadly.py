"""Objects that end the kernel which writes or reads them: the session opens, without them."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import cave
from cave.errors import KernelDied
from cave.lineage import Lineage
from tests.time._kill import kill

# cells that no snapshot has are lost where nothing confines them; confined ones run again
pytestmark = pytest.mark.usefixtures("sessions", "unconfined")

DEADLY = (
    "class Exit:\n"
    "    def __init__(self):\n        self.n = 1\n"
    "    def __setstate__(self, state):\n        import os\n        os._exit(3)\n"
    "class Segfault(Exit):\n"
    "    def __setstate__(self, state):\n        import ctypes\n        ctypes.string_at(0)\n"
)


def lost(s: cave.Session) -> dict[str, str]:
    assert s.last_restore is not None
    return {entry.name: entry.reason for entry in s.last_restore.lost}


def test_objects_that_end_the_kernel_on_the_way_back_cost_themselves() -> None:
    """os._exit and a segmentation fault in __setstate__: the session opens with all other
    variables, names these two and what shares something with them, and says so ever after."""
    s = cave.open("deadly")
    s.run(f"{DEADLY}ok = [1]\nalias = ok\nbad = Exit()\nmine = [2]\nworse = [mine, Segfault()]")
    kill(s)
    assert s.run("print(ok, alias is ok)").text.strip() == "[1] True"
    assert lost(s) == dict.fromkeys(("bad", "mine", "worse"), "reading it ended the kernel")
    assert "reading it ended the kernel" in str(s.run("bad.n").error)
    assert {v.name: v.fidelity for v in s.vars}["worse"] == "lost"
    number = s.kernel.number
    kill(s)
    assert s.run("ok.append(2); print(alias)").text.strip() == "[1, 2]"
    assert lost(s).keys() == {"bad", "mine", "worse"}
    assert s.kernel.number == number + 1


def test_going_to_a_deadly_moment_costs_the_kernel_and_nothing_else() -> None:
    """restore(at=...) of such an object: KernelDied names it; the next call has the namespace
    that was before."""
    s = cave.open("asked")
    s.run(f"{DEADLY}bad = Exit()")
    s.run("del bad\nx = 1")
    with pytest.raises(cave.KernelDied, match="bad"):
        s.restore(at=1)
    assert s["x"] == 1
    assert "bad" not in s


def test_a_kernel_that_dies_while_it_is_imaged_leaves_what_was_durable() -> None:
    """os._exit in __reduce__: the cell is ok and not durable; the namespace of the cell before
    is back, what is missing is named, and the next cell is durable."""
    s = cave.open("imaged")
    s.run("x = [1]")
    cell = s.run(
        "class R:\n    def __reduce__(self):\n        import os\n        os._exit(5)\n"
        "r = R(); y = 2; x.append(2)"
    )
    assert (cell.status, cell.durable) == ("ok", False)
    assert s.run("print(x)").text.strip() == "[1]"
    assert lost(s).keys() == {"R", "r", "y"}
    assert s.last_restore is not None
    assert s.last_restore.undone == (2,)
    assert s.run("z = 1").durable


def test_a_session_opens_when_nobody_knows_what_ends_its_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two kernels die of the way back, at no variable: the third begins with nothing, every
    variable is lost by name, and the snapshot can still be gone to."""
    s = cave.open("unknown")
    s.run("x = 1; y = 2")
    bring_back = Lineage.bring_back

    async def dies(self: Lineage, kernel: Any, number: int, **how: Any) -> Any:
        os.kill(kernel.facts.pid, signal.SIGKILL)
        while await kernel.alive():
            pass
        raise KernelDied("killed")

    monkeypatch.setattr(Lineage, "bring_back", dies)
    kill(s)
    assert "lost with an earlier kernel" in str(s.run("x").error)
    assert lost(s) == dict.fromkeys("xy", "restoring it ended the kernel")
    assert s.kernel.number == 4
    monkeypatch.setattr(Lineage, "bring_back", bring_back)
    assert s.restore(at=1).exact
    assert s["x"] == 1
