"""A host that is killed while a cell waits for its answer: `python _cut_call.py ROOT`."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import cave
from cave.kernel import Launch, start
from cave.ports import Declared


@cave.skill(runs="host")
def double(x: Any) -> Any:
    """Twice as much."""
    return x * 2


async def on_call(*_: Any) -> Any:
    print("called", flush=True)
    await asyncio.Event().wait()


async def main(root: Path) -> None:
    (root / "work").mkdir(exist_ok=True)
    kernel = await start(Launch("cut", root / "session", root / "work", root / "run", 1))
    await kernel.catch_up(lease=1, after=0, running=None)
    kernel.on_call = on_call
    await kernel.define([Declared(double.declaration())], lease=1)
    await kernel.execute("print(double(21))", cell=1, lease=1)


asyncio.run(main(Path(sys.argv[1])))
