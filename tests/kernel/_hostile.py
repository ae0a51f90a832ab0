"""A hostile kernel for the tests: it has the key, knows every message, and changes all of it.

`recorded` has a real kernel answer everything once. `Forger` makes of these messages others:
parts, fields and types exchanged, numbers and depths that nobody can hold, other parents, bytes
flipped. `Victim` is the host's side of a kernel, whose messages the test makes.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import os
import random
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cave
from cave.errors import NotPortable, UnknownName
from cave.image import Load
from cave.kernel import Kernel
from cave.kernel.launch import Record
from cave.kernel.wire import Codec, Wire
from cave.ports import Caller, KernelFacts, SkillAnswer, SkillCall
from tests.kernel._desk import Desk
from tests.kernel._host import Host

KEY = "the key that the kernel has, too"
IMAGE = "image-of-the-fuzzer"
DELIMITER = b"<IDS|MSG>"


@dataclass(frozen=True)
class Sample:
    """One message as a real kernel sent it."""

    channel: str
    parts: tuple[bytes, ...]
    """Header, parent header, metadata, content."""
    buffers: tuple[bytes, ...]


Corpus = dict[str, list[Sample]]
"""By the kind of the request that they answer ('' for the calls of skills)."""


@cave.skill(runs="host")
def ask_back(x: Any) -> Any:
    """Twice as much."""
    return x * 2


@cave.skill(effect="write", runs="kernel")
def inside(x: Any) -> Any:
    """Twice as much, in the kernel."""
    return x * 2


SCENES = (
    "print('out'); import sys; print('err', file=sys.stderr); x = [1, 'a', 2.5]; x",
    """
from IPython.display import display, HTML, clear_output
h = display(HTML('<b>1</b>'), display_id='d')
h.update(HTML('<b>2</b>'))
print('\\r50%\\r60%')
""",
    """
