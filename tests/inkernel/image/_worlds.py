"""Kinds of objects from one process to another: made and written in one, read and used in the next.

A kind is a piece of code that makes variables, and one that uses them. Many kinds share a
pair of processes, each with a real `__main__`; every kind is a group of its own, and the
definitions are written as a group for all of them, as an image has them.
"""

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

try:
    import pytest
except ImportError:  # inside the processes it is not needed
    pytest = None

TESTS = Path(__file__).parents[2]
DEADLINE = 120


@dataclass
class World:
    """What came of some kinds: by kind what went wrong, and the notes of both sides."""

    wrong: dict[str, str] = field(default_factory=dict)
    notes: dict[str, list[list[str]]] = field(default_factory=dict)
    """Per kind: lists of kind, name, type, reason, path."""
    output: str = ""

    def noted(self, kind: str) -> set[tuple[str, str]]:
        """Kind and name of each note."""
        return {(note[0], note[1]) for note in self.notes[kind]}


def cross(
    kinds: Mapping[str, tuple[str, str]],
    folder: Path,
    *,
    python: str = sys.executable,
    into: str | None = None,
) -> World:
    """Make kinds in a process of `python`, use them in one of `into`."""
    file = folder / "world.pickle"
    made = _run(python, "write", file, {name: kind[0] for name, kind in kinds.items()}, folder)
    used = _run(into or python, "read", file, {name: kind[1] for name, kind in kinds.items()},
                folder)  # fmt: skip
    notes = {name: made["notes"].get(name, []) + used["notes"].get(name, []) for name in kinds}
    wrong = {name: made["wrong"].get(name) or used["wrong"].get(name) or "" for name in kinds}
    return World(wrong, notes, made["output"] + used["output"])


def another(version: str) -> str:
    """Another Python of that minor version that can run a kernel; skips when there is none."""
    python = shutil.which(f"python{version}")
    if python is not None and not sys.version.startswith(version):
        asked = [python, "-c", "import ipykernel, dill"]
        if not subprocess.run(asked, capture_output=True, check=False).returncode:
            return python
    return str(pytest.skip(f"there is no other Python {version} with ipykernel and dill here"))


def _run(python: str, task: str, file: Path, code: Mapping[str, str], folder: Path) -> dict:
    environment = dict(os.environ, PYTHONHASHSEED="7", PYTHONWARNINGS="ignore")
    done = subprocess.run(
        [python, __file__, task, str(file)],
        input=json.dumps(code), capture_output=True, text=True, timeout=DEADLINE,
        cwd=folder, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *output, answer = done.stdout.splitlines()
    return {"output": "\n".join(output), **json.loads(answer)}


# -- inside the processes: `__main__` is the user's, these are kept elsewhere ------------------


def _write(file: str, code: dict[str, str], main: dict[str, object], load) -> dict:
    definitions = load("image.definitions").Definitions()
    write = load("image.pickler").write
    wrong, groups, cut = {}, {}, {}
    for kind, text in code.items():
        before = dict(main)
        try:
            _cell(f"<cell {kind}>", text, main)
        except Exception as error:  # noqa: BLE001 (code under test)
            wrong[kind] = f"making: {type(error).__name__}: {error}"
            continue
        names = [name for name, value in main.items()
                 if name not in before or before[name] is not value]  # fmt: skip
        groups[kind] = {name: main[name] for name in names if name != "__builtins__"}
    for kind, roots in groups.items():
        cut[kind] = write(roots, definitions)
    shared: dict[str, object] = {}
    while True:
        uses = set().union(*(written.uses for written in cut.values()))
        roots = {f"def:{key}": definitions.find(key) for key in sorted(uses)}
        brought = write(roots | shared, definitions, inline=True)
        moved = [
            kind
            for kind, written in cut.items()
            if written.members & brought.members and not groups[kind].keys() <= shared.keys()
        ]
        if not moved:
            break
        for kind in moved:
            shared |= groups[kind]
    notes = {kind: [] for kind in groups}
    parts = [("", [], brought)]
    for kind, written in cut.items():
        if groups[kind].keys() <= shared.keys():
            found = [note for note in brought.notes if note.name in groups[kind]]
        else:
            parts.append((kind, list(groups[kind]), written))
            found = written.notes
        notes[kind] = [[n.kind, n.name, n.type, n.reason, n.path] for n in found]
    with Path(file).open("wb") as out:
        pickle.dump([(kind, bytes(written.stream), [bytes(b.raw()) for b in written.buffers])
                     for kind, _, written in parts], out)  # fmt: skip
    return {"wrong": wrong, "notes": notes}


def _read(file: str, code: dict[str, str], main: dict[str, object], load) -> dict:
    import mmap

    definitions = load("image.definitions").Definitions()
    read = load("image.reader").read
    notes, wrong = {}, {}
    with Path(file).open("rb") as data:
        parts = pickle.load(data)
    for kind, stream, outside in parts:
        views = []
        for buffer in outside:
            memory = mmap.mmap(-1, len(buffer))
            memory[:] = buffer
            views.append(memoryview(memory))
        loaded = read(stream, views, definitions)
        notes[kind] = [[n.kind, n.name, n.type, n.reason, n.path] for n in loaded.notes]
        main.update({name: value for name, value in loaded.roots.items() if ":" not in name})
    for kind, text in code.items():
        try:
            _cell(f"<check {kind}>", text, main)
        except Exception as error:  # noqa: BLE001 (code under test)
            import traceback

            line = traceback.extract_tb(error.__traceback__)[-1].line
            wrong[kind] = (
                f"{type(error).__name__}: {error} at {line}; notes {notes.get(kind)} {notes['']}"
            )
    return {"wrong": wrong, "notes": notes}


def _cell(name: str, text: str, main: dict[str, object]) -> None:
    import linecache
    import textwrap

    text = textwrap.dedent(text).strip("\n") + "\n"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    exec(compile(text, name, "exec", dont_inherit=True), main)


def _inside(task: str, file: str) -> None:
    import importlib

    sys.path.insert(0, str(TESTS))
    load = importlib.import_module("_inkernel").load
    sys.path.pop(0)
    code = json.load(sys.stdin)
    me = sys.modules["__main__"]
    main = sys.modules["__main__"] = type(me)("__main__")
    work = _write if task == "write" else _read
    answer = work(file, code, main.__dict__, load)
    sys.stdout.flush()
    print(json.dumps(answer), flush=True)
    os._exit(0)


if __name__ == "__main__":
    _inside(*sys.argv[1:])
