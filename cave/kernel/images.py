"""Images out of a kernel and into it: the host's half of snapshots' wire.

What comes from a kernel is bytes to be stored, never unpickled here. Every field is checked:
a hostile kernel gets a `SnapshotError`, never a crash, and cannot change what it has given.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import select
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cave.errors import DiedReading, KernelDied, SnapshotError, StaleImage
from cave.image import Image, ImageBuffer, ImageGroup, Load, Note
from cave.kernel import deaths, door
from cave.kernel.client import Client, Refused, whole
from cave.kernel.launch import Record
from cave.kernel.wire import Message
from cave.ports import Wanted

PATIENCE = 60.0
"""Seconds that a variable may take to be written or read; then it is lost."""
_FILL = 20.0
"""Seconds that a child of the kernel has to fill a file, beside the time for its size."""
_SLOWEST = 50e6
"""Bytes a second that it copies at least."""
_INLINE = 64 << 10
_MOST = 250
"""Descriptors that go through the door at a time."""
_KINDS = frozenset({"lost", "rebuilt", "changed", "assumed"})
_LARGEST = 1 << 46
_TEXT = 100_000


class Stale(StaleImage):
    """Groups that were to stay in the kernel are no longer what they were: load them, too.

    Nothing was changed. `groups` has their ids.
    """

    def __init__(self, groups: Sequence[str]) -> None:
        super().__init__(
            f"{len(groups)} groups of variables have changed since the last snapshot; "
            f"plan the restore again without keeping them"
        )
        self.groups = tuple(groups)


@dataclass(frozen=True, slots=True)
class Capture:
    """An image on its way."""

    pause: float
    """Seconds for which the kernel was held up."""
    _image: asyncio.Future[Image]
    small: bool = False
    """Whether all of it came with the answer."""

    async def image(self) -> Image:
        """The image, when all of it is there. Raises `KernelDied`, `SnapshotError`."""
        return await asyncio.shield(self._image)


def _heard(arrival: asyncio.Future[Any]) -> None:
    """A fault that nobody asks for any more is no news."""
    if not arrival.cancelled():
        arrival.exception()


async def _filled(pipe: int, limit: float) -> bool:
    """Whether the child says that it is done, before it ends or `limit` seconds are over."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(pipe, told.set)
    except OSError:  # a file: nobody waits for those
        os.close(pipe)
        return False
    try:
        async with asyncio.timeout(limit):
            await told.wait()
        return _told(pipe)
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(pipe)
        os.close(pipe)


def _told(pipe: int) -> bool:
    """Whether there is a byte, or only the end. To read it could last: others may do so first."""
    look = select.poll()
    look.register(pipe, select.POLLIN)
    return any(events & select.POLLIN for _, events in look.poll(0))


@contextlib.contextmanager
def _progress(folder: Path) -> Iterator[tuple[list[int], Callable[[], int]]]:
    """The descriptor of a file in which a kernel notes what it reads (none where there is no
    space), and what it noted last."""
    try:
        fd, path = tempfile.mkstemp(dir=folder)
        Path(path).unlink()
        os.pwrite(fd, bytes(8), 0)  # the kernel needs no space then
    except OSError:
        yield [], lambda: 0
        return
    try:
        yield [fd], lambda: int.from_bytes(os.pread(fd, 8, 0), "little")
    finally:
        os.close(fd)


