"""A host that starts a kernel, runs a cell and is killed: `python _cut_host.py ROOT SOURCE`."""

import asyncio
import sys
from pathlib import Path

from cave.kernel import Launch, start


async def main(root: Path, source: str) -> None:
    (root / "work").mkdir(exist_ok=True)
    kernel = await start(Launch("cut", root / "session", root / "work", root / "run", 1))
    await kernel.catch_up(lease=1, after=0, running=None)
    first = await kernel.execute("y = 41; print('first')", cell=1, lease=1)
    print(first.spool, flush=True)
    done = await kernel.execute(
        source, cell=2, lease=1, on_output=lambda out: print(out.text.strip(), flush=True)
    )
    print("ended", done.status, flush=True)
    try:
        done = await kernel.execute("print('after')", cell=3, lease=1)
        print(done.status, flush=True)
    except RuntimeError as exc:
        print(type(exc).__name__, flush=True)
    await kernel.detach()


asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
