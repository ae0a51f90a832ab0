"""The audit: who allowed what, on which evidence, and whether the journal was changed since."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cave import audit
from cave.cli import cave as command
from cave.errors import ConfigError
from cave.events import (
    ApprovalRequested,
    ApprovalSettled,
    CellFinished,
    CellStarted,
    EffectIntent,
    EffectResult,
    Event,
    Fault,
    SessionOpened,
)
from cave.store import SQLStore, chain, this_process
from cave.store.schema import GENESIS

DIGEST, EDITED = "d" * 64, "e" * 64


def call(effect: str, ordinal: int, digest: str) -> EffectIntent:
    return EffectIntent(effect=effect, attempt=1, skill="post", effect_kind="write", runs="host",
                        cell=1, ordinal=ordinal, digest=digest, key=effect,
                        arguments={"n": "1"}, hash="h")  # fmt: skip


def asked(approval: str, ordinal: int, digest: str) -> ApprovalRequested:
    return ApprovalRequested(approval=approval, what="post(n=1)", digest=digest, skill="post",
                             reason="the policy asks", covers="post@h", cell=1,
                             ordinal=ordinal)  # fmt: skip


EVENTS: tuple[Event, ...] = (
    SessionOpened(version="1", uid="u"),
    CellStarted(cell=1, source="post(1); post(2); post(3)"),
    call("e1", 1, "a" * 64),
    EffectResult(effect="e1", attempt=1, state="done"),
    asked("a1", 2, DIGEST),
    ApprovalSettled(approval="a1", state="approved", digest=DIGEST, actor="alice",
                    via="terminal", edited=EDITED),
    call("e2", 2, EDITED),
    asked("a2", 3, DIGEST),
    ApprovalSettled(approval="a2", state="denied", digest=DIGEST, actor="bob", via="notebook"),
    CellFinished(cell=1, status="denied", error=Fault("PolicyViolation", "line 1: no")),
)  # fmt: skip


async def _filled(path: Path) -> None:
    store = SQLStore(path)
    await store.create("q3")
    lease = await store.acquire("q3", this_process())
    await store.append(lease, EVENTS, sync=True, release=True)
    await store.close()


def log(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["log", "q3", "--audit", *arguments], catch_exceptions=False)


def rewritten(path: Path, edit: str) -> None:
    """Edit the journal and hash it anew from its beginning, head included."""
    with sqlite3.connect(path) as db:
        db.executescript(edit)
        (of, uid), last, seq = db.execute("SELECT id, uid FROM sessions").fetchone(), GENESIS, 0
        rows = db.execute("SELECT seq, at, type, format, lease, body FROM events ORDER BY seq")
        for seq, at, type, format, lease, body in rows.fetchall():
            last = chain.link(last, uid=uid, seq=seq, at=at, type=type, format=format,
                              lease=lease, body=body)  # fmt: skip
            db.execute("UPDATE events SET hash = ? WHERE seq = ?", (last, seq))
        db.execute("UPDATE sessions SET seq = ?, hash = ? WHERE id = ?", (seq, last, of))
    db.close()


def test_the_audit_says_who_allowed_what_on_which_evidence(home: Path) -> None:
    """Each call with the leave that it had, each answer with who gave it, by digest and record."""
    asyncio.run(_filled(home / "cave.db"))
    done = log("--json")
    *lines, end = [json.loads(line) for line in done.stdout.splitlines()]
    told = {line["seq"]: line for line in lines}
    assert done.exit_code == 0
    assert (told[3]["deed"], told[3]["by"]) == ("called", "no rule that asks")
    assert (told[5]["deed"], told[5]["by"]) == ("asked", "the policy asks")
    assert (told[6]["deed"], told[6]["by"]) == ("approved", "alice via terminal")
    assert told[6]["digest"] == told[7]["digest"] == EDITED
    assert (told[7]["what"], told[7]["by"]) == ("e2 post(n=1)", "a1, alice")
    assert (told[9]["deed"], told[9]["by"]) == ("denied", "bob via notebook")
    assert told[10]["by"] == "the policy: line 1: no"
    with sqlite3.connect(home / "cave.db") as db:
        hashes = {seq: hash.hex() for seq, hash in db.execute("SELECT seq, hash FROM events")}
    db.close()
    assert all(line["record"] == hashes[seq] for seq, line in told.items())
    assert end == {"records": 10, "anchor": f"10:{hashes[10]}", "faults": []}


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        ("DELETE FROM events WHERE seq > 8", "the journal ends at 8"),
        (
            "UPDATE events SET body = CAST(replace(body, 'bob', 'eve') AS BLOB) WHERE seq = 9",
            "was written anew",
        ),
    ],
)
def test_an_anchor_finds_what_the_chain_alone_cannot(home: Path, edit: str, reason: str) -> None:
    """A journal that was cut or edited and hashed anew is whole, and not the one of the anchor."""
    asyncio.run(_filled(home / "cave.db"))
    printed = log().stdout.splitlines()
    assert "10 records, the hash chain is whole" in printed[-2]
    anchor = printed[-1].split()[1]
    assert "goes on from anchor 10" in log("--anchor", anchor).stdout
    rewritten(home / "cave.db", edit)
    assert log().exit_code == 0
    found = log("--anchor", anchor)
    assert found.exit_code == 1
    assert reason in found.stdout


def test_a_broken_chain_is_told_with_the_audit(home: Path) -> None:
    """By the number of the record, with exit status 1."""
    asyncio.run(_filled(home / "cave.db"))
    with sqlite3.connect(home / "cave.db") as db:
        db.execute("DELETE FROM events WHERE seq = 6")
    db.close()
    with sqlite3.connect(home / "cave.db") as db:
        db.execute("UPDATE events SET seq = seq - 1 WHERE seq > 6")
    db.close()
    found = log()
    assert found.exit_code == 1
    assert "FAILED  record 6" in found.stdout
    with pytest.raises(ConfigError, match="no anchor"):
        audit.moved({}, "yesterday")
