"""Attack cells under each profile, as root and as an ordinary user; and a system without a layer.

`python -m tests.attacks` prints the whole table.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cave.inkernel.confine import LAYERS
from cave.kernel.confinement import OPEN, left_open
from tests.attacks import _cells, _run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux's")
SWEEP = bool(os.environ.get("CAVE_CRASH_ROUNDS"))
USERS = ["ordinary"] if os.getuid() else ["root", "ordinary"]
LEFT = {"shared_memory": "shared-memory", "change_mode": "metadata"}
"""Attacks that no layer stops, by the words in which that is told."""
NEEDS_NO_LAYER = {"fifo_artifact", "symlink_out", "unkillable"}


@pytest.mark.parametrize("user", USERS)
def test_confined_cells_get_nowhere(user: str) -> None:
    """Every attack is stopped but for those that doctor names, and no layer is missing."""
    if user != "root" and not _run.can_be_ordinary():
        pytest.skip("root without mount namespaces cannot be an ordinary user")
    found = _run.run("confined", ordinary=user == "ordinary")
    print(_run.table({f"confined, {user}": found}))
    every = {*_cells.LISTED, *_cells.MORE, *_cells.HOSTS, *NEEDS_NO_LAYER}
    assert len(found.outcomes) == len(every)
    assert found.reaches, "the host that is allowed"
    told = left_open(another_user=user == "root")
    if found.degraded:
        pytest.skip("this system lacks layers: " + "; ".join(found.degraded))
    layers = {line.partition(":")[0] for line in found.layers}
    assert layers >= {*LAYERS} - ({"user"} if user == "ordinary" else set())
    assert {LEFT.get(name, name) for name in found.open} <= set(told)
    assert found.open <= LEFT.keys()


@pytest.mark.skipif(not SWEEP, reason="scripts/crash runs it: nothing holds its cells")
def test_the_attacks_are_attacks() -> None:
    """Where nothing confines cells all that they try succeeds, or their user may not do it."""
    found = _run.run("open", ordinary=False)
    print(_run.table({"open": found}))
    stopped = found.outcomes.keys() - found.open
    assert stopped <= {
        *NEEDS_NO_LAYER, "read_shadow", "read_disk", "write_packages", "core_pattern", "device",
        "bpf", "perf", "mount", "chroot", "become_root", "new_file_system", "userns",
        "namespace_by_clone", "multipath", "to_metadata", "file_by_proxy", "header_by_line_feed",
    }  # fmt: skip


LANDLOCK, NAMESPACES = "landlock_create_ruleset", "unshare"


def without(call: str, folder: Path, *, require: bool) -> str:
    """What a host says on a system where a call fails."""
    mode = f"{call} {'require' if require else 'go-on'}"
    command = [sys.executable, "-m", "tests.attacks._without", mode, str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=100,
        cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_missing_layer_is_named(tmp_path: Path) -> None:
    """Without Landlock a kernel starts, says by name what is open, and that is open."""
    said = without(LANDLOCK, tmp_path, require=False)
    assert f"DEGRADED landlock: {OPEN['landlock']}" in said
    assert "read a file: open" in said
    assert "make a socket: stopped" in said
    assert "process of the keeper: environ stopped mem stopped" in said


@pytest.mark.skipif(not _run.can_be_ordinary(), reason="no mount namespaces")
def test_without_landlock_a_cell_looks_into_its_host_and_not_into_its_keeper() -> None:
    """What steers an ordinary user's kernel stays closed; that the rest is open is said."""
    said = _run.started("_without", f"{LANDLOCK} go-on", ordinary=True)
    assert f"DEGRADED landlock: {OPEN['landlock']}, and the memory of the user's programs" in said
    assert "process of the host: environ open" in said
    assert "process of the keeper: environ stopped mem stopped" in said


def test_a_missing_network_is_named(tmp_path: Path) -> None:
    """Without namespaces a kernel with hosts says what else can be reached: that, and no more."""
    said = without(NAMESPACES, tmp_path, require=False)
    if "DEGRADED landlock" in said:
        pytest.skip("nothing else holds connections here")
    assert f"DEGRADED network: {OPEN['network']}" in said
    assert "connections are held to port" in said
    assert "connect to the proxy's port: open" in said
    for way in ("connect", "send", "send a message"):
        assert f"{way} to another port: stopped" in said


@pytest.mark.parametrize(("call", "layer"), [(LANDLOCK, "landlock"), (NAMESPACES, "network")])
def test_a_missing_layer_that_is_required_is_a_refusal(
    tmp_path: Path, call: str, layer: str
) -> None:
    """Where confinement is required nothing is started without a layer, and nothing is left."""
    said = without(call, tmp_path, require=True)
    assert said.startswith("KernelStartError: the kernel was not started")
    assert f"DEGRADED {layer}: {OPEN[layer]}" in said
    assert not list(tmp_path.glob("session/kernels/*"))
