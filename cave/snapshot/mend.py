"""After a power cut: small packs that nobody waited for are written again from the journal.

Waiting for the disk takes longer than all else that a small snapshot costs, and the journal
waits for it in any case. So the event of such a snapshot holds the whole file, and the file
is left to the system: it survives the death of any process, and when the machine itself is
started again, what is gone or torn is made anew before anybody reads.
"""

from __future__ import annotations

import binascii
import contextlib
import os
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from cave.errors import SnapshotError
from cave.store.disk import make_folder, sync_folder
from cave.store.holders import boot_id, same_boot

from .folder import LocalFolder
from .manifest import Manifest

MARK = "boot"
"""A file that names the boot of the machine in which all packs were seen to be whole."""


def as_text(file: bytes) -> str:
    """A small pack as an event holds it."""
    return binascii.b2a_base64(zlib.compress(file, 1), newline=False).decode("ascii")


def of_text(text: str) -> bytes:
    """The small pack that an event holds."""
    return zlib.decompress(binascii.a2b_base64(text))


def unsure(folder: LocalFolder) -> bool:
    """Whether the machine was started since the packs were last seen to be whole."""
    try:
        return not same_boot((folder.path / MARK).read_text("utf-8"))
    except (FileNotFoundError, UnicodeDecodeError):
        return True


def mend(
    folder: LocalFolder,
    files: Mapping[str, bytes],
    keep: Collection[str],
    read: Callable[[str], Manifest],
) -> Sequence[str]:
    """Write again what is gone or torn, and note that all is whole. Raises `OSError`."""
    mended = [id for id in keep if id in files and _mend(folder, id, files[id], ".pack")]
    needed: set[str] = set()
    for id in keep:
        with contextlib.suppress(SnapshotError):
            needed |= read(id).packs.keys()
    needed &= files.keys() - set(keep)
    mended += [id for id in sorted(needed) if _mend(folder, id, files[id], ".data")]
    if mended:
        sync_folder(folder.path)
    make_folder(folder.path)
    (folder.path / MARK).write_text(boot_id(), "utf-8")
    return mended


def _mend(folder: LocalFolder, id: str, content: bytes, suffix: str) -> bool:
    """Whether that pack had to be written again."""
    there = folder.path_of(id)
    with contextlib.suppress(FileNotFoundError):
        if there.read_bytes() == content:
            return False
    target = there if there.exists() else folder.path / f"{id}{suffix}"
    _write(target, content)
    return True


def _write(path: Path, content: bytes) -> None:
    new = path.with_suffix(f".{os.getpid()}")
    new.unlink(missing_ok=True)
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
    try:
        os.write(file, content)
        os.fsync(file)
    finally:
        os.close(file)
    new.replace(path)
