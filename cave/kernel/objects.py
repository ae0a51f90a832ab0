"""Objects in and out of a kernel: what is small inline, what is large through the door."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cave.errors import NotPortable, PutError, UnknownName
from cave.events import CheckResult, CheckSpec, Variable, clean
from cave.kernel import cells, door
from cave.kernel.client import Client, Refused
from cave.kernel.launch import Record
from cave.kernel.wire import Message
from cave.ports import KernelFacts

if TYPE_CHECKING:
    from cave.kernel.values import Parcel

_INLINE = 64 << 10
"""Bytes below which values travel in the message itself."""
_PATIENCE = 10.0
"""Seconds that one check may take."""
_MESSAGE = 300
"""Characters of what is said of a check."""


class Objects:
    """The namespace of one kernel, by requests that wait behind its cells."""

    def __init__(self, client: Client, record: Record, peer: KernelFacts) -> None:
        self._client = client
        self._record = record
        self.peer = peer

    async def put(self, values: Mapping[str, Any], *, lease: int) -> Sequence[Variable]:
        """Bind objects. Raises `PutError` naming the variable, and binds none then."""
        from cave.kernel import values as codecs

        return await self._put(codecs.pack(values, peer=self.peer), list(values), lease=lease)

    async def seed(self, data: bytes, *, lease: int) -> Sequence[Variable]:
        """Bind the variables of a file that dill wrote. Raises `PutError`."""
        from cave.kernel.values import Parcel

        return await self._put(Parcel("dill", data, ()), ["the seed"], lease=lease)

    async def _put(self, parcel: Parcel, names: list[str], *, lease: int) -> Sequence[Variable]:
        told = ", ".join(map(repr, names))
        content = {"kind": parcel.kind, "names": names}
        try:
            reply = await self._give("cave_put_request", content, parcel, lease=lease)
        except Refused as exc:
            raise PutError(f"cannot put {told}: {self._why(exc)}") from exc
        except (OSError, MemoryError) as exc:
            self._client.check()
            raise PutError(
                f"cannot put {told}: {exc or type(exc).__name__}; free some memory, or write "
                f"the data to a file and read that in a cell"
            ) from exc
        return cells.variables_of(reply.content.get("variables"))

    async def _give(
        self, kind: str, content: Mapping[str, Any], parcel: Parcel, *, lease: int
    ) -> Message:
        """A request with a parcel, which goes through the door where it is large."""
        views = [memoryview(part).cast("B") for part in (parcel.header, *parcel.buffers)]
        told: dict[str, Any] = {**content, "token": None, "layout": []}
        if sum(view.nbytes for view in views) >= _INLINE and self._door_is_there:
            await asyncio.to_thread(self._hand_over, told, views)
            views = []
        return await self._client.request("shell", kind, told, lease=lease, buffers=views)

    async def check(
        self, checks: Sequence[CheckSpec], functions: Mapping[str, Any], *, folder: str, lease: int
    ) -> Sequence[CheckResult]:
        """How each of `checks` comes out. Raises `PutError` naming a function."""
        from cave.kernel import values as codecs

        parcel = codecs.pack(functions, peer=self.peer)
        content = {
            "checks": [dataclasses.asdict(check) for check in checks],
            "folder": folder,
            "seconds": _PATIENCE,
        }
        try:
            reply = await self._give("cave_check_request", content, parcel, lease=lease)
        except Refused as exc:
            why = f"it could not be evaluated: {exc}"
            return [CheckResult(check.name, passed=False, message=why) for check in checks]
        return _results(checks, reply.content.get("results"))

    def _why(self, exc: Refused) -> str:
        if not exc.module:
            return exc.text or exc.name
        package, python = exc.module.partition(".")[0], self.peer.executable
        return (
            f"{exc.text}; the kernel's interpreter {python} lacks the module {exc.module!r}; "
            f"type: {python} -m pip install {package}"
        )

    @property
    def _door_is_there(self) -> bool:
        """Whether descriptors can be passed; else (a cleaned /tmp) all goes over the wire."""
        return self._record.door.exists()

    def _hand_over(self, content: dict[str, Any], views: Sequence[memoryview]) -> None:
        with door.parcel(views, Path(self._record.runtime)) as (fd, layout):
            content["token"] = door.give(self._record.door, fd)
            content["layout"] = layout

    async def get(self, name: str, *, lease: int, allow_pickle: bool = False) -> Any:
        """An object. Raises `UnknownName`, `NotPortable`."""
        from cave.kernel import values as codecs

        content = {"name": name, "allow_pickle": allow_pickle, "inline": not self._door_is_there}
        try:
            reply = await self._client.request("shell", "cave_get_request", content, lease=lease)
        except Refused as exc:
            raise _get_error(name, exc) from exc
        return await asyncio.to_thread(
            lambda: codecs.unpack(self._parcel(reply), name=name, allow_pickle=allow_pickle)
        )

    async def dill(self, *, lease: int) -> tuple[bytes, Mapping[str, str]]:
        """The namespace as bytes that plain dill loads; and names left out, with the reason."""
        content = {"inline": not self._door_is_there}
        try:
            reply = await self._client.request("shell", "cave_dill_request", content, lease=lease)
        except Refused as exc:
            raise NotPortable(f"dill cannot write the namespace: {exc}") from exc
        parcel = await asyncio.to_thread(self._parcel, reply)
        left_out = reply.content.get("left_out")
        told = left_out.items() if isinstance(left_out, dict) else ()
        return parcel.header, {str(name): str(why) for name, why in told}

    def _parcel(self, reply: Message) -> Parcel:
        from cave.kernel.values import Parcel

        try:
            layout = layout_of(reply.content.get("layout"))
            parts = joined(reply.buffers, [size for _, size in layout])
            if token := reply.content.get("token"):
                parts = door.unpack(door.take(self._record.door, str(token)), layout)
        except OSError as exc:
            self._client.check()
            raise NotPortable(f"the object did not come through the door: {exc}") from exc
        if not parts:
            raise NotPortable("the kernel sent a parcel without a header")
        return Parcel(str(reply.content.get("kind")), bytes(parts[0]), parts[1:])

    async def delete(self, names: Sequence[str], *, lease: int) -> None:
        """Unbind names. Raises `UnknownName`, and unbinds none then."""
        content = {"names": list(names)}
        try:
            await self._client.request("shell", "cave_delete_request", content, lease=lease)
        except Refused as exc:
            raise UnknownName(f"no variable {exc.text!r} in the session; type s.vars") from exc

    async def variables(self, *, lease: int) -> Sequence[Variable]:
        """The user's variables, in the order of their making."""
        reply = await self._client.request("shell", "cave_variables_request", lease=lease)
        return cells.variables_of(reply.content.get("variables"))


