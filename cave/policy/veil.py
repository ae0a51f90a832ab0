"""Secrets in values that have to come back: stand-ins of the same length, and the way back.

A text for people is masked for good (`cave.policy.masking`). What a skill gave and what a
snapshot holds are values that the kernel gets again: there each secret is replaced by a
stand-in as long as itself, so that every length and offset about it stays true, and the value
says which secrets it needs. Whoever has them in the environment gets the value as it was; who
has not is told so. A stand-in depends on a key of the home folder and the secret's name, not
on the secret.
"""

from __future__ import annotations

import hmac
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cave.errors import StoreError
from cave.image import Image, ImageGroup, Load, LoadBuffer, LoadGroup, Note
from cave.policy.redaction import encodings
from cave.policy.sifting import Sieve

_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz012345"
_HEX = b"0123456789abcdef"
_NOTED = re.compile(r"the secret '([^']+)' in it (?:comes from|is not kept)")
BEFORE = " (of before)"
"""How the name of a value ends that its variable has no more."""
BLOCK = 8 << 20
"""Bytes of a buffer that are looked at in one go."""
SIFTED = 4096
"""Bytes from which on they are sifted first."""

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class _Form:
    """One way in which bytes may carry one secret."""

    name: str
    there: bytes
    stand_in: bytes


@dataclass(slots=True)
class Veil:
    """Takes the secrets of a session out of bytes, and puts them back."""

    key: Callable[[], bytes]
    values: Mapping[str, str]
    """The secrets by name."""
    kept: bool = True
    """Whether variables that hold one come back with it from the environment."""
    _forms: list[_Form] = field(default_factory=list)
    _there: dict[bytes, _Form] = field(default_factory=dict)
    _regex: re.Pattern[bytes] | None = None
    _sieve: Sieve | None = None

    def __post_init__(self) -> None:
        for name, value in self.values.items():
            for label, there in encodings(value).items():
                stand_in = _stand_in(self.key(), name, label, len(there))
                self._forms.append(_Form(name, there, stand_in))
        self._there = {form.there: form for form in reversed(self._forms)}
        if self._there:
            longest = sorted(self._there, key=len, reverse=True)
            self._regex = re.compile(b"|".join(map(re.escape, longest)))

    # -- out ---------------------------------------------------------------------------------

    def hide(self, data: Bytes) -> tuple[Bytes, set[str]]:
        """The bytes with stand-ins, and the names of what is hidden; the same object where
        nothing is."""
        hidden: bytearray | None = None
        names: set[str] = set()
        for at, form in self._found(memoryview(data).cast("B")):
            hidden = bytearray(data) if hidden is None else hidden
            hidden[at : at + len(form.there)] = form.stand_in
            names.add(form.name)
        return (data if hidden is None else hidden), names

    def _found(self, view: memoryview) -> Iterator[tuple[int, _Form]]:
        if self._regex is None:
            return
        over, done = max(map(len, self._there)), 0
        for start in range(0, len(view), BLOCK):
            block = bytes(view[start : start + BLOCK + over])
            for place in self._places(block):
                if start + place >= done and place < BLOCK:
                    match = self._regex.match(block, place)
                    if match is not None:
                        yield start + place, self._there[match[0]]
                        done = start + match.end()

    def _places(self, block: bytes) -> Iterable[int]:
        assert self._regex is not None
        if len(block) < SIFTED:
            return (match.start() for match in self._regex.finditer(block))
        if self._sieve is None:
            self._sieve = Sieve(there.decode("latin-1") for there in self._there)
        return self._sieve.places(block)

    def hide_parts(self, parts: Sequence[Bytes]) -> tuple[list[Bytes], tuple[str, ...]]:
        """`hide` for each, and all names."""
        made = [self.hide(part) for part in parts]
        return [part for part, _ in made], tuple(sorted(set().union(*(n for _, n in made))))

    # -- back --------------------------------------------------------------------------------

    def missing(self, names: Iterable[str]) -> str:
        """Why not all of these can be put back; empty where they can."""
        for name in names:
            if name.endswith(BEFORE):
                return f"it holds what {name.removesuffix(BEFORE)!r} was before it was changed"
            if name not in self.values:
                return (
                    f"it holds the secret {name!r}, which this process does not have: set that "
                    f"variable of the environment and name it in Policy(secrets=[{name!r}])"
                )
        return ""

    def reveal(self, data: Bytes, names: Iterable[str]) -> tuple[bytes, set[str]]:
        """The bytes as they were, but that a secret which was changed since is the new one;
        and the names of what was put back."""
        wanted, shown, found = set(names), bytes(data), set[str]()
        for form in self._forms:
            if form.name in wanted and form.stand_in in shown:
                shown = shown.replace(form.stand_in, form.there)
                found.add(form.name)
        return shown, found

    def reveal_parts(self, parts: Sequence[Bytes], names: Iterable[str]) -> list[bytes]:
        """`reveal` for each. Raises `StoreError` for secrets that are not to be had."""
        names = set(names)
        why = self.missing(sorted(names))
        made = [self.reveal(part, names) for part in parts]
        lacking = names.difference(*(found for _, found in made))
        if why or lacking:
            raise StoreError(why or _other(min(lacking)))
        return [part for part, _ in made]

    # -- images ------------------------------------------------------------------------------

    def image(self, image: Image, types: Mapping[str, str]) -> Image:
        """An image that holds no secrets, and whose groups say what they need.

        `types` are those of the variables, by name.
        """
        if not self._forms:
            return image
        groups = tuple([self._group(group, types) for group in image.groups])
        return image if groups == image.groups else replace(image, groups=groups)

    def _group(self, group: ImageGroup, types: Mapping[str, str]) -> ImageGroup:
        if group.same or group.stream is None:
            return group
        stream, names = self.hide(group.stream)
        buffers = []
        for buffer in group.buffers:
            runs = []
            for offset, content in buffer.runs:
                hidden, found = self.hide(content)
                runs.append((offset, content if hidden is content else memoryview(hidden)))
                names |= found
            buffers.append(replace(buffer, runs=tuple(runs)))
        if not names:
            return group
        notes = tuple(
            Note("rebuilt" if self.kept else "lost", name, types.get(name, "unknown"),
                 _reason(secret, kept=self.kept))
            for name in group.names for secret in sorted(names)
        )  # fmt: skip
        return replace(
            group,
            stream=memoryview(stream),
            buffers=tuple(buffers),
            notes=(*group.notes, *notes),
        )

    def load(self, load: Load, notes: Mapping[str, Sequence[Note]]) -> tuple[Load, list[int]]:
        """What is loaded, with its secrets; what cannot have them is lost. `notes` are those of
        the groups, by id. Gives also files that are to be closed afterwards."""
        groups: list[LoadGroup] = []
        lost: list[Note] = []
        files = _Files(list(load.files))
        for group in load.groups:
            needed = needs(notes.get(group.id, ()))
            why = self._refused(needed, notes[group.id]) if needed else ""
            shown = self._revealed(group, needed, files) if needed and not why else group
            if why or shown is None:
                reason = why or _other(min(needed))
                lost += [Note("lost", name, "unknown", reason) for name in group.names]
            else:
                groups.append(shown)
        made = replace(load, groups=tuple(groups), files=files.all, lost=(*load.lost, *lost))
        return made, files.own

    def _refused(self, needed: set[str], notes: Sequence[Note]) -> str:
        if any(note.kind == "lost" and needs([note]) for note in notes):
            return _reason(min(needed), kept=False)
        return self.missing(sorted(needed))

    def _revealed(self, group: LoadGroup, names: set[str], files: _Files) -> LoadGroup | None:
        stream, found = self.reveal(group.stream, names)
        buffers = []
        for buffer in group.buffers:
            content = files.read(buffer)
            shown, more = self.reveal(content, names)
            buffers.append(buffer if not more else files.add(buffer, shown))
            found |= more
        return replace(group, stream=stream, buffers=tuple(buffers)) if found == names else None


