"""Changes found by hashing, with and without a second thread."""

import _thread
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

from tests import _inkernel

hashes: Any = _inkernel.load("image.hashes")


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> np.ndarray[Any, Any]:
    """Nine chunks and a rest, which is worth a thread."""
    monkeypatch.setattr(hashes, "_WORTH_A_THREAD", 1 << 20)
    monkeypatch.setattr(hashes, "_SPARE", True)
    return np.arange(9 * hashes.CHUNK + 17, dtype=np.uint8)


def _alone(memory: np.ndarray[Any, Any]) -> list[Any]:
    chunks: list[Any] = hashes._digests(memory.ctypes.data, memory.nbytes, hashes.CHUNK)
    return chunks


def test_two_threads_give_what_one_gives(
    memory: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each chunk has its digest, also where no thread may be started."""
    places = memory.ctypes.data, memory.nbytes, hashes.CHUNK
    wanted = _alone(memory)
    assert len(wanted) == 10
    assert hashes.digests(*places) == wanted
    memory[-1] ^= 1
    assert hashes.differing(wanted, hashes.digests(*places)) == [9]

    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    assert hashes.differing(wanted, hashes.digests(*places)) == [9]


def test_an_interrupt_leaves_no_reader_behind() -> None:
    """The other thread has let go of the memory when the interrupt is raised."""
    ended, before = threading.Event(), signal.signal(signal.SIGINT, signal.default_int_handler)

    def slow() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.2)
        ended.set()

    try:
        with pytest.raises(KeyboardInterrupt):
            hashes._beside(lambda: time.sleep(10), slow)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.is_set()