def _results(checks: Sequence[CheckSpec], found: Any) -> list[CheckResult]:
    """What a kernel says of checks; what it does not say has failed."""
    found = found if isinstance(found, list) else []
    results = []
    for check, told in zip_longest(checks, found[: len(checks)]):
        one = told if isinstance(told, dict) else {"message": "the kernel does not say"}
        passed = one.get("passed") is True
        message = clean(str(one.get("message", ""))[:_MESSAGE])
        results.append(CheckResult(check.name, passed, check.reward * passed, message))
    return results


def _get_error(name: str, exc: Refused) -> Exception:
    match exc.name:
        case "KeyError":
            return UnknownName(f"no variable {name!r} in the session; type s.vars")
        case "Unportable":
            return NotPortable(exc.text if repr(name) in exc.text else f"{name!r}: {exc.text}")
        case _:
            return NotPortable(f"{name!r} cannot come out of the kernel: {exc}")


def joined(frames: Sequence[bytes | memoryview], sizes: Sequence[int]) -> list[memoryview]:
    """The parts that came in frames: one each, or cut as `sizes` tells."""
    if not sizes:
        return [memoryview(bytearray(frame)) for frame in frames]
    whole, parts, at = memoryview(bytearray().join(frames)), [], 0
    for size in sizes:
        parts.append(whole[at : at + size])
        at += size
    return parts


def layout_of(value: Any) -> list[list[int]]:
    """Offsets and sizes, as a kernel told them. Raises `DoorError`."""
    if not isinstance(value, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(n, int) for n in pair)
        for pair in value
    ):
        raise door.DoorError("the kernel described a file wrongly")
    return value
