"""What vetting costs: the check of a cell before it runs, and the cell itself, in one process.

`python benchmarks/vetting.py [ROUNDS]`. Processor time, the least of some rounds. Beside it stands
RestrictedPython's own way: its rewritten code with guards.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from RestrictedPython.compile import compile_restricted
from RestrictedPython.Eval import default_guarded_getitem, default_guarded_getiter
from RestrictedPython.Guards import (
    guarded_iter_unpack_sequence,
    safe_globals,
    safer_getattr,
)

from cave.policy.vetting import refusal

CELLS = {
    "tight loop": "total = 0\nfor i in range(300_000):\n    total = total + i\n",
    "attributes": "import fractions\nx = fractions.Fraction(1, 3)\nfor i in range(50_000):\n"
    "    y = x.numerator + x.denominator\n",
    "pandas": "g = df.groupby('k')['v'].agg(['sum', 'mean', 'max'])\ntop = g.sort_values('sum')\n",
    "200 lines": "\n".join(f"a{n} = [i * {n} for i in range(10) if i % 2]" for n in range(200)),
}


def least(work: Callable[[], object], rounds: int) -> float:
    """Milliseconds of processor time."""
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return best * 1000


def space() -> dict[str, Any]:
    rows = np.arange(200_000)
    return {"df": pd.DataFrame({"k": rows % 100, "v": rows * 0.5})}


def guarded() -> dict[str, Any]:
    built = {**safe_globals["__builtins__"], "__import__": __import__}
    return {
        "__builtins__": built,
        "_getattr_": safer_getattr,
        "_getitem_": default_guarded_getitem,
        "_getiter_": default_guarded_getiter,
        "_iter_unpack_sequence_": guarded_iter_unpack_sequence,
        **space(),
    }


def main(rounds: int) -> None:
    print(f"{'cell':12} {'check, ms':>10} {'cell, ms':>10} {'both/cell':>10} {'guards/cell':>12}")
    for name, cell in CELLS.items():
        plain = compile(cell, name, "exec")
        strict = compile_restricted(cell, name, "exec")
        open_space, closed = space(), guarded()
        check = least(partial(refusal, cell), rounds)
        runs = least(partial(exec, plain, open_space), rounds)
        guards = least(partial(exec, strict, closed), rounds)
        ratios = f"{(check + runs) / runs:10.2f} {guards / runs:12.2f}"
        print(f"{name:12} {check:10.2f} {runs:10.2f} {ratios}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
