"""The keeper: a small process that owns a kernel's process tree and its exit status.

`python -I -S keeper.py STATUS LOG CWD RUNTIME LIFELINE FDS -- ARGV...`, standard library only.
Or a process that a template forked calls `keep`: the kernel is then forked, not started.

It reads a line of JSON from the socket LIFELINE: the plan of what confines the kernel, or null.
It starts ARGV in a session of its own, which inherits FDS and puts on the layers of the plan
before anything else; where the plan names hosts, it starts a proxy for them, on a socket of the
kernel's making. It says `PID REPORT\\n` on LIFELINE (JSON: which layers there are, or null);
and waits there for one byte from its host, which then has recorded the kernel; end of file
instead means that the host is gone and nobody will ever know of this kernel. When the kernel
ends, or on SIGTERM, it writes how to STATUS (JSON: pid, status or signal, oom), ends
everything below itself until nothing is left, removes the sockets' folder RUNTIME, and exits.
Orphans of the kernel fall to it (child subreaper).
"""

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    _PutOn = Callable[[bytes, int, Callable[..., None] | None], bool]

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
REFUSED = 78
"""Status of a kernel that did not go on without a layer."""


def main(argv: list[str]) -> None:
    """Keep one kernel from its start to the end of its tree."""
    status, log, cwd, runtime, lifeline, numbers, dashes, *command = argv
    assert dashes == "--"
    fds = [int(fd) for fd in filter(None, numbers.split(","))]

    def begin() -> None:
        try:
            os.execvp(command[0], command)  # noqa: S606 - that is its purpose
        except OSError as exc:
            print(f"cave: cannot start {command[0]!r}: {exc}", file=sys.stderr, flush=True)

    keep([status, log, cwd, runtime], int(lifeline), fds, begin=begin, layers=_layers)


def keep(
    paths: list[str],
    line: int,
    fds: list[int],
    *,
    begin: Callable[[], None],
    layers: "Callable[[], Any]",
) -> None:
    """Keep the kernel that `begin` becomes, in a child, held to what `layers` gives.

    `paths` are STATUS, LOG, CWD and RUNTIME. `begin` does not return when it works.
    """
    status, log, cwd, runtime = paths
    os.set_inheritable(line, False)  # noqa: FBT003
    wake = _wake_on_signals()
    libc = _libc()
    if libc is not None:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # nothing holds who can write to its memory
    ooms = _oom_kills()
    plan = _read_line(line)
    if not plan:
        return
    lender = _Lender() if b'"file"' in plan else None
    hosts = _hosts(plan)
    proxy = _Proxy(hosts, os.path.join(os.path.dirname(log), "network")) if hosts else None
    confine = None if plan == b"null" else _confine(layers())
    pid, report = _spawn(
        begin, cwd, log, libc, plan=plan, confine=confine, lender=lender, proxy=proxy
    )
    for fd in fds:
        os.close(fd)  # else clients of a dead kernel would wait instead of being refused
    if proxy is not None:
        proxy.start()
    os.write(line, b"%d %s\n" % (pid, report))
    if not _wait(pid, wake, line, lender, proxy):
        os.kill(pid, signal.SIGKILL)
    code = _reap(pid)
    _write_status(status, pid, code, oom=code == -signal.SIGKILL and _oom_kills() > ooms)
    _end_tree()
    _remove(runtime)


def _remove(folder: str) -> None:
    try:
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    except OSError:
        return  # the host was quicker, or will be


def _libc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None, use_errno=True)
    return libc if hasattr(libc, "prctl") else None


def _wake_on_signals() -> int:
    """The end of a pipe that gets a byte per signal."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return reading


def _read_line(line: int) -> bytes:
    """What comes up to the end of a line; nothing when the host is gone."""
    text = b""
    while not text.endswith(b"\n"):
        part = os.read(line, 1 << 16)
        if not part:
            return b""
        text += part
    return text.strip()


def _spawn(
    begin: Callable[[], None],
    cwd: str,
    log: str,
    libc: ctypes.CDLL | None,
    *,
    plan: bytes,
    confine: "_PutOn | None",
    lender: "_Lender | None",
    proxy: "_Proxy | None",
) -> tuple[int, bytes]:
    """Start the kernel; its number, and what it said of its layers before its program began."""
    keeper = os.getpid()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        with open(reading, "rb") as told:
            report = told.read() or b"null"
        return pid, report
    try:
        _become_kernel(cwd, log)
        if lender is not None:
            lender.offer()
        hand = None if proxy is None else proxy.hand
        if confine is not None and not confine(plan, writing, hand):
            os._exit(REFUSED)
        if proxy is not None:
            proxy.given()
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == keeper:
            begin()
    except OSError as exc:
        print(f"cave: the kernel cannot start: {exc}", file=sys.stderr, flush=True)
    os._exit(127)


def _hosts(plan: bytes) -> list[str]:
    """The hosts that a plan lets cells reach through a proxy."""
    if plan == b"null":
        return []
    import json

    found: list[str] = json.loads(plan)["hosts"]
    return found


def _layers() -> "Any":
    """The package of what confines a kernel."""
    sys.path.append(os.path.join(os.path.dirname(os.path.dirname(__file__)), "inkernel"))
    import importlib

    return importlib.import_module("confine")


def _confine(layers: "Any") -> "_PutOn":
    """Puts on the layers of a plan, and tells which; False where one that is required lacks."""
    import json

    def put_on(plan: bytes, telling: int, hand: "Callable[..., None] | None") -> bool:
        wanted = json.loads(plan)
        report = layers.apply(wanted, hand)
        os.write(telling, json.dumps(report).encode())
        return not (wanted["require"] and report["missing"])

    return put_on


def _become_kernel(cwd: str, log: str) -> None:
    os.setsid()
    # a host started by `nohup` or a task runner passes ignored and blocked signals on
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.chdir(cwd)


class _Lender:
    """Makes files in memory for a kernel whose own may not grow: images of it are long ones."""

    SIZE = 1 << 40

    def __init__(self) -> None:
        import socket

        self._send = socket.send_fds
        self._ours, self._theirs = socket.socketpair()
        self.fd = self._ours.fileno()

    def offer(self) -> None:
        """In the kernel: tell its program where to ask."""
        self._ours.close()
        fd = self._theirs.detach()
        os.set_inheritable(fd, True)  # noqa: FBT003
        os.environ["CAVE_LENDER"] = str(fd)

    def kept(self) -> None:
        """In the keeper: that end is the kernel's alone."""
        self._theirs.close()

    def lend(self) -> bool:
        """Answer one request; False when nobody asks any more."""
        if not self._ours.recv(1):
            return False
        fd = os.memfd_create("cave", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, self.SIZE)
            self._send(self._ours, [b"+"], [fd])
        finally:
            os.close(fd)
        return True


