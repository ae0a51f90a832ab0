"""Objects in and out: the shell requests of the host that touch the namespace.

Parcels below `INLINE` bytes travel in the message; larger ones in a file in memory that
goes through the door, mapped privately on arrival, so that nothing is copied twice.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import tempfile
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import lent

if TYPE_CHECKING:
    from .kernel import Kernel, Message

INLINE = 64 << 10
ALIGN = 64
_SLICE = 64 << 20
_FRAME = 32 << 20
_SEALS = 0x000F  # F_SEAL_SEAL | SHRINK | GROW | WRITE
_ADD_SEALS = 1033


class Objects:
    """The namespace as the host sees it."""

    def __init__(self, kernel: Kernel) -> None:
        from .namespace import Namespace

        self._kernel = kernel
        self._images: Any = None
        self.namespace: Any = Namespace(kernel.shell)
        self.handlers: dict[str, Callable[..., Any]] = {
            f"cave_{verb}_request": self._handler(getattr(self, f"_{verb}"))
            for verb in (
                "put",
                "get",
                "delete",
                "variables",
                "dill",
                "skills",
                "check",
                "snapshot",
                "restore",
            )
        }

    def _handler(self, handle: Callable[[Message], tuple[Message, list[Any]]]) -> Any:
        async def handler(stream: Any, ident: Any, parent: Message) -> None:
            content, buffers = self._try(handle, parent)
            kind = parent["header"]["msg_type"].replace("_request", "_reply")
            self._kernel.session.send(stream, kind, content, parent, ident, buffers=buffers)
            if self._images is not None:
                self._images.settle()

        return handler

    def _try(
        self, handle: Callable[[Message], tuple[Message, list[Any]]], parent: Message
    ) -> tuple[Message, list[Any]]:
        try:
            with self._window(handle):
                content, buffers = handle(parent)
        except BaseException as exc:
            fault = {"ename": type(exc).__name__, "evalue": text_of(exc), "module": _lacking(exc)}
            return {"status": "error", **fault}, []
        return {"status": "ok", **content}, buffers

    def _window(self, handle: Any) -> Any:
        """Images have their own windows."""
        own = handle in (self._snapshot, self._restore)
        return contextlib.nullcontext() if own else self._kernel.interrupts.window()

    # -- verbs -------------------------------------------------------------------------------

    def _put(self, parent: Message) -> tuple[Message, list[Any]]:
        from . import values

        content = parent["content"]
        header, *buffers = self._given(parent)
        bound = _called(values.load(content["kind"], bytes(header), buffers))
        names = self._kernel.shell.user_ns
        names.update(bound)
        self._kernel.shell.touched.add(bound)
        self.namespace.delta(None, "")
        rows = {row["name"]: row for row in self.namespace.variables()}
        return {"variables": [rows[name] for name in bound if name in rows]}, []

    def _get(self, parent: Message) -> tuple[Message, list[Any]]:
        from . import values

        content = parent["content"]
        name = content["name"]
        if name not in self._kernel.shell.user_ns:
            raise KeyError(name)
        kind, header, buffers = values.dump(
            name, self._kernel.shell.user_ns[name], allow_pickle=content["allow_pickle"]
        )
        return self._parcel(kind, (header, *buffers), inline=content.get("inline"))

    def _parcel(
        self, kind: str, parts: Sequence[Any], *, inline: bool
    ) -> tuple[Message, list[Any]]:
        """A reply with these parts: in the message, or through the door."""
        views = [memoryview(part).cast("B") for part in parts]
        reply: Message = {"kind": kind, "token": None, "layout": []}
        if sum(view.nbytes for view in views) < INLINE:
            return reply, [*map(bytes, views)]
        if inline:
            reply["layout"] = [[0, view.nbytes] for view in views]
            return reply, slices(views)
        fd, reply["layout"] = depart(views, self._kernel.settings.runtime)
        reply["token"] = secrets.token_hex(8)
        self._kernel.settings.door.hold(reply["token"], fd)
        return reply, []

    def _dill(self, parent: Message) -> tuple[Message, list[Any]]:
        from .image import dilled, roots

        data, left_out = dilled.dump(dilled.fit(roots.variables(self._kernel.shell)))
        reply, buffers = self._parcel("dill", (data,), inline=parent["content"].get("inline"))
        return {**reply, "left_out": left_out}, buffers

    def _delete(self, parent: Message) -> tuple[Message, list[Any]]:
        names = self._kernel.shell.user_ns
        for name in parent["content"]["names"]:
            if name not in names or name in self._kernel.shell.user_ns_hidden:
                raise KeyError(name)
        for name in parent["content"]["names"]:
            del names[name]
        self._kernel.shell.touched.add(parent["content"]["names"])
        self.namespace.delta(None, "")
        return {}, []

    def _variables(self, parent: Message) -> tuple[Message, list[Any]]:
        return {"variables": self.namespace.variables()}, []

    def _skills(self, parent: Message) -> tuple[Message, list[Any]]:
        from . import skills

        content = parent["content"]
        skills.of(self._kernel).define(content["skills"], content["session"], self._given(parent))
        return {}, []

    def _given(self, parent: Message) -> list[memoryview]:
        """The parts of the host's parcel."""
        content = parent["content"]
        if content["token"]:
            return arrive(self._kernel.settings.door.claim(content["token"]), content["layout"])
        return [memoryview(buffer) for buffer in parent["buffers"]]

    def _check(self, parent: Message) -> tuple[Message, list[Any]]:
        from . import values, verify

        content, shell = parent["content"], self._kernel.shell
        header, *buffers = self._given(parent)
        functions: dict[str, Any] = values.load("pickle", bytes(header), buffers)
        results, here = verify.run(
            shell.user_ns,
            content["checks"],
            functions,
            folder=content["folder"],
            seconds=content["seconds"],
        )
        if here:
            shell.touched.everything()
        return {"results": results}, []

    # -- images ------------------------------------------------------------------------------

    @property
    def imaged(self) -> bool:
        """Whether a host has ever asked for an image, or given one."""
        return self._images is not None

    @property
    def images(self) -> Any:
        """What knows of the images that were given; made at the first."""
        if self._images is None:
            from .image.serve import Images

            self._images = Images(self._kernel)
        return self._images

    async def image_behind(
        self, stream: Any, ident: Any, cell: Message, refusal: Message | None
    ) -> None:
        """Answer the request for an image that came with the one for a cell."""
        asked = cell["metadata"]["cave"]["image"]
        header = {
            **cell["header"],
            "msg_id": asked["request"],
            "msg_type": "cave_snapshot_request",
        }
        request = {**cell, "header": header, "content": asked, "buffers": []}
        self._kernel.set_parent(ident, request, channel="shell")
        if refusal is not None:
            reply = {"status": "error", **refusal}
            self._kernel.session.send(stream, "cave_snapshot_reply", reply, request, ident)
            return
        self._kernel.pre_handler_hook()
        await self.handlers["cave_snapshot_request"](stream, ident, request)

    def _snapshot(self, parent: Message) -> tuple[Message, list[Any]]:
        found: tuple[Message, list[Any]] = self.images.snapshot(parent)
        return found

    def _restore(self, parent: Message) -> tuple[Message, list[Any]]:
        found: tuple[Message, list[Any]] = self.images.restore(parent)
        return found