class _Files:
    """The files of a load, and those that take the place of some of them."""

    def __init__(self, files: list[int]) -> None:
        self.all = files
        self.own: list[int] = []

    def read(self, buffer: LoadBuffer) -> bytes:
        return b"".join(os.pread(self.all[file], size, at) for file, at, size in buffer.pieces)

    def add(self, buffer: LoadBuffer, content: bytes) -> LoadBuffer:
        with tempfile.TemporaryFile() as file:
            file.write(content)
            file.flush()
            self.own.append(os.dup(file.fileno()))
        self.all.append(self.own[-1])
        return replace(buffer, pieces=((len(self.all) - 1, 0, len(content)),))


def needs(notes: Iterable[Note]) -> set[str]:
    """The secrets that a group needs, by its notes."""
    found = (_NOTED.search(note.reason) for note in notes)
    return {match[1] for match in found if match is not None}


def _other(secret: str) -> str:
    return f"it holds the secret {secret!r}, which has another length now"


def _reason(secret: str, *, kept: bool) -> str:
    how = "comes from the environment" if kept else "is not kept"
    return f"the secret {secret!r} in it {how}"


def _stand_in(key: bytes, name: str, label: str, size: int) -> bytes:
    """Letters that nobody else writes, always the same ones, in the encoding of that label."""
    if label.startswith("utf-"):
        count = size // len("a".encode(label))
        return _stand_in(key, name, f"letters of {label}", count).decode().encode(label)
    made = b""
    while len(made) < size:
        what = f"{name}\0{label}\0{size}\0{len(made)}".encode()
        made += hmac.digest(key, what, "sha256")
    letters = _HEX if label.startswith("hex") else _LETTERS
    return bytes(letters[byte % len(letters)] for byte in made[:size])