class _Proxy:
    """Starts the proxy of a kernel, on the socket that the kernel has made for it."""

    _RUN = (
        "import sys; sys.path.append(sys.argv[1]); from proxy import server; "
        "server.main(sys.argv[2:])"
    )

    def __init__(self, hosts: list[str], log: str) -> None:
        import json
        import socket

        self._receive, self._send = socket.recv_fds, socket.send_fds
        self._ours, self._theirs = socket.socketpair()
        self._hosts, self._log = json.dumps(hosts), log
        self._listener = -1
        self._pid = 0
        self._began = 0.0

    def hand(self, listener: int, environ: dict[str, str]) -> None:
        """In the kernel: give the socket to us, and tell programs where it is."""
        self._send(self._theirs, [b"+"], [listener])
        os.environ.update(environ)

    def given(self) -> None:
        """In the kernel: it has given what it had to give."""
        self._theirs.close()
        self._ours.close()

    def start(self) -> None:
        """In the keeper: start the proxy, unless the kernel has given nothing."""
        self._theirs.close()
        with self._ours:
            found = self._receive(self._ours, 1, 1)[1]
        if found:
            self._listener = found[0]
            self._run()

    def mind(self, dead: list[int]) -> None:
        """Start it again, if it was among the dead and had not died at once."""
        if self._pid in dead and time.monotonic() - self._began > 1:
            self._run()

    def _run(self) -> None:
        self._began = time.monotonic()
        keeper = os.getpid()
        self._pid = os.fork()
        if self._pid:
            return
        try:
            os.setsid()
            os.set_inheritable(self._listener, True)  # noqa: FBT003
            _weaken()
            if os.getppid() == keeper:
                above = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
                command = [sys.executable, "-I", "-S", "-c", self._RUN, above]
                os.execv(command[0], [*command, str(self._listener), self._log, self._hosts])  # noqa: S606 - that is its purpose
        except OSError as exc:
            print(f"cave: cannot start the proxy: {exc}", file=sys.stderr, flush=True)
        os._exit(127)


def _weaken() -> None:
    """Be the user without any right beyond, until the keeper ends."""
    import importlib

    privileges = importlib.import_module("confine.privileges")
    system = importlib.import_module("confine.system")
    try:
        privileges.drop()
        privileges.no_new()
        system.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except system.Missing:
        return  # not on this system


def _wait(pid: int, wake: int, line: int, lender: _Lender | None, proxy: _Proxy | None) -> bool:
    """Until the kernel ends. False when it is to be ended."""
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    poll.register(line, select.POLLIN)
    if lender is not None:
        lender.kept()
        poll.register(lender.fd, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if lender is not None and fd == lender.fd:
                if not lender.lend():
                    poll.unregister(fd)
            elif fd == line:
                poll.unregister(line)
                if not os.read(line, 1):
                    return False
            elif signal.SIGTERM in os.read(wake, 512):
                return False
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True
        dead = _reap_orphans(pid)
        if proxy is not None:
            proxy.mind(dead)


def _reap(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _reap_orphans(kernel: int) -> list[int]:
    """Bury the dead that fell to us, and say who; but leave the kernel's status for later."""
    dead: list[int] = []
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return dead
        if found is None or found.si_pid == kernel:
            return dead
        os.waitpid(found.si_pid, 0)
        dead.append(found.si_pid)


def _write_status(path: str, pid: int, code: int, *, oom: bool) -> None:
    end = f'"signal": {-code}' if code < 0 else f'"status": {code}'
    text = f'{{"pid": {pid}, {end}, "oom": {"true" if oom else "false"}}}'
    try:
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(path + ".new", path)
    except OSError as exc:
        print(f"cave: cannot write {path}: {exc}", file=sys.stderr)


def _end_tree() -> None:
    """Kill children until there are none; what they leave behind falls to us in turn."""
    while True:
        try:
            for child in _children():
                os.kill(child, signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ProcessLookupError:
            continue
        except ChildProcessError:
            return
        time.sleep(0.002)


def _children() -> list[int]:
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return [pid for pid in _processes() if _parent(pid) == me]


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _oom_kills() -> int:
    """Processes of our cgroup that the system ended for memory, as its counter says."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            group = next(line[3:].strip() for line in file if line.startswith("0::"))
        with open(f"/sys/fs/cgroup{group}/memory.events", encoding="utf-8") as file:
            counters = dict(line.split() for line in file)
        return int(counters.get("oom_kill", 0))
    except (OSError, ValueError, StopIteration):
        return 0


if __name__ == "__main__":
    main(sys.argv[1:])
