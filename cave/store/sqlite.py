"""All that only SQLite needs: connections, pragmas, where it may live, what its faults mean.

The journal is in WAL mode. A commit with `synchronous=NORMAL` writes the log without
waiting for the disk: it survives the death of any process (kill -9), and a power cut or a
crash of the system may take the newest such commits, never a part of one and never an
older one before a newer. A commit with FULL waits for the log, and so makes every earlier
commit safe too. See https://www.sqlite.org/pragma.html#pragma_synchronous
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Literal

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool, QueuePool

from cave.errors import StoreError
from cave.store.disk import explain_os, full

Role = Literal["write", "read"]

NETWORK = frozenset(
    {"afs", "beegfs", "ceph", "cifs", "davfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs"}
    | {"nfs4", "orangefs", "smb3", "smbfs", "fuse.ceph", "fuse.davfs", "fuse.davfs2"}
    | {"fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.rclone", "fuse.s3fs", "fuse.sshfs"}
)
"""File systems that more than one machine can mount: WAL's shared memory does not work there."""

MOUNTS = Path("/proc/self/mounts")


def engine(path: Path, *, role: Role, busy_timeout: float) -> Engine:
    """Connections to the file: one at a time to write, a small pool to read."""
    made = create_engine(
        f"sqlite:///{path}",
        paramstyle="named",
        # transactions are begun by us (BEGIN IMMEDIATE), never by the driver
        connect_args={
            "timeout": busy_timeout,
            "isolation_level": None,
            "check_same_thread": False,
        },
        **_pool(role),
    )
    # a checkpoint waits for the disk twice; the log may grow to 16 MB between two of them
    pragmas = ["PRAGMA foreign_keys=ON", "PRAGMA wal_autocheckpoint=4000"]
    if role == "read":
        pragmas.append("PRAGMA query_only=ON")

    @event.listens_for(made, "connect")
    def _configure(connection: sqlite3.Connection, _record: object) -> None:
        for pragma in pragmas:
            connection.execute(pragma)

    return made


def _pool(role: Role) -> dict[str, object]:
    if role == "write":
        return {"poolclass": NullPool}
    return {"poolclass": QueuePool, "pool_size": 4}


def use_wal(connection: sqlite3.Connection) -> None:
    """Put the file in WAL mode; raises the driver's error when another holds it."""
    mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    if mode != "wal":
        mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise StoreError(f"the file system of this database does not allow WAL (it stays {mode!r})")


def begin(cursor: sqlite3.Cursor, *, sync: bool, patience: float) -> None:
    """Begin to write. The write lock is taken first, so that what is read stays true.

    `synchronous` cannot be changed inside a transaction, so it is set before; where the log has
    still to be recovered, that too meets another program's lock. Waits for such locks by
    itself: SQLite's own waiting sleeps up to 0.1 s at a time, and does not wait at all in some
    states of the log.
    """
    until, pause = time.monotonic() + patience, 0.0005
    while True:
        try:
            cursor.execute("PRAGMA synchronous=FULL" if sync else "PRAGMA synchronous=NORMAL")
            cursor.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as fault:
            if not is_busy(fault) or time.monotonic() > until:
                raise
        else:
            return
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


def is_busy(fault: BaseException | None) -> bool:
    """Whether another program's lock is in the way."""
    return (
        isinstance(fault, sqlite3.Error)
        and getattr(fault, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
    )


def folder_of(path: Path) -> None:
    """Make the folder of the file. Raises `StoreError` where SQLite cannot work."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as fault:
        raise explain(fault, path) from fault
    if (kind := network_filesystem(path.parent)) is not None:
        raise StoreError(
            f"{str(path)!r} is on a network file system ({kind}), where SQLite loses data; "
            f"set CAVE_HOME to a folder on a local disk"
        )
    if path.is_dir():
        raise StoreError(f"{str(path)!r} is a folder, not a database file")


def network_filesystem(folder: Path, mounts: Path = MOUNTS) -> str | None:
    """The type of the network file system that `folder` is on; None when it is a local one."""
    try:
        lines = mounts.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:  # no such list here (macOS)
        return None
    real = Path(os.path.realpath(folder))
    best, kind = Path("/"), ""
    for line in lines:
        _, point, fstype, *_ = line.split(" ")
        mount = Path(point.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\"))
        if real.is_relative_to(mount) and len(mount.parts) >= len(best.parts):
            best, kind = mount, fstype
    return kind if kind in NETWORK else None


def explain(fault: BaseException, path: Path) -> StoreError:
    """The `StoreError` for a fault of SQLite, of SQLAlchemy or of the system."""
    if isinstance(fault, StoreError):
        return StoreError(*fault.args)
    if isinstance(fault, DBAPIError) and fault.orig is not None:
        fault = fault.orig
    name = repr(str(path))
    if isinstance(fault, sqlite3.Error) and hasattr(fault, "sqlite_errorcode"):
        return StoreError(_explain_sqlite(fault, name))
    if isinstance(fault, OSError):
        return explain_os(fault, path)
    return StoreError(f"{name}: {fault}")


def _explain_sqlite(fault: sqlite3.Error, name: str) -> str:
    match fault.sqlite_errorcode & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return (
                f"{name} is locked by another program (tried until the time limit); nothing was "
                f"written: close that program, or try again"
            )
        case sqlite3.SQLITE_FULL:
            return full(name)
        case sqlite3.SQLITE_IOERR:
            return (
                f"{name}: the disk failed ({fault}, {fault.sqlite_errorname}); nothing of this was "
                f"written: look at free space and the system's log, then try again"
            )
        case sqlite3.SQLITE_NOTADB:
            return f"{name} is not a database; move it away, or set CAVE_HOME to another folder"
        case sqlite3.SQLITE_CORRUPT:
            return f"{name} is damaged ({fault}); restore it from a copy, or move it away"
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return (
                f"{name} cannot be opened for writing ({fault}): the file or its folder is "
                f"read-only for this user; set CAVE_HOME to a folder that is yours"
            )
        case _:
            return f"{name}: {fault} ({fault.sqlite_errorname})"