class Images:
    """The images of one kernel, by requests that wait behind its cells."""

    def __init__(self, client: Client, record: Record, home: Path) -> None:
        self._client = client
        self._record = record
        self._home = home

    # -- out -----------------------------------------------------------------------------------

    async def snapshot(
        self, *, id: str, base: str | None, lease: int, verify: bool, background: bool
    ) -> Capture:
        """Ask for an image. Raises `KernelDied`, `LeaseLost`, `SnapshotError`."""
        content = self._request(id, base, verify=verify, background=background)
        reply = await self._ask("cave_snapshot_request", content, lease=lease)
        return await self._captured(reply, content, lease)

    def behind(self, wanted: Wanted, *, lease: int) -> dict[str, Any]:
        """Begin to wait for an image that the request for a cell asks for; gives what that
        request is to say. Raises `KernelDied`."""
        request = secrets.token_hex(8)
        content = self._request(wanted.id, wanted.base, verify=False, background=True)
        reply = self._client.expect(request)
        work = asyncio.ensure_future(self._came(reply, content, lease))
        work.add_done_callback(_heard)
        wanted.work = work
        return {**content, "request": request, "brief": True}

    async def _came(
        self, reply: asyncio.Future[Message], content: dict[str, Any], lease: int
    ) -> Capture:
        message = await self._answer(reply)
        # else the kernel, which cannot know whether its host still lives, leaves one behind
        deaths.note(self._home, content["id"], "taken")
        return await self._captured(message, content, lease)

    def _request(
        self, id: str, base: str | None, *, verify: bool, background: bool
    ) -> dict[str, Any]:
        return {
            "id": id,
            "base": base,
            "verify": verify,
            "background": background,
            "inline": not self._record.door.exists(),
        }

    async def _captured(self, reply: Message, content: dict[str, Any], lease: int) -> Capture:
        id, base = content["id"], content["base"]
        if reply.content.get("filling") is True:
            arrival = asyncio.ensure_future(self._arrive(reply, content, lease))
            arrival.add_done_callback(_heard)
            return Capture(_pause(reply.content), arrival)
        if large := bool(reply.content.get("token")):
            image = await asyncio.to_thread(self._image, reply, id, base)
        else:
            image = self._image(reply, id, base)
        done: asyncio.Future[Image] = asyncio.get_running_loop().create_future()
        done.set_result(image)
        return Capture(image.pause, done, small=not large)

    def _image(self, reply: Message, id: str, base: str | None) -> Image:
        if not reply.content.get("token"):
            blob = memoryview(b"".join(reply.buffers))
        else:
            with self._named_faults():
                blob = door.whole(door.take(self._record.door, str(reply.content["token"])))
        return decode(reply.content, blob, id=id, base=base)

    async def _arrive(self, reply: Message, content: dict[str, Any], lease: int) -> Image:
        """Wait until a child of the kernel has filled the file, or have the kernel do it."""
        id, base = content["id"], content["base"]
        with self._named_faults():
            fd, pipe = await asyncio.to_thread(
                door.take_all, self._record.door, str(reply.content["token"]), 2
            )
        try:
            filled = await _filled(pipe, _FILL + os.fstat(fd).st_size / _SLOWEST)
        except BaseException:
            os.close(fd)
            raise
        if filled:
            with self._named_faults():
                blob = await asyncio.to_thread(door.whole, fd)
            return await asyncio.to_thread(decode, reply.content, blob, id=id, base=base)
        os.close(fd)
        with contextlib.suppress(Refused):
            await self._client.request("control", "cave_interrupt_request", {"child": True})
        again = {**content, "background": False, "again": True}
        reply = await self._ask("cave_snapshot_request", again, lease=lease)
        return await asyncio.to_thread(self._image, reply, id, base)

    # -- in ------------------------------------------------------------------------------------

    async def restore(self, load: Load, *, lease: int) -> Sequence[Note]:
        """Bring the namespace to an image; what did not come back as it was.

        Raises `Stale`, `SnapshotError` (nothing was changed then), `KernelDied`, `LeaseLost`.
        """
        content, blob = encode(load)
        content["progress"] = len(load.files)
        needed = blob.nbytes >= _INLINE or bool(load.files)
        with _progress(Path(self._record.runtime)) as (noted, number):
            # without a door what is small goes in the message, and nothing is noted
            with contextlib.nullcontext() if needed else contextlib.suppress(SnapshotError):
                await asyncio.to_thread(self._give, content, blob, [*load.files, *noted])
            buffers = [] if content["token"] or not blob.nbytes else [blob]
            try:
                reply = await self._ask(
                    "cave_restore_request", content, lease=lease, buffers=buffers
                )
            except KernelDied as died:
                if not 0 < (at := number()) <= len(load.groups):
                    raise
                group = load.groups[at - 1]
                raise DiedReading(died, group.id, group.names) from died
        if stale := reply.content.get("stale"):
            raise Stale([str(one) for one in stale] if isinstance(stale, list) else ["?"])
        return _notes(reply.content.get("notes"))

    def _give(self, content: dict[str, Any], blob: memoryview, files: Sequence[int]) -> None:
        with self._named_faults():
            if blob.nbytes >= _INLINE:
                with door.parcel([blob], Path(self._record.runtime)) as (fd, _):
                    content["token"] = door.give(self._record.door, fd)
            content["tokens"] = [
                door.give(self._record.door, *files[at : at + _MOST])
                for at in range(0, len(files), _MOST)
            ]

    @contextlib.contextmanager
    def _named_faults(self) -> Any:
        try:
            yield
        except OSError as exc:
            self._client.check()
            raise SnapshotError(f"the snapshot did not come through the door: {exc}") from exc

    # -- asking --------------------------------------------------------------------------------

    async def _ask(
        self,
        kind: str,
        content: Mapping[str, Any],
        *,
        lease: int,
        buffers: Sequence[memoryview] = (),
    ) -> Message:
        asked = asyncio.ensure_future(
            self._client.request("shell", kind, content, lease=lease, buffers=buffers)
        )
        return await self._answer(asked)

    async def _answer(self, asked: asyncio.Future[Message]) -> Message:
        """Wait for the answer; a variable that hangs is given up after `PATIENCE`."""
        try:
            while True:
                await asyncio.wait({asked}, timeout=PATIENCE)
                if asked.done():
                    return whole(asked.result())
                await self._stop_what_hangs()
        except Refused as exc:
            raise SnapshotError(f"the kernel could not do it: {exc}") from exc
        finally:
            asked.cancel()

    async def _stop_what_hangs(self) -> None:
        with contextlib.suppress(KernelDied, Refused, TimeoutError):
            async with asyncio.timeout(PATIENCE):
                request = {"image": PATIENCE}
                await self._client.request("control", "cave_interrupt_request", request)


