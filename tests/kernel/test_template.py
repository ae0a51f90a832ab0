"""Templates: a kernel that is forked off one is as good as one that was started cold."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import cave
from cave.errors import KernelStartError
from cave.events import KernelStarted
from cave.kernel import Confinement, Kernel, launch, template
from tests.kernel import _environment
from tests.kernel._host import DEADLINE, Host, alive, leftovers, text

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there are templates on Linux only")

sweep = pytest.mark.skipif(
    not os.environ.get("CAVE_CRASH_ROUNDS"), reason="scripts/crash runs it: it starts many kernels"
)
SEED = 7
_FACTS = """
import ctypes, gc, json, locale, multiprocessing, os, resource, signal, sys
import tempfile, threading, time
umask = os.umask(0o77); os.umask(umask)
print(json.dumps({
    "environ": dict(os.environ), "path": sys.path, "argv": sys.argv, "flags": str(sys.flags),
    "cwd": os.getcwd(), "umask": umask, "ids": [os.getresuid(), os.getresgid(), os.getgroups()],
    "limits": [resource.getrlimit(n) for n in range(16) if n != resource.RLIMIT_NPROC],
    "signals": [str(signal.getsignal(n)).split(" at ")[0] for n in signal.valid_signals()],
    "nice": os.nice(0), "recursion": sys.getrecursionlimit(), "tracer": str(sys.gettrace()),
    "blocked": str(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "locale": locale.setlocale(0),
    "temporary": tempfile.gettempdir(), "zone": time.tzname, "gc": gc.get_threshold(),
    "threads": [t.name.split("-")[0] for t in threading.enumerate()], "hash": hash("a"),
    "imported": [n for n in ("numpy", "pandas", "pyarrow", "cave", "debugpy") if n in sys.modules],
    "streams": [[s.encoding, s.errors] for s in (sys.stdin, sys.stdout, sys.stderr)],
    "held": [line for line in open("/proc/self/status")
             if line.startswith(("NoNewPrivs", "Seccomp", "Cap"))],
    "dumpable": ctypes.CDLL(None).prctl(3),
    "session": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
}))
"""
_RANDOM = """
import multiprocessing, random, uuid
print(random.random(), bytes(multiprocessing.current_process().authkey).hex(), uuid.uuid4())
import numpy
print(numpy.random.random(), numpy.random.default_rng().random())
"""


class Warm:
    """A folder of templates, and the host of kernels that they fork."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "t"
        self.host = Host(
            root,
            templates=self.folder,
            hash_seed=SEED,
            confinement=Confinement(env=("ONLY_HERE",)),
        )
        self._numbers = iter(range(1, 99))

    def start(self, **options: object) -> Kernel:
        return self.host.start(next(self._numbers), **options)

    def template(self) -> psutil.Process:
        """The process that forks, as soon as it is ready."""
        for _ in range(int(DEADLINE * 20)):
            for path in self.folder.glob("t-??????????"):
                with socket.socket(socket.AF_UNIX) as asking:
                    if asking.connect_ex(os.fspath(path)) == 0:
                        return psutil.Process(template._peer(asking)[0])
            self.host(asyncio.sleep(0.05))
        raise TimeoutError("no template got ready")

    def fetch(self, source: str) -> str:
        """What a cell of the newest kernel prints."""
        done = self.host.run(source)
        assert done.status == "ok", done.error
        return text(done)


@contextlib.contextmanager
def templates_of_its_own() -> Iterator[Warm]:
    """Templates that end with their folder, and leave nothing."""
    with tempfile.TemporaryDirectory(prefix="cave-test-") as folder:
        warm = Warm(Path(folder))
        try:
            yield warm
        finally:
            warm.host.close()
            here = [p for p in psutil.process_iter(["cmdline"]) if folder in str(p.info["cmdline"])]
    for process in here:
        wait_for_the_end_of(process)


def wait_for_the_end_of(process: psutil.Process) -> None:
    """With a deadline; who has ended may not be buried yet."""
    with contextlib.suppress(ProcessLookupError):
        ended = os.pidfd_open(process.pid)
        try:
            assert select.select([ended], [], [], DEADLINE)[0], f"{process} outlived its folder"
        finally:
            os.close(ended)


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    """A cold kernel, the first, whose facts are noted, and a template."""
    with templates_of_its_own() as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONLY_HERE", "of the first host")
        made.start()
        patch.delenv("ONLY_HERE")
        made.template()
        yield made


@pytest.fixture
def broken() -> Iterator[Warm]:
    """Another one, whose template a test may break; nothing was started."""
    with templates_of_its_own() as made:
        yield made


def test_a_forked_kernel_is_what_a_cold_one_is(warm: Warm, tmp_path: Path) -> None:
    """The first kernel is started cold, the next is forked: cells see the same process, under
    the same layers, and nothing of the host that began the template."""
    cold = warm.host.kernels[0]
    assert cold.facts.start == "cold"
    expected = json.loads(text(warm.host(cold.execute(_FACTS, cell=1, lease=1))))
    assert expected["environ"].pop("ONLY_HERE") == "of the first host"
    forked = warm.start()
    assert forked.facts.start == "warm"
    assert forked.facts.layers == cold.facts.layers
    assert forked.facts.degraded == cold.facts.degraded
    assert forked.facts.packages == cold.facts.packages
    lines = [psutil.Process(kernel.facts.pid).cmdline() for kernel in (cold, forked)]
    assert lines[0][:3] == lines[1][:3]
    assert json.loads(warm.fetch(_FACTS)) == expected
    assert "first host" not in warm.fetch("print(open('/proc/self/environ').read())")
    (tmp_path / "secret").write_text("x")
    attacks = (f"open({str(tmp_path / 'secret')!r})", "import socket; socket.socket()")
    for attack in attacks:
        done = warm.host.run(attack)
        assert done.error is not None
        assert done.error.name == "PermissionError"


def test_what_is_random_is_so_in_each_fork(warm: Warm) -> None:
    """No two forks share a state of a generator or a key; `hash` has the seed of the home."""
    drawn = []
    for _ in range(2):
        warm.start()
        drawn.append(warm.fetch(_RANDOM).split())
    assert warm.host.kernel.facts.start == "warm"
    assert len({*drawn[0], *drawn[1]}) == 10


def test_libraries_are_imported_when_a_cell_imports_them(warm: Warm) -> None:
    """What the template brought along is taken at an import, unless another comes first."""
    warm.start()
    source = (
        "import sys\nopen('pyarrow.py', 'w').write('here = 1')\n"
        "import numpy\nprint('pandas' in sys.modules, numpy.arange(3).sum())\n"
        "import pyarrow\nprint(pyarrow.here)\n"
        "import pandas\nprint(pandas.DataFrame({'a': [1]}).a.sum(), pandas.__spec__.name)"
    )
    try:
        assert warm.fetch(source) == "False 3\n1\n1 pandas\n"
    finally:
        (warm.host.root / "work" / "pyarrow.py").unlink()


def test_the_keeper_of_a_fork_knows_how_it_ended(warm: Warm) -> None:
    """Exit status and signal are written down, and daemons of cells end with the kernel."""
    kernel = warm.start()
    daemon = warm.fetch(
        "import subprocess\nprint(subprocess.Popen(['sleep', '999'], start_new_session=True).pid)"
    )
    assert warm.host.run("import os; os._exit(3)").status == "died"
    assert kernel.death is not None
    assert kernel.death.status == 3
    warm.host(kernel._gone.wait())
    assert not alive(int(daemon))
    kernel = warm.start()
    os.kill(kernel.facts.pid, signal.SIGKILL)
    warm.host(kernel._dead.wait())
    assert kernel.death is not None
    assert kernel.death.signal == signal.SIGKILL


def test_a_start_that_a_cold_one_would_fail_fails_alike(warm: Warm) -> None:
    """A fork that does not come up is followed by a cold start, whose words are the user's."""
    assert warm.start(confinement=None).facts.start == "warm"
    work = warm.host.root / "work"
    work.rename(work.with_name("elsewhere"))
    before = leftovers(warm.host)
    try:
        with pytest.raises(KernelStartError, match=str(work)):
            warm.start(confinement=None)
    finally:
        work.with_name("elsewhere").rename(work)
    assert leftovers(warm.host) == before
    assert warm.start().facts.start == "warm"


@sweep
def test_templates_are_one_and_may_die_or_hang(broken: Warm) -> None:
    """Hosts that ask at once get one template. Its death harms no kernel, and the next start
    begins another; one that hangs is ended, and for a while none like it is begun."""
    first = _one_of(broken)
    kernel = broken.start()
    assert kernel.facts.start == "warm"
    first.kill()
    wait_for_the_end_of(first)
    assert broken.fetch("print(6 * 7)") == "42\n"
    assert broken.start().facts.start == "cold"
    second = broken.template()
    assert second != first
    second.suspend()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(template, "_PATIENCE", 0.5)
        assert broken.start().facts.start == "cold"
    wait_for_the_end_of(second)
    broken.host(kernel.end(reason="closed"))
    assert kernel.death is not None
    assert kernel.death.reason == "closed"
    assert (kernel.death.status, kernel.death.signal) in {(0, None), (None, signal.SIGKILL)}
    assert broken.start().facts.start == "cold"
    assert not _begun_in(broken.folder)


def _one_of(broken: Warm) -> psutil.Process:
    """The template that three processes ask for at once."""
    broken.folder.mkdir(mode=0o700)
    launched = broken.host.launch()
    environ = launch._environment(launched, broken.host.root / "run")
    source = (
        "import json, sys\nfrom pathlib import Path\nfrom cave.kernel import template\n"
        "made = template.fitting(Path(sys.argv[1]), sys.executable, json.loads(sys.argv[2]))\n"
        "print(flush=True)\nsys.stdin.read()\nmade.begin()"
    )
    command = [sys.executable, "-c", source, str(broken.folder), json.dumps(environ)]
    pipe = subprocess.PIPE
    with contextlib.ExitStack() as stack:
        popen = functools.partial(subprocess.Popen, stdin=pipe, stdout=pipe)
        hosts = [stack.enter_context(popen(command)) for _ in range(3)]
        for host in hosts:
            host.stdout.readline()
        for host in hosts:
            host.stdin.close()
        assert [host.wait(DEADLINE) for host in hosts] == [0, 0, 0]
    ready = broken.template()
    assert _begun_in(broken.folder) == [ready]
    return ready


@sweep
def test_packages_that_changed_make_a_template_unfit(broken: Warm, tmp_path: Path) -> None:
    """After an installation kernels are started cold, until there is a template of now; another
    interpreter has one of its own, with what is there."""
    python = _environment.make(tmp_path / "bare", "ipykernel", "dill")
    broken.start(python=str(python))
    first = broken.template()
    assert broken.start(python=str(python)).facts.start == "warm"
    site = next((tmp_path / "bare").rglob("site-packages"))
    (site / "added-1.0.dist-info").mkdir()
    assert broken.start(python=str(python)).facts.start == "cold"
    wait_for_the_end_of(first)


def test_a_session_whose_kernels_are_forked(
    warm: Warm, sessions: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting asks for it; the session and its journal say which start it was, and its
    variables come back in forks as well."""
    monkeypatch.setenv("CAVE_WARM", "1")
    monkeypatch.setenv("CAVE_RUNTIME_DIR", str(warm.folder))
    monkeypatch.setenv("PYTHONHASHSEED", str(SEED))
    with cave.open("forked") as s:
        s.run("import pandas\nframe = pandas.DataFrame({'a': [1, 2]})").raise_for_error()
        assert s.kernel.start == "warm"
        assert s.kernel.pid is not None
        os.kill(s.kernel.pid, signal.SIGKILL)
        assert s.run("int(frame.a.sum())").text == "3"
        started = [e.start for e in s.events() if isinstance(e, KernelStarted)]
    assert started == ["warm", "warm"]


def test_who_is_confined_gets_no_kernel(warm: Warm) -> None:
    """A process with fewer rights than the template is refused, whatever it knows."""
    path = next(warm.folder.glob("t-??????????"))
    source = (
        "import ctypes, socket, sys\nctypes.CDLL(None).prctl(38, 1, 0, 0, 0)\n"
        "s = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n"
        "s.sendall(b'{}\\n')\nprint(s.recv(999).decode())"
    )
    command = [sys.executable, "-c", source, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert "held to something else" in done.stdout


def test_a_kernel_without_a_seed_is_started_cold() -> None:
    """Forks would share the seed of `hash`, which would be a new one at each cold start."""
    assert template.fitting(Path("/nowhere"), sys.executable, {"LANG": "C"}) is None
    random = {"PYTHONHASHSEED": "random"}
    assert template.fitting(Path("/nowhere"), sys.executable, random) is None


def _begun_in(folder: Path) -> list[psutil.Process]:
    """Templates, by their command line."""
    lines = {p: p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"])}
    return [p for p, line in lines.items() if "--template" in line and str(folder) in str(line)]
