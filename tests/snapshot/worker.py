"""A process that writes snapshots until it is killed: `worker.py FOLDER SEED [ROUNDS]`.

What it writes follows from the seed alone, so that who killed it knows what must be there.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from cave.snapshot import Manifest
from tests.snapshot._images import CHUNK, World, content, opened, write


def worlds(seed: int) -> list[tuple[str, World]]:
    """The snapshots of a seed, in their order."""
    chance = random.Random(seed)
    made: list[tuple[str, World]] = []
    world: World = {"df": content("frame", chance.randbytes(CHUNK * 150))}
    for number in range(1, 13):
        frame = bytearray(world["df"].buffers["b0"])
        at = chance.randrange(len(frame) - 8)
        frame[at : at + 8] = chance.randbytes(8)
        world = {**world, "df": content(f"frame {number}", bytes(frame))}
        world[f"v{chance.randrange(5)}"] = content(chance.randbytes(chance.randrange(1, 60_000)))
        made.append((f"{number:06d}-{chance.getrandbits(32):08x}", world))
    return made


def main(folder: str, seed: str, *, keep: int = 3) -> None:
    store = opened(Path(folder))
    before: tuple[Manifest, World] | None = None
    for id, world in worlds(int(seed)):
        before = write(store, id, world, before), world
        print(id, flush=True)
        store.retire(set(list(store.ids())[-keep:]))


if __name__ == "__main__":
    main(*sys.argv[1:])
