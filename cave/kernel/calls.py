"""Calls of skills: a kernel asks, its host answers, on the stdin channel.

Each call is answered in a task of its own, by what the session has given as `on_call`. A
call that comes again while it is being answered is answered once. What a kernel sends is
decoded by the safe codecs alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cave.errors import KernelDied, LeaseLost, NotPortable, PutError, SkillError, UnknownName
from cave.events import Fault, clean
from cave.kernel import client, door
from cave.kernel.cells import number_of
from cave.kernel.client import Client
from cave.kernel.launch import Record
from cave.kernel.objects import joined, layout_of
from cave.kernel.wire import Message
from cave.ports import Declared, Encoded, KernelFacts, OnCall, SkillAnswer, SkillCall

if TYPE_CHECKING:
    from cave.kernel.values import Parcel

_INLINE = 64 << 10
_ID = 64
"""Characters of a call's id."""
_LONGEST = 100_000
"""Characters of a fault that are taken from a kernel."""
_AT_ONCE = 100_000
"""Calls that may be under way; one more is dropped."""
Key = tuple[str, str, str]
"""Id of a call, its phase, and for `end` the attempt: the next may come before we are done."""


class Calls:
    """The calls of one kernel, and who answers them."""

    def __init__(self, commands: Client, record: Record, peer: Callable[[], KernelFacts]) -> None:
        self.on_cancel: Callable[[str], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._client = commands
        self._record = record
        self._peer = peer
        self._on_call: OnCall | None = None
        self._lease = 0
        self._early: dict[Key, Message] = {}
        """Calls that came before anybody answers."""
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._visits: dict[str, tuple[str, asyncio.Future[Message]]] = {}
        self._receivers = {
            "cave_call": self._called,
            "cave_call_cancel": self._cancelled,
            "cave_call_visited": self._visited,
        }
        commands.wire.on("stdin", self._receive)

    @property
    def on_call(self) -> OnCall | None:
        return self._on_call

    @on_call.setter
    def on_call(self, answer: OnCall | None) -> None:
        self._on_call = answer
        early, self._early = self._early, {}
        for message in early.values():
            self._called(message)

    def serve(self, lease: int) -> None:
        """Have calls come here from now on, those that wait in the kernel as well."""
        if lease > self._lease:
            self._lease = lease
            self.send("cave_serve_request", {"inline": not self._record.door.exists()})

    async def define(self, skills: Sequence[Declared], *, lease: int) -> None:
        """Let cells have exactly these skills. Raises `KernelDied`, `LeaseLost`, `SkillError`."""
        from cave.kernel.functions import pack

        self.serve(lease)
        running = {it.declaration["name"]: it.function for it in skills if it.function}
        content = {
            "skills": [dict(it.declaration) for it in skills],
            "session": self._record.session,
            "token": None,
            "layout": [],
        }
        buffers: Sequence[Any] = ()
        if running:
            parcel = await asyncio.to_thread(pack, running, peer=self._peer())
            buffers = await self.parcel(content, (parcel.header, *parcel.buffers))
        try:
            await self._client.request(
                "shell", "cave_skills_request", content, lease=lease, buffers=buffers
            )
        except client.Refused as exc:
            raise SkillError(f"the kernel cannot have the skills: {exc.text}") from exc

    def close(self) -> None:
        """Answer no more: calls come again to the next owner."""
        for task in self._tasks.values():
            task.cancel()

    # -- messages ----------------------------------------------------------------------------

    def send(self, kind: str, content: Mapping[str, Any], buffers: Sequence[Any] = ()) -> None:
        """One message, under the lease."""
        metadata = {"cave": {"lease": self._lease}}
        self._client.wire.send(
            "stdin",
            kind,
            content,
            msg_id=secrets.token_hex(8),
            metadata=metadata,
            buffers=buffers,
        )

    async def parcel(self, content: dict[str, Any], parts: Sequence[Any]) -> Sequence[Any]:
        """What travels in the message; large parts are handed over at the door instead."""
        views = [memoryview(part).cast("B") for part in parts]
        inline = sum(view.nbytes for view in views) < _INLINE
        if inline or not self._record.door.exists():
            return views
        await asyncio.to_thread(self._hand_over, content, views)
        return []

    def _hand_over(self, content: dict[str, Any], views: Sequence[memoryview]) -> None:
        with door.parcel(views, Path(self._record.runtime)) as (fd, layout):
            content["token"] = door.give(self._record.door, fd)
            content["layout"] = layout

    def arrived(self, message: Message) -> Encoded:
        """The parcel of a message, as it is. Raises `NotPortable`."""
        content = message.content
        if content.get("kind") != "safe":
            raise NotPortable(f"the kernel sent {str(content.get('kind'))[:40]!r}, not a value")
        layout = layout_of(content.get("layout") or [])
        if token := content.get("token"):
            parts = door.unpack(door.take(self._record.door, str(token)), layout)
        else:
            parts = joined(message.buffers, [size for _, size in layout])
        if not parts:
            raise NotPortable("the kernel sent a value without a header")
        return Encoded("safe", bytes(parts[0]), tuple(parts[1:]))

    def _receive(self, message: Message) -> None:
        receive, call = self._receivers.get(message.type), message.content.get("call")
        if receive is not None and isinstance(call, str) and len(call) <= _ID and call.isascii():
            receive(message)

    # -- calls -------------------------------------------------------------------------------

    def _called(self, message: Message) -> None:
        content = message.content
        key = content["call"], str(content.get("phase")), str(content.get("attempt"))
        if len(self._early) + len(self._tasks) >= _AT_ONCE:
            return
        if self._on_call is None:
            self._early[key] = message
        elif key not in self._tasks:
            work = self._serve(self._on_call, message, key)
            self._tasks[key] = self._loop.create_task(work)

    async def _serve(self, on_call: OnCall, message: Message, key: Key) -> None:
        try:
            answer = await self._answered(on_call, message)
            await self._send_answer(key, answer)
        except (LeaseLost, KernelDied):
            return  # the next owner is asked, or nobody asks any more
        finally:
            del self._tasks[key]

    async def _answered(self, on_call: OnCall, message: Message) -> SkillAnswer:
        try:
            call = await self._taken(message)
            return await on_call(call, CallingCell(self, message.content))
        except (LeaseLost, KernelDied):
            raise
        except Exception as exc:  # noqa: BLE001 -- a skill's: it is the cell's to see
            return SkillAnswer("error", fault=fault_of(exc))

    async def _taken(self, message: Message) -> SkillCall:
        large = message.content.get("token") or sum(map(len, message.buffers)) >= _INLINE
        from cave.kernel.values import Elsewhere

        if not large:
            with contextlib.suppress(Elsewhere):
                return self._whole_call(message, at_once=True)
        return await asyncio.to_thread(self._whole_call, message)

    def _whole_call(self, message: Message, *, at_once: bool = False) -> SkillCall:
        from cave.kernel import values

        content = message.content
        call = _place(content)
        if call["phase"] != "end":
            encoded = self.arrived(message)
            arguments = values.decode(encoded, name=f"{call['skill']}()", at_once=at_once)
            if not isinstance(arguments, dict) or not all(isinstance(n, str) for n in arguments):
                raise NotPortable("the kernel sent arguments without names")
            return SkillCall(**call, arguments=arguments, digest=values.digest(encoded))
        if content.get("status") == "ok":
            return SkillCall(**call, result=self.arrived(message))
        error = content.get("error")
        error = error if isinstance(error, dict) else {}
        bases = error.get("bases")
        return SkillCall(
            **call,
            fault=Fault(
                *(clean(str(error.get(k, ""))[:_LONGEST]) for k in ("name", "message", "traceback"))
            ),
            bases=tuple(clean(str(b)) for b in bases) if isinstance(bases, list) else (),
            ran=content.get("ran") is not False,
            done=content.get("done") is True,
            over=content.get("over") is True,
            cut=content.get("cut") is True,
        )

    async def _send_answer(self, key: Key, answer: SkillAnswer) -> None:
        call, phase, _ = key
        content: dict[str, Any] = {
            "call": call,
            "phase": phase,
            "status": answer.status,
            "kind": None,
            "token": None,
            "layout": [],
            "key": answer.key,
            "attempt": answer.attempt,
        }
        parts: Sequence[Any] = ()
        if answer.fault is not None:
            content["error"] = {"name": answer.fault.name, "message": answer.fault.message}
        elif answer.value is not None:
            content["kind"] = answer.value.kind
            parts = (answer.value.header, *answer.value.buffers)
        try:
            buffers = await self.parcel(content, parts)
        except (OSError, MemoryError) as exc:
            self._client.check()
            why = f"the result did not reach the kernel: {type(exc).__name__}: {exc}"
            content.update(status="error", kind=None, error={"name": "OSError", "message": why})
            buffers = ()
        self.send("cave_call_reply", content, buffers)

    def _cancelled(self, message: Message) -> None:
        call = message.content["call"]
        for visited, future in list(self._visits.values()):
            if visited == call and not future.done():
                future.set_exception(_over())
        if self.on_cancel is not None:
            self.on_cancel(call)

    # -- visits ------------------------------------------------------------------------------

    async def visit(
        self, call: Mapping[str, Any], content: Mapping[str, Any], parcel: Parcel | None = None
    ) -> Message:
        """Have the waiting code do something with a variable. Raises `_Refused`, `KernelDied`."""
        self._client.check()
        visit = secrets.token_hex(8)
        asked = {"call": call["call"], "phase": call["phase"], "visit": visit, **content}
        buffers: Sequence[Any] = ()
        if parcel is not None:
            asked.update(kind=parcel.kind, token=None, layout=[])
            buffers = await self.parcel(asked, (parcel.header, *parcel.buffers))
        future = asyncio.get_running_loop().create_future()
        self._visits[visit] = asked["call"], future
        try:
            self.send("cave_call_visit", asked, buffers)
            message: Message = await future
        finally:
            del self._visits[visit]
        if message.content.get("status") == "ok":
            return message
        raise Refused(str(message.content.get("ename")), str(message.content.get("evalue")))

    @property
    def peer(self) -> KernelFacts:
        """What is known of the kernel."""
        return self._peer()

    def _visited(self, message: Message) -> None:
        _, future = self._visits.get(str(message.content.get("visit")), (None, None))
        if future is not None and not future.done():
            future.set_result(message)

    def fail(self, error: KernelDied) -> None:
        """The kernel is dead: visits end; what answers goes on, for the journal's sake."""
        for _, future in self._visits.values():
            if not future.done():
                future.set_exception(error)


class Refused(Exception):
    """A visit came to nothing, by the name and the text of the error there."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name
        self.text = text


class CallingCell:
    """The cell that waits for an answer: the `Caller` of `cave.ports`."""

    def __init__(self, calls: Calls, content: Mapping[str, Any]) -> None:
        self._calls = calls
        self._content = content

    def note(self, text: str) -> None:
        """Show a line as output of the cell."""
        told = {key: self._content.get(key) for key in ("call", "phase")}
        self._calls.send("cave_call_note", {**told, "text": text})

    async def get(self, name: str) -> Any:
        """A variable of the session. Raises `UnknownName`, `NotPortable`."""
        from cave.kernel import values

        try:
            message = await self._calls.visit(self._content, {"op": "get", "name": name})
        except Refused as exc:
            if exc.name == "KeyError":
                raise UnknownName(f"no variable {name!r} in the session") from exc
            if exc.name == "Unportable":
                raise NotPortable(f"{name!r}: {exc.text.partition('; type s.get')[0]}") from exc
            raise RuntimeError(f"{name!r} cannot be had: {exc.text}") from exc
        return await asyncio.to_thread(
            lambda: values.decode(self._calls.arrived(message), name=name)
        )

    async def put(self, values: Mapping[str, Any]) -> None:
        """Bind variables in the session. Raises `PutError`."""
        from cave.kernel import values as codecs

        parcel = codecs.pack(values, peer=self._calls.peer)
        try:
            await self._calls.visit(self._content, {"op": "put"}, parcel)
        except (Refused, OSError) as exc:
            told = ", ".join(map(repr, values))
            raise PutError(f"cannot put {told}: {exc}") from exc


def fault_of(exc: BaseException) -> Fault:
    """An exception of a skill, as the cell is told of it."""
    try:
        text = str(exc)
    except Exception:  # noqa: BLE001 -- its own text raised
        text = ""
    return Fault(type(exc).__name__, text)


def _over() -> RuntimeError:
    return RuntimeError("the call is over: nobody waits for it in the kernel any more")


def _place(content: Mapping[str, Any]) -> dict[str, Any]:
    """The plain fields of a call, whatever a kernel has sent. Raises `NotPortable`."""
    call: dict[str, Any] = {"id": content["call"]}
    for name in ("skill", "hash", "lane", "key"):
        call[name] = clean(str(content.get(name) or "")[:1000])
    for name in ("ordinal", "attempt"):
        call[name] = number_of(content.get(name)) or 0
    cell, phase, declared = (content.get(name) for name in ("cell", "phase", "declaration"))
    if phase not in ("call", "begin", "end"):
        raise NotPortable(f"the kernel sent a call in the phase {str(phase)[:40]!r}")
    call.update(cell=number_of(cell), phase=phase)
    call["declaration"] = declared if isinstance(declared, dict) else None
    return call
