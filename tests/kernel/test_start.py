"""Starts: facts, environments, and failures that say why and leave nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cave.errors import KernelStartError
from cave.kernel import start
from tests.kernel import _environment
from tests.kernel._host import WARM, Host, leftovers, text


@pytest.fixture
def kernelspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], str]:
    """Makes kernelspecs known by name."""
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))

    def make(argv: list[str]) -> str:
        folder = tmp_path / "kernels" / "made"
        folder.mkdir(parents=True)
        spec = {"argv": argv, "display_name": "made", "language": "python"}
        (folder / "kernel.json").write_text(json.dumps(spec))
        return "made"

    return make


def failure(host: Host, **options: Any) -> str:
    """The message of a start that fails before patience ends; asserts that nothing is left."""
    began = time.monotonic()
    with pytest.raises(KernelStartError) as caught:
        host(start(host.launch(**options)))
    assert time.monotonic() - began < 25
    assert leftovers(host) == []
    assert not list(host.root.glob("session/kernels/*"))
    here = str(host.root)
    assert not [p.info for p in psutil.process_iter(["cmdline"]) if here in str(p.info["cmdline"])]
    return str(caught.value)


def test_facts_of_a_kernel(host: Host) -> None:
    """The facts are those of the process that runs the cells."""
    facts = host.kernel.facts
    expected = (str(facts.pid), repr(facts.executable), repr(facts.python))
    source = (
        "import os, sys, platform\n"
        "print(os.getpid(), repr(sys.executable), repr(platform.python_version()))"
    )
    assert text(host.run(source)).split() == list(expected)
    assert facts.packages["ipykernel"]
    assert facts.seconds > 0
    assert facts.profile == "open"


def test_the_kernel_is_private(host: Host) -> None:
    """Sockets, connection file and record can be reached by their owner alone."""
    record = host.root / "session" / "kernels" / "1" / "kernel.json"
    for path in (record, host.kernel.facts.connection_file):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(host.kernel.facts.connection_file.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((host.root / "run").stat().st_mode) == 0o700


def test_no_port_is_open(host: Host) -> None:
    """A kernel listens on unix sockets only."""
    kernel = psutil.Process(host.kernel.facts.pid)
    assert kernel.net_connections("inet") == []


@pytest.fixture(scope="module")
def odd() -> Iterator[Host]:
    """A kernel whose host ignores SIGINT, has much in its environment, and a long path."""
    with tempfile.TemporaryDirectory(prefix="cave-test-") as folder:
        host = Host(Path(folder), env={"EXTRA": "9"})
        launched = host.launch()
        deep = host.root.joinpath(*["a-rather-long-name"] * 8)
        object.__setattr__(launched, "runtime", deep)
        old = signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            with pytest.MonkeyPatch.context() as patch:
                for name in ("OPENAI_API_KEY", "PYTHONPATH", "CAVE_THING", "JPY_PARENT_PID"):
                    patch.setenv(name, "7")
                patch.setenv("PLAIN", "8")
                host.kernels.append(host(start(launched)))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            signal.signal(signal.SIGINT, old)
        try:
            yield host
        finally:
            host.close()


def test_cells_start_clean(odd: Host) -> None:
    """Nothing of ours shadows modules or is imported for nothing; the working folder counts."""
    source = (
        "import sys\n"
        "names = ('pandas', 'numpy', 'pyarrow', 'cave', 'debugpy')\n"
        "print([m for m in names if m in sys.modules])\n"
        "print([p for p in sys.path if p.endswith(('inkernel', '/cave'))])\n"
        "print('' in sys.path, __name__)"
    )
    assert text(odd.run(source)) == "[]\n[]\nTrue __main__\n"


def test_the_environment_is_the_hosts_without_what_is_not_the_kernels_business(odd: Host) -> None:
    """Keys, CAVE_* and Python's own variables do not reach cells; others and extras do."""
    source = (
        "import os\nnames = ('OPENAI_API_KEY', 'PYTHONPATH', 'CAVE_THING', 'JPY_PARENT_PID')\n"
        "print([n for n in names if n in os.environ], os.environ['PLAIN'], os.environ['EXTRA'])\n"
        "print(os.getcwd())"
    )
    assert text(odd.run(source)) == f"[] 8 9\n{(odd.root / 'work').resolve()}\n"


def test_an_ignored_sigint_is_not_inherited(odd: Host) -> None:
    """A host that ignores SIGINT (nohup, a task runner) still has kernels that can be stopped."""
    assert odd.run("while True: pass", timeout=0.3).kept


def test_a_long_runtime_path_is_replaced_by_a_short_one(odd: Host) -> None:
    """Socket paths stay below the system's limit whatever the home is called."""
    assert len(odd.kernel.record.base) < 100
    assert text(odd.run("1 + 1")) == "2"


def test_kernels_start_at_once(make_host: Callable[..., Host]) -> None:
    """Kernels that one host starts together all come up, and each answers for itself; more
    sessions do so in `test_reports.py`."""
    hosts = make_host()
    numbers = range(int(os.environ.get("CAVE_TEST_KERNELS", "3")))
    gate = asyncio.Semaphore(6)

    async def one(number: int) -> str:
        async with gate:
            kernel = await start(hosts.launch(number))
            try:
                done = await kernel.execute(f"print('me', {number})", cell=1, lease=1)
                return text(done)
            finally:
                await kernel.end(reason="closed")

    async def all_of_them() -> list[str]:
        return list(await asyncio.gather(*(one(n) for n in numbers)))

    assert hosts(all_of_them()) == [f"me {n}\n" for n in numbers]


