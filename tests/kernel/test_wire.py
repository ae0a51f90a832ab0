"""Frames that cannot be trusted: skipped and counted, never fatal."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from cave.kernel.wire import Codec, Malformed, Message, Wire

GOOD = Codec("key").encode("stream", {"name": "stdout", "text": "hi"}, {}, "id")


def signed(*parts: bytes) -> list[bytes]:
    codec = Codec("key")
    return [b"<IDS|MSG>", codec._sign(parts), *parts]


HOSTILE = {
    "nothing": [],
    "no delimiter": [b"a", b"b"],
    "cut off": GOOD[:4],
    "badly signed": [GOOD[0], b"0" * 64, *GOOD[2:]],
    "signed by another": Codec("other").encode("stream", {}, {}, "id"),
    "no json": signed(b"{", b"{}", b"{}", b"{}"),
    "no objects": signed(b"[]", b"1", b'"x"', b"null"),
    "no header": signed(b"{}", b"{}", b"{}", b"{}"),
    "deep": signed(b"{}", b"{}", b"{}", b'{"a":' * 100_000),
    "deep list": signed(b'{"msg_id":"1","msg_type":"x"}', b"{}", b"{}", b"[" * 100_000),
    "huge number": signed(
        b'{"msg_id":"1","msg_type":"x"}', b"{}", b"{}", b'{"a":' + b"9" * 10_000 + b"}"
    ),
    "not utf-8": signed(b'{"msg_id":"\xff\xfe"}', b"{}", b"{}", b"{}"),
    "number that is none": [b"topic", b"x", *GOOD],
}


@pytest.mark.parametrize("frames", HOSTILE.values(), ids=HOSTILE)
def test_hostile_frames_are_malformed(frames: list[bytes]) -> None:
    """Whatever is wrong with frames, decoding raises Malformed and nothing else."""
    with pytest.raises(Malformed):
        Codec("key").decode(frames)


@given(st.lists(st.binary(max_size=60), max_size=9))
def test_random_frames_are_malformed(frames: list[bytes]) -> None:
    """No random frames are taken for a message, and none raise anything else."""
    with pytest.raises(Malformed):
        Codec("key").decode([b"<IDS|MSG>", *frames])


def test_a_message_comes_back_as_it_went() -> None:
    """What is encoded decodes to the same, with number and buffers."""
    frames = [b"stream.stdout", b"17", *GOOD, b"buffer"]
    message = Codec("key").decode(frames)
    assert (message.type, message.id, message.number) == ("stream", "id", 17)
    assert message.content == {"name": "stdout", "text": "hi"}
    assert message.buffers == [b"buffer"]


def test_the_reader_survives_every_hostile_frame() -> None:
    """Between hostile frames every good message arrives, and the bad ones are counted."""

    async def read(base: str) -> tuple[list[Message], int]:
        context = zmq.Context()
        router = context.socket(zmq.ROUTER)
        router.bind(f"ipc://{base}-1")
        wire = Wire(context, base, Codec("key"))
        came: list[Message] = []
        try:
            wire.on("shell", came.append)
            wire.send("shell", "hello", {}, msg_id="1")
            while not router.poll(0):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            peer = router.recv_multipart()[0]
            for frames in HOSTILE.values():
                router.send_multipart([peer, *(frames or [b""])])
                router.send_multipart([peer, *GOOD])
            while len(came) < len(HOSTILE):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            return came, wire.skipped
        finally:
            wire.close()
            router.close(linger=0)
            context.term()

    with tempfile.TemporaryDirectory() as folder:
        came, skipped = asyncio.run(asyncio.wait_for(read(str(Path(folder, "k"))), 20))
    assert [message.type for message in came] == ["stream"] * len(HOSTILE)
    assert skipped == len(HOSTILE)


def test_encoding_is_plain_json() -> None:
    """Parts are JSON objects with the protocol's header fields."""
    header = json.loads(GOOD[2])
    assert {"msg_id", "msg_type", "session", "username", "date", "version"} <= set(header)
