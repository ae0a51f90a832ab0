"""Images that a cell's request asks for: taken right behind the cell, and told apart from it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cave.errors import KernelDied, LeaseLost
from cave.image import Image
from cave.ports import Executed, Wanted
from tests.kernel._host import Host

from .test_images import given

WAIT = """
import os, time
while not os.path.exists({path!r}):
    time.sleep(0.01)
"""
HELD = """
import os, time
class Held:
    def __reduce__(self):
        while not os.path.exists({path!r}):
            time.sleep(0.01)
        return (int, (7,))
held = Held()
"""


@pytest.fixture
def host(make_host: Callable[..., Host]) -> Host:
    """A host with a kernel of its own: images tell of all that is in it."""
    host = make_host()
    host.start()
    return host


def ran(host: Host, source: str, wanted: Wanted, **options: Any) -> Executed:
    return host(host.send(source, wanted=wanted, **options))


def came(host: Host, wanted: Wanted) -> Image:
    async def whole() -> Image:
        assert wanted.work is not None
        image: Image = await (await wanted.work).image()
        return image

    return host(whole())


def test_images_come_behind_cells_as_differences(host: Host) -> None:
    """Each cell's request brings the image after it, a difference from the one before; also
    after a fault and an interrupt."""
    one, two, three = Wanted("one", None), Wanted("two", "one"), Wanted("three", "two")
    assert ran(host, "a = [1]; b = [2]", one).status == "ok"
    assert given(came(host, one)) == {"a", "b"}
    assert ran(host, "a.append(2); 1 / 0", two).status == "error"
    assert given(came(host, two)) == {"a"}
    assert ran(host, "b.append(1)\nwhile True: pass", three, timeout=0.5).status == "timeout"
    image = came(host, three)
    assert (image.base, given(image)) == ("two", {"b"})


def test_the_end_of_a_cell_does_not_wait_for_its_image(host: Host, tmp_path: Path) -> None:
    """While the image is still being written the cell has ended."""
    go, wanted = tmp_path / "go", Wanted("one", None)
    assert ran(host, HELD.format(path=str(go)), wanted).status == "ok"
    assert wanted.work is not None
    assert not wanted.work.done()
    go.touch()
    assert "held" in given(came(host, wanted))


def test_nothing_comes_between_a_cell_and_its_image(host: Host, tmp_path: Path) -> None:
    """A request that is there already waits: the image is of the moment after its own cell."""
    first, second = Wanted("one", None), Wanted("two", "one")
    gate = tmp_path / "gate"
    wait = "a = [1]\n" + WAIT.format(path=str(gate))

    async def both() -> None:
        cells = [asyncio.ensure_future(host.send(wait, wanted=first))]
        cells.append(asyncio.ensure_future(host.send("del a; b = 1", wanted=second)))
        await asyncio.sleep(0.2)
        gate.touch()
        await asyncio.gather(*cells)

    host(both())
    names = [{n for group in came(host, w).groups for n in group.names} for w in (first, second)]
    assert "a" in names[0]
    assert "b" not in names[0]
    assert "a" not in names[1]
    assert "b" in names[1]


def test_a_kernel_that_dies_behind_its_cell_gives_none(host: Host, tmp_path: Path) -> None:
    """kill -9 in the cell, or between its end and its image: no image, and who waits is told."""
    wanted = Wanted("one", None)
    assert ran(host, HELD.format(path=str(tmp_path / "never")), wanted).status == "ok"
    os.kill(host.kernel.record.pid, signal.SIGKILL)
    with pytest.raises(KernelDied):
        came(host, wanted)
    host.start(2)
    wanted = Wanted("two", None)
    assert ran(host, "import os; os.kill(os.getpid(), 9)", wanted).status == "died"
    assert wanted.work is None


def test_a_host_that_was_superseded_gets_no_image(host: Host, tmp_path: Path) -> None:
    """Another host takes over while the cell runs: the image behind it is refused, and what the
    kernel knows of the one before is as it was."""
    first, late = Wanted("one", None), Wanted("two", "one")
    ran(host, "a = [1]; b = [2]", first)
    came(host, first)
    gate = tmp_path / "gate"
    wait = (
        f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\na.append(2)"
    )

    async def superseded() -> None:
        cell = asyncio.ensure_future(host.send(wait, wanted=late))
        await asyncio.sleep(0.2)
        hello = await host.kernel.client.request("control", "cave_hello_request", lease=2)
        assert hello.content["lease"] == 2
        gate.touch()
        await cell

    host(superseded())
    with pytest.raises(LeaseLost):
        came(host, late)
    host.lease = 2
    third = Wanted("three", "one")
    ran(host, "None", third)
    image = came(host, third)
    assert (image.base, given(image)) == ("one", {"a", "os", "time"})


def test_a_cell_that_is_refused_leaves_nobody_waiting(host: Host) -> None:
    """Under a lease that is over neither the cell nor its image is done."""
    host.lease = 5
    host.run("a = 1")
    wanted = Wanted("one", None)
    with pytest.raises(LeaseLost):
        ran(host, "a = 2", wanted, lease=4)
    assert wanted.work is None
    assert host(host.kernel.status())["lease"] == 5


def test_a_kernel_whose_host_lives_leaves_no_image_behind(
    make_host: Callable[..., Host], tmp_path: Path
) -> None:
    """An image that came is the host's to keep; one of which the host never said so may have
    been lost with it, and is left behind."""
    host = make_host(pending_after=0.3)
    host.start()
    left = host.root / "session" / "kernels" / "1" / "pending" / "image"
    wanted = Wanted("one", None)
    ran(host, "a = [1]", wanted)
    came(host, wanted)
    host(asyncio.sleep(1.0))
    assert not left.exists()
    wanted = Wanted("two", "one")
    ran(host, "a.append(2)", wanted)
    came(host, wanted)
    (host.root / "session" / "kernels" / "1" / "taken").write_text("one")  # as if it had died
    deadline = time.monotonic() + 30
    while not left.exists():
        assert time.monotonic() < deadline
        host(asyncio.sleep(0.05))