def _called(bound: dict[str, Any]) -> dict[str, Any]:
    """What was put, with what functions marked as resources make in their place."""
    marked = {
        name: value
        for name, value in bound.items()
        if type(value) is types.FunctionType and "__cave_resource__" in value.__dict__
    }
    if not marked:
        return bound
    from .image import plugins

    made = {}
    for name, make in marked.items():
        called, env = make.__dict__["__cave_resource__"]
        made[name] = plugins.resource(called, env)(make)()
    return bound | made


def arrive(fd: int, layout: Sequence[Sequence[int]]) -> list[memoryview]:
    """Map the file behind `fd` (closed here) privately: writable, copied on write."""
    try:
        mapping = mmap.mmap(fd, 0, access=mmap.ACCESS_COPY)
    finally:
        os.close(fd)
    view = memoryview(mapping)
    return [view[offset : offset + size] for offset, size in layout]


def slices(views: Sequence[memoryview]) -> list[bytes]:
    """All of `views` in frames that every host takes in."""
    return [
        bytes(view[start : start + _FRAME])
        for view in views
        for start in range(0, view.nbytes, _FRAME)
    ]


def depart(views: Sequence[memoryview], folder: str) -> tuple[int, list[list[int]]]:
    """A sealed file in memory that holds `views`, and where each lies in it."""
    fd = file(folder, sum(view.nbytes + ALIGN for view in views))
    try:
        layout, end = [], 0
        for view in views:
            offset = -(-end // ALIGN) * ALIGN
            write(fd, view, offset)
            layout.append([offset, view.nbytes])
            end = offset + view.nbytes
        os.ftruncate(fd, max(end, 1))
        seal(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd, layout


def file(folder: str, size: int) -> int:
    """A new file in memory for so many bytes, or one that nobody else can open."""
    if size > lent.limit():
        return lent.file()
    if hasattr(os, "memfd_create"):
        return os.memfd_create("cave", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fd, path = tempfile.mkstemp(dir=folder)
    os.unlink(path)
    return fd


def seal(fd: int) -> None:
    """Let nobody change the file any more, where the system can promise that."""
    if hasattr(os, "memfd_create"):
        import fcntl

        fcntl.fcntl(fd, _ADD_SEALS, _SEALS)


def write(fd: int, view: memoryview, offset: int) -> None:
    """All of `view` into the file."""
    if offset + view.nbytes > lent.limit():
        lent.write(fd, view, offset)
        return
    done = 0
    while done < view.nbytes:
        done += os.pwrite(fd, view[done : done + _SLICE], offset + done)


def _lacking(exc: BaseException) -> str | None:
    """The module whose absence is the cause."""
    cause = exc.__cause__
    return cause.name if isinstance(cause, ModuleNotFoundError) else None


def text_of(exc: BaseException) -> str:
    """What an exception says, also when its own text raises."""
    try:
        return str(exc.args[0]) if isinstance(exc, KeyError) and exc.args else str(exc)
    except Exception:
        return ""
