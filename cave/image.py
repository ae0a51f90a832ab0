"""Images: a namespace on its way between a kernel and the snapshots of its host.

A kernel cuts its namespace into *groups*: names whose objects share something mutable. A
group is one stream (pickle protocol 5) and the large buffers that the stream leaves out.
`Image` is what a kernel gives, as a difference from an earlier image where it can; `Load` is
what it is given to come back to one. Both sides know groups and buffers by ids that the
kernel chose.

Names are those of variables, and *roots* that are no variables: `hidden:random`,
`module:NAME:GLOBAL`, `out:12`, `def:KEY` (the part before the colon is the kind of root).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

NoteKind = Literal["lost", "rebuilt", "changed", "assumed"]


@dataclass(frozen=True, slots=True)
class Note:
    """Something that does not come back as it was, and why."""

    kind: NoteKind
    name: str
    """The variable (or root) that it is, or is a part of."""
    type: str
    reason: str
    path: str = ""
    """Where in the variable: `.connection`, `[3].lock`; empty for the variable itself."""


_WORST = ("lost", "changed", "rebuilt", "assumed")


def worst(notes: Iterable[Note]) -> dict[str, Note]:
    """One note for each name: the gravest. A part that is lost has changed the whole."""
    found: dict[str, Note] = {}
    for note in notes:
        if note.kind == "lost" and note.path:
            reason = f"its {note.path} ({note.type}) is lost: {note.reason}"
            note = replace(note, kind="changed", reason=reason)  # noqa: PLW2901
        known = found.get(note.name)
        if known is None or _WORST.index(note.kind) < _WORST.index(known.kind):
            found[note.name] = note
    return found


@dataclass(frozen=True, slots=True)
class ImageBuffer:
    """Memory of a group, cut into chunks of `Image.chunk` bytes (the last one is shorter)."""

    id: str
    size: int
    """Bytes."""
    base: bool
    """Whether chunks outside of `runs` are those of the base image's buffer of that id."""
    runs: tuple[tuple[int, memoryview], ...]
    """Offset (a multiple of the chunk) and content of what is given here."""


@dataclass(frozen=True, slots=True)
class ImageGroup:
    """Names that share something mutable, serialised together."""

    id: str
    names: tuple[str, ...]
    same: bool
    """Whether it is as in the base image; then neither stream nor buffers are given."""
    checked: bool
    """Whether it was looked at; a group that no cell touched may be taken to be the same."""
    definitions: bool = False
    """Whether it holds the classes and functions of the session; it is loaded first."""
    uses: bool = False
    """Whether it refers to such definitions."""
    stream: memoryview | None = None
    buffers: tuple[ImageBuffer, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class Image:
    """The namespace of a kernel between two of its statements."""

    id: str
    base: str | None
    """Id of the image that it is a difference from."""
    chunk: int
    """Bytes of a chunk."""
    groups: tuple[ImageGroup, ...]
    """All groups, in the order in which they can be loaded."""
    python: str
    packages: Mapping[str, str]
    """Versions of the libraries whose classes its objects have."""
    pause: float
    """Seconds for which the kernel was held up."""
    missed: tuple[str, ...] = ()
    """Names that had changed although no cell was seen to reach them."""
    tracking: str = ""
    """How the kernel knows which memory changed: `pages` or `hashes`, and why."""
    order: tuple[int | tuple[int, int, bool], ...] = ()
    """Where `groups` has not all: the order of all. A number is a place in `groups`; three are
    groups that are the same: the first of them in the base, how many, whether they were
    looked at."""
    ids: str = ""
    """With `order`: SHA-256 of the ids of the base's groups, in its order."""


@dataclass(frozen=True, slots=True)
class LoadBuffer:
    """A buffer, as pieces of files in their order."""

    id: str
    size: int
    pieces: tuple[tuple[int, int, int], ...]
    """Index into `Load.files`, offset in that file, length (bytes)."""


@dataclass(frozen=True, slots=True)
class LoadGroup:
    """A group to be loaded."""

    id: str
    names: tuple[str, ...]
    definitions: bool
    stream: bytes | memoryview
    buffers: tuple[LoadBuffer, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """What a kernel is given to come back to an image. All other variables go."""

    id: str
    """Of the image that the namespace is afterwards."""
    chunk: int
    keep: tuple[str, ...]
    """Ids of groups that stay as they are in the kernel."""
    groups: tuple[LoadGroup, ...]
    files: Sequence[int]
    """Descriptors, open for reading; their content has been checked."""
    lost: tuple[Note, ...] = ()
    """Names for which there is nothing to load: they are bound to `Lost` objects."""
    cells: Mapping[str, int | None] = field(default_factory=dict)
    """By variable: the cell that set it last."""
    base: str | None = None
    """Id of the image that the kernel's namespace is taken to be; without it nothing stays."""
