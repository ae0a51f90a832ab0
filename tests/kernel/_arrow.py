"""Reads mutated Arrow streams as `s.get` does: `python -m tests.kernel._arrow SEED COUNT`.

In a process of its own, which says what it is at: a stream that crashes the reader ends it.
"""

from __future__ import annotations

import contextlib
import decimal
import random
import sys
import warnings
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa

from cave.errors import NotPortable
from cave.kernel import values
from cave.kernel.values import Parcel
from tests.kernel._crossing import kernel

ROWS = 50
HARD = (
    b"\xff" * 8, b"\0" * 8, (1 << 62).to_bytes(8, "little"), (1 << 40).to_bytes(8, "little"),
    b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\xff" * 4,
)  # fmt: skip
"""Lengths and offsets that nothing has."""


def columns() -> dict[str, Any]:
    """One of each layout that Arrow has."""
    n, half = range(ROWS), range(ROWS // 2)
    kinds = pa.array([0, 1] * len(half), pa.int8())
    texts = pa.array([str(i) for i in n])
    return {
        "ints": pa.array(n),
        "floats": pa.array([float(i) if i % 7 else None for i in n]),
        "texts": pa.array([f"text {i}" if i % 5 else None for i in n]),
        "large": pa.array([f"t{i}" for i in n], pa.large_string()),
        "truths": pa.array([i % 2 == 0 for i in n]),
        "bytes": pa.array([bytes([i]) * i for i in n]),
        "lists": pa.array([[i] * (i % 4) for i in n]),
        "large lists": pa.array([[i] * (i % 4) for i in n], pa.large_list(pa.int16())),
        "structs": pa.array([{"a": i, "b": str(i)} for i in n]),
        "dictionary": pa.array([f"c{i % 3}" for i in n]).dictionary_encode(),
        "times": pa.array([i * 86_400_000_000 for i in n], pa.timestamp("us", "UTC")),
        "decimals": pa.array([decimal.Decimal(i) for i in n]),
        "maps": pa.array([[("k", i)] for i in n], pa.map_(pa.string(), pa.int64())),
        "pairs": pa.array([[i, i] for i in n], pa.list_(pa.int8(), 2)),
        "nothing": pa.nulls(ROWS),
        "sparse": pa.UnionArray.from_sparse(kinds, [pa.array(n), texts]),
        "dense": pa.UnionArray.from_dense(
            kinds, pa.array([i // 2 for i in n], pa.int32()), [pa.array(n), texts]
        ),
        "runs": pa.RunEndEncodedArray.from_arrays(pa.array([9, ROWS], pa.int32()), ["x", "y"]),
        "views": pa.array([f"a text that is not inline {i}" for i in n], pa.string_view()),
        "list views": pa.array([[i] for i in n], pa.list_view(pa.int32())),
    }


def parcels() -> list[tuple[bytes, list[bytes]]]:
    """What a kernel sends for tables and frames; the last one nobody but a hostile one does."""
    table = pa.table(columns())
    frame = pd.DataFrame(
        {
            "s": pd.array(["a", "b", None] * 9, dtype="string[pyarrow]"),
            "i": pd.array(range(27), dtype="int64[pyarrow]"),
            "c": pd.Categorical(["x", "y", "z"] * 9),
        }
    )
    objects = [table, table.select(["ints", "texts", "dictionary"]), table.to_batches()[0],
               table.select(["structs", "lists", "maps"]), table["texts"], table.schema, frame,
               pa.array([1, 2, None]), pl.DataFrame({"a": [1, 2], "b": ["x", None]})]  # fmt: skip
    found = []
    for obj in objects:
        _, header, buffers = kernel.dump("v", obj, allow_pickle=False)
        found.append((header, [bytes(buffer) for buffer in buffers]))
    return [*found, compressed(table)]


def compressed(table: Any) -> tuple[bytes, list[bytes]]:
    """A parcel of a table whose stream is compressed."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    data = sink.getvalue().to_pybytes()
    return b'["cave",1,["pa.table",[0,0,%d]]]' % len(data), [data]


def mutated(draw: random.Random, data: bytes) -> bytes:
    """The bytes with some of them changed, lost, added, or made numbers that mean too much."""
    found = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        at = draw.randrange(len(found) + 1)
        match draw.randrange(6):
            case 0:
                found[at : at + 1] = draw.randbytes(1)
            case 1 if at < len(found):
                found[at] ^= 1 << draw.randrange(8)
            case 2:
                del found[at:]
            case 3:
                found[at:at] = draw.randbytes(draw.randrange(1, 9))
            case 4:
                del found[at : at + draw.randrange(1, 64)]
            case _:
                hard = draw.choice(HARD)
                at -= at % len(hard)
                found[at : at + len(hard)] = hard
    return bytes(found)


def use(value: Any) -> None:
    """Look at all of it, as a notebook would."""
    with warnings.catch_warnings(), contextlib.suppress(Exception):  # any error, no crash
        warnings.simplefilter("ignore")
        str(value)
        for name in ("to_pylist", "to_pandas", "describe"):
            if hasattr(value, name):
                getattr(value, name)()


def main(seed: str, count: str) -> None:
    """Read so many, and say how many gave a value."""
    sources, came = parcels(), 0
    for number in range(int(count)):
        print("at", number, flush=True)
        draw = random.Random(f"{seed}-{number}")
        header, buffers = draw.choice(sources)
        buffers = list(buffers)
        largest = max(range(len(buffers)), key=lambda n: len(buffers[n]))
        at = largest if draw.random() < 0.8 else draw.randrange(len(buffers))
        buffers[at] = mutated(draw, buffers[at])
        try:
            value = values.unpack(Parcel("safe", header, buffers), name="v")
        except NotPortable:
            continue
        came += 1
        use(value)
    print("came", came)


if __name__ == "__main__":
    main(*sys.argv[1:])