# -- what a kernel gives -----------------------------------------------------------------------


def decode(content: Mapping[str, Any], blob: memoryview, *, id: str, base: str | None) -> Image:
    """The image that a kernel describes. Raises `SnapshotError` unless all of it is in order."""
    try:
        return _Decoder(content, blob).image(id, base)
    except (KeyError, ValueError, TypeError, IndexError, OverflowError, RecursionError) as exc:
        raise SnapshotError(
            f"the kernel described its variables wrongly: {type(exc).__name__}: {exc}"[:300]
        ) from exc


class _Decoder:
    """One reply, taken apart without trusting it."""

    def __init__(self, content: Mapping[str, Any], blob: memoryview) -> None:
        self._content = content
        self._blob = blob
        self._chunk = _number(content["chunk"])
        if not 4096 <= self._chunk <= 1 << 24 or self._chunk & (self._chunk - 1):
            raise ValueError("the size of chunks")
        self._layout = [_pair(pair) for pair in _list(content["layout"])]
        self._base: str | None = None
        self._seen: set[str] = set()
        self._buffers: set[str] = set()
        self._names: set[str] = set()

    def image(self, id: str, base: str | None) -> Image:
        content = self._content
        if content["id"] != id or content["base"] not in {None, base}:
            raise ValueError("it is another image than the one that was asked for")
        self._base = content["base"]
        groups = tuple(self._group(_dict(one)) for one in _list(content["groups"]))
        if sum(group.definitions for group in groups) > 1:
            raise ValueError("two groups of definitions")
        return Image(
            id=id,
            base=self._base,
            chunk=self._chunk,
            groups=groups,
            python=_text(content["python"]),
            packages={_text(k): _text(v) for k, v in _dict(content["packages"]).items()},
            pause=_seconds(content["pause"]),
            tracking=f"{_text(content.get('tracking', ''))}: {_text(content.get('why', ''))}",
            missed=tuple(_text(name) for name in _list(content["missed"])),
            order=self._order(content.get("order"), len(groups)),
            ids=_text(content.get("ids", "")),
        )

    def _order(self, told: Any, count: int) -> tuple[int | tuple[int, int, bool], ...]:
        """The order of all groups, where those that are the same were not told of."""
        if told is None:
            return ()
        found: list[int | tuple[int, int, bool]] = []
        for one in _list(told):
            if isinstance(one, list):
                first, length, checked = one
                found.append((_number(first), _number(length), _bool(checked)))
            else:
                found.append(_number(one))
        if self._base is None or [one for one in found if isinstance(one, int)] != [*range(count)]:
            raise ValueError("the order of groups")
        return tuple(found)

    def _group(self, told: dict[str, Any]) -> ImageGroup:
        same = _bool(told["same"])
        names = tuple(_text(name) for name in _list(told["names"]))
        if not names or len(set(names)) != len(names) or not self._names.isdisjoint(names):
            raise ValueError("a name is in two groups, or a group has none")
        self._names.update(names)
        if same and self._base is None:
            raise ValueError("a group is the same as in no image")
        return ImageGroup(
            id=self._once(told["id"], self._seen),
            names=names,
            same=same,
            checked=_bool(told["checked"]),
            definitions=_bool(told["definitions"]),
            uses=_bool(told["uses"]),
            stream=None if same else self._part(told["stream"]),
            buffers=() if same else tuple(self._buffer(b) for b in _list(told["buffers"])),
            notes=tuple(_note(note) for note in _list(told["notes"])),
        )

    def _once(self, value: Any, seen: set[str]) -> str:
        found = _text(value)
        if not found or found in seen:
            raise ValueError("an id is missing, or there twice")
        seen.add(found)
        return found

    def _buffer(self, told: Any) -> ImageBuffer:
        id, size, based, runs = _list(told)
        size, based = _number(size), _bool(based)
        if based and self._base is None:
            raise ValueError("a buffer is a difference from no image")
        found = tuple(self._run(run, size) for run in _list(runs))
        at = covered = 0
        for offset, part in found:
            if offset < at:
                raise ValueError("runs of a buffer overlap")
            at = offset + part.nbytes
            covered += part.nbytes
        if not based and covered != size:
            raise ValueError("a new buffer has gaps")
        return ImageBuffer(self._once(id, self._buffers), size, based, found)

    def _run(self, told: Any, size: int) -> tuple[int, memoryview]:
        offset, part = _list(told)
        offset, view = _number(offset), self._part(part)
        end = offset + view.nbytes
        ragged = end % self._chunk and end != size
        if offset % self._chunk or not view.nbytes or end > size or ragged:
            raise ValueError("a run of a buffer is not made of chunks")
        return offset, view

    def _part(self, position: Any) -> memoryview:
        offset, size = self._layout[_number(position)]
        if size > self._blob.nbytes - offset:
            raise ValueError("a part lies outside of what was given")
        return self._blob[offset : offset + size]


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise ValueError("a number")
    return value