import threading
go = threading.Event()
threading.Thread(target=lambda: (go.wait(), print('late'))).start()
1 / 0
""",
    "go.set()",
    "import pandas as pd\nframe = pd.DataFrame({'a': [1, 2], 's': ['x', None]})\nframe",
    "open('file.txt', 'w').write('x')\nwith_clear = 1\nclear_output(wait=True)\nprint('again')",
    "ask_back(frame), inside([1, {'k': 2}])\ny = ask_back(21)",
    "inside(None)",
    "del x",
)


@contextmanager
def recorded() -> Iterator[Corpus]:
    """What a real kernel sends, by what was asked of it."""
    found: Corpus = defaultdict(list)
    asked: dict[str, str] = {}
    take_in, send = Wire.take_in, Wire.send

    def heard(self: Wire, channel: str, frames: Sequence[bytes]) -> None:
        at = list(frames).index(DELIMITER)
        parts = tuple(map(bytes, frames[at + 2 : at + 6]))
        parent = json.loads(parts[1]).get("msg_id", "")
        sample = Sample(channel, parts, tuple(map(bytes, frames[at + 6 :])))
        found["" if channel == "stdin" else asked.get(parent, "other")].append(sample)
        take_in(self, channel, frames)

    def sent(self: Wire, channel: Any, kind: str, content: Any, **options: Any) -> None:
        asked[options["msg_id"]] = kind
        send(self, channel, kind, content, **options)

    Wire.take_in, Wire.send = heard, sent  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory(prefix="cave-test-") as folder:
            _act(Host(Path(folder)))
    finally:
        Wire.take_in, Wire.send = take_in, send  # type: ignore[method-assign]
    yield dict(found)


def _act(host: Host) -> None:
    """Everything that a host can ask of a kernel."""
    try:
        kernel = host.start()
        Desk(host, ask_back, inside).open()
        late = asyncio.Event()
        kernel.on_late = lambda _: late.set()
        for source in SCENES:
            host.run(source)
        host(late.wait())
        host(kernel.put({"z": [1, 2], "f": b"x" * 100}, lease=1))
        for name in ("frame", "z", "h", "nothing"):
            with contextlib.suppress(NotPortable, UnknownName):
                host(kernel.get(name, lease=1))
        host(kernel.delete(["z"], lease=1))
        host(kernel.variables(lease=1))
        host(kernel.dill(lease=1))
        capture = host(kernel.snapshot(id=IMAGE, base=None, lease=1))
        host(capture.image())
        host(kernel.restore(load(), lease=1))
        host(kernel.versions(["numpy"]))
        host(kernel.status())
        host(kernel.admit_foreign(lease=1))
        host(kernel.catch_up(lease=1, after=0, running=None))
    finally:
        host.close()


def load() -> Load:
    """A restore that loses all."""
    return Load(id="other", chunk=4096, keep=(), groups=(), files=())


# -- forging ---------------------------------------------------------------------------------

_HUGE, _DEEP = "@@huge@@", "@@deep@@"
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**53, -(2**63), 10**400, 1.5, 1e308, float("nan"),
    float("inf"), "", "ok", "idle", "error", "stderr", "x" * 300, "\ud800", "\x00", "\u202e",
    "cave:9:forged", "cave:" + "9" * 5000 + ":x", "²", [], {}, [[]], [None, -1], ["\ud800"],
    {"name": 1}, [{"name": "n", "shape": [10**30, True]}], [[0, -1]], [[0, 2**62]],
    {"": {"\udfff": [float("-inf")]}}, "LeaseLost", "KeyError", "Unportable", _HUGE, _DEEP,
)  # fmt: skip


class Forger:
    """Makes messages of recorded ones, all by one source of chance."""

    def __init__(self, corpus: Corpus, draw: random.Random) -> None:
        self._all = [sample for samples in corpus.values() for sample in samples]
        self._draw = draw
        self._codec = Codec(KEY)
        self._strange = Codec("another key")
        self.number = 0

    def any(self) -> Sample:
        return self._draw.choice(self._all)

    def good(self, sample: Sample, parent: str, **content: Any) -> list[bytes]:
        """The message as an answer to this request."""
        header, above, metadata, told = sample.parts
        above = json.dumps({**json.loads(above), "msg_id": parent}).encode()
        if content:
            told = json.dumps({**json.loads(told), **content}).encode()
        return self._framed(sample, [header, above, metadata, told])

    def forged(
        self, sample: Sample, parents: Sequence[str], content: dict[str, Any]
    ) -> list[bytes]:
        """The message with something changed, in its structure or in its bytes."""
        draw = self._draw
        changed = draw.choices(range(4), (2, 1, 1, 12), k=draw.choice((1, 1, 1, 2, 4)))
        parts: dict[int, Any] = {at: json.loads(sample.parts[at]) for at in {1, *changed}}
        parts[1]["msg_id"] = draw.choice(parents)
        if content:
            parts[3] = {**json.loads(sample.parts[3]), **content}
        for at in changed:
            parts[at] = self._changed(parts[at])
        packed = list(sample.parts)
        for at, part in parts.items():
            packed[at] = self._packed(part)
        if draw.random() < 0.1:
            at = draw.randrange(4)
            packed[at] = self.scrambled(packed[at])
        frames = self._frames(sample, packed)
        return self._torn(frames) if draw.random() < 0.1 else frames

    def strange(self, sample: Sample, parent: str) -> list[bytes]:
        """A message that somebody without the key has made."""
        frames = self.good(sample, parent)
        at = frames.index(DELIMITER)
        frames[at + 1] = self._strange._sign(frames[at + 2 : at + 6])
        return frames

    def scrambled(self, data: bytes) -> bytes:
        draw, found = self._draw, bytearray(data)
        for _ in range(draw.choice((1, 1, 2, 5))):
            at = draw.randrange(len(found) + 1)
            match draw.randrange(4):
                case 0:
                    found[at : at + 1] = draw.randbytes(1)
                case 1:
                    del found[at:]
                case 2:
                    found[at:at] = draw.randbytes(draw.randrange(1, 9))
                case _:
                    found[at : at + 8] = draw.choice((b"\xff" * 8, b"\0" * 8, b"\x7f" + b"\0" * 7))
        return bytes(found)

    def _framed(self, sample: Sample, parts: list[bytes]) -> list[bytes]:
        head: list[bytes] = []
        if sample.channel == "iopub":
            self.number += 1
            head = [b"topic", b"%d" % self.number]
        return [*head, DELIMITER, self._codec._sign(parts), *parts, *sample.buffers]

    def _frames(self, sample: Sample, parts: list[bytes]) -> list[bytes]:
        frames = self._framed(replace(sample, buffers=self._buffers(sample)), parts)
        if frames[0] != DELIMITER and self._draw.random() < 0.01:
            frames[1] = self._draw.choice((b"", b"x", b"-1", b"9" * 30, b"9" * 5000, b"1_0"))
        return frames

    def _buffers(self, sample: Sample) -> tuple[bytes, ...]:
        buffers, chance = list(sample.buffers), self._draw.random()
        if buffers and chance < 0.3:
            at = self._draw.randrange(len(buffers))
            buffers[at] = self.scrambled(buffers[at])
        return tuple(buffers) if chance < 0.97 else (*buffers[1:], b"more")

    def _torn(self, frames: list[bytes]) -> list[bytes]:
        at = self._draw.randrange(len(frames))
        match self._draw.randrange(4):
            case 0:
                return frames[:at]
            case 1:
                return frames[:at] + frames[at + 1 :]
            case 2:
                return [*frames[:at], frames[at], *frames[at:]]
        frames[at] = self.scrambled(frames[at])
        return frames

    def _changed(self, tree: Any) -> Any:
        """One node, wherever it is, becomes something else."""
        draw = self._draw
        node = tree
        while True:
            if not isinstance(node, dict | list) or not node:
                return self._value()
            key = draw.choice(list(node)) if isinstance(node, dict) else draw.randrange(len(node))
            if not isinstance(node[key], dict | list) or not node[key] or draw.random() < 0.4:
                break
            node = node[key]
        match draw.randrange(5):
            case 0:
                del node[key]
            case 1 if isinstance(node, dict):
                node[str(self._value())[:400]] = node.pop(key)
            case 2 if isinstance(node, list):
                node.insert(key, self._value())
            case 3:
                node[key] = [node[key]]
            case _:
                node[key] = self._value()
        return tree

    def _value(self) -> Any:
        value = self._draw.choice(_VALUES)
        return copy.deepcopy(value) if isinstance(value, list | dict) else value

    def _packed(self, value: Any) -> bytes:
        text = json.dumps(value)
        if "@@" in text:
            depth = self._draw.choice((90, 110, 400, 990, 3_000, 100_000))
            text = text.replace(f'"{_HUGE}"', "9" * self._draw.choice((30, 4_000, 10_000)))
            text = text.replace(f'"{_DEEP}"', "[" * depth + "]" * depth)
        return text.encode()


# -- the host's side -------------------------------------------------------------------------


class Victim:
    """The host's side of a kernel that is this process; what it sends is only kept."""

    def __init__(self, folder: Path) -> None:
        pid = os.getpid()
        record = Record("test", 1, pid, 1, 2**22 + 1, 1, "", f"{folder}/k", f"{folder}", KEY)
        facts = KernelFacts(pid, "3.11.0", "python", {}, "open", record.connection_file, 0.0)
        self.faults: list[dict[str, Any]] = []
        """What receivers raised."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, told: self.faults.append(told))
        self.kernel = Kernel(record, folder, facts=facts)
        self.sent: list[tuple[str, str]] = []
        """Kind and id of what the host has sent."""
        self.visits: list[str] = []
        self.calls: list[SkillCall] = []
        self.late: list[Any] = []
        self.kernel.on_late = self.kernel.on_foreign = self.late.append
        self.kernel.on_call = self._answer
        self.kernel.on_cancel = lambda _: None
        self.wire = self.kernel.client.wire
        self.wire.send = self._send  # type: ignore[method-assign,assignment]
        self.kernel._welcome.set()
        self.kernel._release()

    def _send(self, _: Any, kind: str, content: Any, *, msg_id: str, **__: Any) -> None:
        self.sent.append((kind, msg_id))
        if kind == "cave_call_visit":
            self.visits.append(content["visit"])

    async def _answer(self, call: SkillCall, caller: Caller) -> SkillAnswer:
        self.calls.append(call)
        caller.note("seen")
        if call.phase == "call" and len(self.calls) % 3 == 0:
            await caller.get("x")
        return SkillAnswer("go" if call.phase == "begin" else "ok", key="k", attempt=1)

    def asked(self, kind: str) -> str:
        """The id of the newest request of this kind."""
        return next((id for what, id in reversed(self.sent) if what == kind), "")

    async def close(self) -> None:
        await self.kernel.detach()
