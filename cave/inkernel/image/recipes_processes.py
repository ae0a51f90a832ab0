"""What belongs to one process or one connection and ends with it: lost, with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .frozen import frozen
from .rules import rule

if TYPE_CHECKING:
    from .pickler import Pickler


def losing(reason: str, *names: str, derived: bool = True) -> None:
    """Register that objects of these types do not come back, and why."""

    @rule(*names, derived=derived)
    def lose(pickler: Pickler, obj: Any) -> Any:
        return pickler.lose(obj, reason)


losing(
    "a connection ends with its process; connect again",
    "socket.socket", "_socket.socket", "ssl.SSLSocket", "ssl.SSLObject", "_ssl._SSLSocket",
    "multiprocessing.connection._ConnectionBase", "multiprocessing.connection.Listener",
    "socketserver.BaseServer", "ftplib.FTP", "smtplib.SMTP", "imaplib.IMAP4", "poplib.POP3",
    "telnetlib.Telnet", "xmlrpc.client.ServerProxy",
)  # fmt: skip
losing(
    "an answer that is read from a connection; ask again",
    "http.client.HTTPResponse", "urllib3.response.BaseHTTPResponse", "urllib.response.addbase",
)  # fmt: skip
losing(
    "a connection ends with its process; it is made again at the next request",
    "http.client.HTTPConnection", "urllib3.connectionpool.ConnectionPool",
    "urllib3.poolmanager.PoolManager",
)  # fmt: skip
losing(
    "it watches descriptors of its process",
    "selectors.BaseSelector", "select.epoll", "select.poll", "select.kqueue",
)  # fmt: skip
losing("it holds keys and settings of OpenSSL; make it again", "_ssl._SSLContext")
losing(
    "a process of multiprocessing ends with the one that started it",
    "multiprocessing.process.BaseProcess", "multiprocessing.pool.Pool",
    "multiprocessing.managers.BaseManager", "multiprocessing.managers.BaseProxy",
)  # fmt: skip
losing(
    "it is shared with processes that ended with this one",
    "multiprocessing.queues.Queue", "multiprocessing.queues.SimpleQueue",
    "multiprocessing.synchronize.SemLock", "multiprocessing.synchronize.Condition",
    "multiprocessing.synchronize.Event", "multiprocessing.synchronize.Barrier",
    "multiprocessing.sharedctypes.SynchronizedBase", "_multiprocessing.SemLock",
    "multiprocessing.heap.Arena", "multiprocessing.heap.BufferWrapper",
)  # fmt: skip
losing(
    "shared memory is removed when its process ends; copy what you need into an array",
    "multiprocessing.shared_memory.SharedMemory", "multiprocessing.shared_memory.ShareableList",
)  # fmt: skip
losing("an iterator over results of a pool that ended", "multiprocessing.pool.ApplyResult",
       "multiprocessing.pool.IMapIterator")  # fmt: skip


@rule("subprocess.Popen", derived=True)
def _popen(pickler: Pickler, obj: Any) -> Any:
    """A pid means nothing later: another process may have it."""
    code = obj.poll()
    pid = getattr(obj, "pid", None)
    if code is None:
        return pickler.lose(obj, f"process {pid} was running; start it again if it is needed")
    return pickler.lose(obj, f"process {pid} had ended with return code {code}")


@rule("random.SystemRandom")
def _system_random(*_: Any) -> Any:
    """It has no state: the system's entropy is its source."""
    return make_system_random, ()


@frozen
def make_system_random() -> Any:
    """Random numbers of the operating system."""
    import random

    return random.SystemRandom()


# -- ctypes --------------------------------------------------------------------------------------


@rule("ctypes.CDLL", derived=True)
def _library(pickler: Pickler, obj: Any) -> Any:
    pickler.rebuilt(obj, f"the library {obj._name!r} loaded again; its own state starts anew")
    functions = {
        name: (value.restype, value.argtypes)
        for name, value in vars(obj).items()
        if type(value).__name__ == "_FuncPtr"
    }
    return make_library, (type(obj), obj._name), functions, None, None, fill_library


@frozen
def make_library(kind: Any, name: str | None) -> Any:
    """A shared library, loaded by its name."""
    return kind(name)


@frozen
def fill_library(made: Any, functions: dict[str, tuple[Any, Any]]) -> None:
    """What its functions take and give."""
    for name, (result, arguments) in functions.items():
        function = getattr(made, name)
        function.restype = result
        function.argtypes = arguments


losing(
    "an address in the memory of a process that ended",
    "ctypes.c_void_p", "ctypes.c_char_p", "ctypes.c_wchar_p", "_ctypes._Pointer",
    "ctypes.CDLL.__init__.<locals>._FuncPtr", "_ctypes.CFuncPtr",
)  # fmt: skip
