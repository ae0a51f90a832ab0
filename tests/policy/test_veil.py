"""Secrets in values that come back: stand-ins as long as they are, in skills' values, snapshots."""

from __future__ import annotations

import asyncio
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

import cave
from cave import broker
from cave.errors import StoreError
from cave.kernel import values
from cave.policy.redaction import encodings
from cave.policy.veil import BLOCK, SIFTED, Veil
from cave.store.blobs import FolderBlobs

SECRET = "päss/word+with letters"


def veil(**secrets: str) -> Veil:
    return Veil(lambda: b"key", secrets or {"TOKEN": SECRET})


@pytest.mark.parametrize("form", encodings(SECRET))
def test_each_form_is_replaced_and_comes_back(form: str) -> None:
    """Nothing of it stays, no length changes, and the way back gives the same bytes."""
    there = encodings(SECRET)[form]
    data = b"\x80\x05" + there + b"between" + there + b"."
    hidden, names = veil().hide(data)
    assert (len(hidden), names) == (len(data), {"TOKEN"})
    assert there not in bytes(hidden)
    assert veil().reveal(hidden, names) == (data, {"TOKEN"})
    if form.startswith("utf-"):
        assert bytes(hidden)[2 : 2 + len(there)].decode(form).isalnum()


def test_long_bytes_are_searched_as_short_ones_are() -> None:
    """Also where a secret lies across two blocks; what has none is the same object."""
    draw = random.Random(3)
    data = bytearray(draw.randbytes(BLOCK + 3 * SIFTED))
    assert veil().hide(data)[0] is data
    there = SECRET.encode()
    for at in (0, SIFTED, BLOCK - 5, len(data) - len(there)):
        data[at : at + len(there)] = there
    hidden, _ = veil().hide(data)
    assert there not in bytes(hidden)
    assert veil().reveal(hidden, ["TOKEN"])[0] == data


def test_a_pickle_stays_one() -> None:
    """Lengths in it are right with the stand-ins, and with another secret as long."""
    value = {SECRET: [SECRET.encode(), 1]}
    hidden, names = veil().hide(pickle.dumps(value))
    loaded = pickle.loads(hidden)
    assert SECRET not in loaded
    other = "n" * len(SECRET.encode())
    shown, _ = veil(TOKEN=other).reveal(hidden, names)
    assert pickle.loads(shown) == {other: [other.encode(), 1]}


@pytest.mark.parametrize("size", [1, 40_000])
def test_what_a_skill_gave_is_kept_without_its_secrets(tmp_path: Path, size: int) -> None:
    """In the event as in a blob; the kernel gets the value as it was, or the reason why not."""
    blobs, given = FolderBlobs(tmp_path), {"token": SECRET, "pad": ["x" * size]}
    stored = asyncio.run(broker.store(values.encode(given), blobs, veil()))
    assert stored.secrets == ("TOKEN",)
    files = b"".join(f.read_bytes() for f in tmp_path.rglob("*") if f.is_file())
    for data in (broker.load(stored, blobs).header, files):
        assert SECRET.encode() not in bytes(data)
    assert values.decode(broker.load(stored, blobs, veil()), name="r") == given
    with pytest.raises(StoreError, match=r"Policy\(secrets=\['TOKEN'\]\)"):
        broker.load(stored, blobs, veil(OTHER="something else"))
    with pytest.raises(StoreError, match="another length"):
        broker.load(stored, blobs, veil(TOKEN="much shorter"))


def _lost_by_a_death(s: Any) -> dict[str, str]:
    """What did not come back, with the reason."""
    assert s.run("import os; os.kill(os.getpid(), 9)").status == "died"
    s.run("0")
    return {entry.name: entry.reason for entry in s.last_restore.lost}


def test_variables_come_back_with_secrets_or_are_lost_by_name(
    sessions: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the environment while it has them; one that is gone costs the variables that hold
    it, and they say which; with keep_secrets="never" all of them."""
    monkeypatch.setenv("TOKEN", SECRET)
    s = cave.open("kept", policy=cave.Policy(secrets=["TOKEN"], env=["TOKEN"]))
    s.run("import os, numpy as np; held = {'k': os.environ['TOKEN']}; plain = [1]")
    s.run("big = np.frombuffer(bytearray(os.environ['TOKEN'].encode() * 20_000), dtype='u1')")
    assert {v.name: v.fidelity for v in s.vars}["held"] == "rebuilt"
    assert not _lost_by_a_death(s)
    assert s["held"] == {"k": SECRET}
    assert bytes(s["big"]) == SECRET.encode() * 20_000
    assert "comes from the environment" in str(s.last_restore)
    cave.open("kept", policy=cave.Policy(secrets=["TOKEN"], keep_secrets="never"))
    s.run("mine = [held['k']]")
    lost = _lost_by_a_death(s)
    assert "the secret 'TOKEN' in it is not kept" in lost["mine"]
    assert s["held"] == {"k": SECRET}  # what was written before keeps its reference
    monkeypatch.delenv("TOKEN")
    lost = _lost_by_a_death(s)
    assert {"held", "mine"} <= lost.keys()
    assert "Policy(secrets=['TOKEN'])" in lost["held"]
    assert s["plain"] == [1]