def test_a_kernel_that_ends_at_once_fails_with_what_it_printed(
    make_host: Callable[..., Host], kernelspec: Callable[[list[str]], str]
) -> None:
    """A kernelspec that exits gives its status and stderr, quickly, and leaves nothing."""
    name = kernelspec(["python", "-c", "import sys; print('sorry', file=sys.stderr); sys.exit(1)"])
    message = failure(make_host(), kernel=name)
    assert "'made'" in message
    assert "exit status 1" in message
    assert "sorry" in message


def test_an_ordinary_kernel_is_refused_by_name(
    make_host: Callable[..., Host], kernelspec: Callable[[list[str]], str]
) -> None:
    """A kernel that comes up without speaking our messages is a start error that says so."""
    argv = ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    message = failure(make_host(), kernel=kernelspec(argv))
    assert "does not speak cave" in message


def test_a_kernel_that_never_answers_is_given_up(
    make_host: Callable[..., Host],
    kernelspec: Callable[[list[str]], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without any sign of life a start ends after its limit."""
    import importlib

    monkeypatch.setattr(importlib.import_module("cave.kernel.reach"), "QUIET", 0.5)
    name = kernelspec(["python", "-c", "import time; time.sleep(99)"])
    assert "no sign of life" in failure(make_host(), kernel=name)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kernel": "no-such-kernel"}, ["no kernelspec 'no-such-kernel'", "cave-python"]),
        ({"python": "/no/such/python"}, ["cannot start '/no/such/python'"]),
    ],
)
def test_what_is_not_there_is_named(
    make_host: Callable[..., Host], options: dict[str, str], words: list[str]
) -> None:
    """A kernelspec or interpreter that does not exist is named in the message."""
    message = failure(make_host(), **options)
    assert all(word in message for word in words)


def test_a_missing_working_directory_is_named(make_host: Callable[..., Host]) -> None:
    """A folder of cells that does not exist is named in the message."""
    host = make_host()
    (host.root / "work").rmdir()
    assert str(host.root / "work") in failure(host)


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_a_runtime_folder_open_to_others_is_refused(
    make_host: Callable[..., Host], mode: int
) -> None:
    """Sockets are never put where other users could reach them."""
    host = make_host()
    (host.root / "run").mkdir()
    (host.root / "run").chmod(mode)
    assert "chmod 700" in failure(host)


@pytest.mark.needs_root
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give folders away")
def test_a_runtime_folder_of_another_user_is_refused(make_host: Callable[..., Host]) -> None:
    """A folder that somebody else prepared is not used."""
    host = make_host()
    (host.root / "run").mkdir(mode=0o700)
    os.chown(host.root / "run", 12345, 12345)
    assert "belongs to user 12345" in failure(host)


def test_a_linked_runtime_folder_is_refused(make_host: Callable[..., Host]) -> None:
    """A link where the runtime folder should be is not followed."""
    host = make_host()
    (host.root / "elsewhere").mkdir(mode=0o700)
    (host.root / "run").symlink_to(host.root / "elsewhere")
    assert "is no folder" in failure(host)


def test_an_old_ipykernel_is_named_with_the_cure(
    make_host: Callable[..., Host], tmp_path: Path
) -> None:
    """python= with an ipykernel before 7.4 names the version and what to type."""
    python = _environment.make(tmp_path / "old", "ipykernel", "dill", old_ipykernel=True)
    message = failure(make_host(), python=str(python))
    assert "6.29.5" in message
    assert f"{python} -m pip install 'ipykernel>=7.4'" in message


def test_an_environment_without_ipykernel_is_named_with_the_cure(
    make_host: Callable[..., Host], tmp_path: Path
) -> None:
    """python= without ipykernel says which package lacks and what to type."""
    python = _environment.make(tmp_path / "none", "dill")
    message = failure(make_host(), python=str(python))
    assert "lacks 'ipykernel'" in message
    assert "pip install" in message


def test_an_environment_with_ipykernel_and_dill_alone_works(
    make_host: Callable[..., Host], tmp_path: Path
) -> None:
    """python= needs nothing of ours nor of the scientific stack; values cross all the same."""
    python = _environment.make(tmp_path / "bare", "ipykernel", "dill")
    host = make_host(python=str(python))
    host.start()
    source = (
        "import sys, importlib.util as u, cave\n"
        "print(sys.prefix, [n for n in ('pandas', 'numpy') if u.find_spec(n)])\n"
        "print(hasattr(cave, 'open'), callable(cave.resource))"
    )
    assert text(host.run(source)) == f"{(tmp_path / 'bare').resolve()} []\nFalse True\n"
    host(host.kernel.put({"rates": {"eur": 1.1, "list": [1, None]}}, lease=1))
    assert host(host.kernel.get("rates", lease=1)) == {"eur": 1.1, "list": [1, None]}
    assert "rates" in [v.name for v in host(host.kernel.variables(lease=1))]


@pytest.mark.skipif(WARM is not None, reason="a template forks its keepers with all it has")
def test_the_keeper_imports_no_site_packages(host: Host) -> None:
    """The keeper is a bare interpreter: it starts at once and needs little memory."""
    keeper = psutil.Process(host.kernel.record.keeper)
    assert keeper.cmdline()[1:3] == ["-I", "-S"]
    assert "site-packages" not in "".join(m.path for m in keeper.memory_maps())
    assert keeper.memory_info().rss < 30 << 20


def test_sys_executable_is_ours_by_default(host: Host) -> None:
    """Without python= the kernel runs on the host's interpreter."""
    assert host.kernel.facts.executable == sys.executable