def _pair(value: Any) -> tuple[int, int]:
    offset, size = _list(value)
    return _number(offset), _number(size)


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("a truth value")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("a list")
    return value


def _dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("an object")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _TEXT:
        raise ValueError("a text")
    return value.encode("utf-8", "backslashreplace").decode()


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError("seconds")
    return float(value)


def _pause(content: Mapping[str, Any]) -> float:
    try:
        return _seconds(content.get("pause"))
    except ValueError:
        return 0.0


def _note(value: Any) -> Note:
    kind, name, type_, reason, path = (str(one)[:_TEXT] for one in _list(value))
    if kind not in _KINDS:
        raise ValueError("a kind of note")
    return Note(kind, _text(name), _text(type_), _text(reason), _text(path))  # type: ignore[arg-type]


def _notes(value: Any) -> tuple[Note, ...]:
    """Notes of a restore that has happened: those that are none are left out."""
    found = []
    for one in value if isinstance(value, list) else ():
        with contextlib.suppress(ValueError, TypeError):
            found.append(_note(one))
    return tuple(found)


# -- what a kernel is given --------------------------------------------------------------------


def encode(load: Load) -> tuple[dict[str, Any], memoryview]:
    """The request that brings a kernel to an image, and the streams in it."""
    blob, layout = bytearray(), []
    groups = []
    for at, group in enumerate(load.groups):
        stream = memoryview(group.stream).cast("B")
        layout.append([len(blob), stream.nbytes])
        blob += stream
        buffers = [[b.id, b.size, [list(piece) for piece in b.pieces]] for b in group.buffers]
        groups.append(
            {
                "id": group.id,
                "names": list(group.names),
                "definitions": group.definitions,
                "stream": at,
                "buffers": buffers,
            }
        )
    content = {
        "id": load.id,
        "chunk": load.chunk,
        "keep": list(load.keep),
        "base": load.base,
        "groups": groups,
        "lost": [[n.kind, n.name, n.type, n.reason, n.path] for n in load.lost],
        "cells": dict(load.cells),
        "layout": layout,
        "token": None,
        "tokens": [],
    }
    return content, memoryview(bytes(blob))
