"""What `cave models` shows and does: the operators that can be used here, and a local model.

`pull` was tried against a local server only; the machine that this was built on does not
reach the model's official place.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cave.config import home
from cave.errors import OperatorError


@dataclass(frozen=True, slots=True)
class Known:
    """One way to name an operator, and whether it can be used here."""

    spec: str
    ready: bool
    detail: str
    """What makes it ready, or what to type."""


@dataclass(frozen=True, slots=True)
class Published:
    """A model file at its official place."""

    url: str
    sha256: str
    size: int
    """Bytes."""

    @property
    def file(self) -> str:
        """Its name on disk."""
        return self.url.rpartition("/")[2]


SMALL = Published(
    "https://huggingface.co/Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/resolve/main/"
    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    1_117_320_768,
)
"""A coder model that a laptop runs, licence Apache-2.0. The floor of what can operate."""


def folder() -> Path:
    """Where local models lie."""
    return home() / "models"


def local_files() -> list[Path]:
    """The GGUF files in the models folder."""
    return sorted(folder().glob("*.gguf"))


def known() -> list[Known]:
    """The operators that can be named, and what each still needs here."""
    named = os.environ.get("CAVE_MODEL")
    rows = [Known(named, _usable(named), "named by CAVE_MODEL")] if named else []
    return [
        *rows,
        *_providers(),
        *_local(),
        Known("human", ready=True, detail="you, at the terminal"),
    ]


def _usable(spec: str) -> bool:
    from cave.errors import CaveError
    from cave.operators import resolve

    try:
        return resolve(spec) is not None
    except CaveError:
        return False


def _providers() -> Iterator[Known]:
    from cave.operators import anthropic, openai

    key = anthropic.key_found()
    told = "the key was found" if key else f"type: export {anthropic.KEY}=..."
    yield Known(f"anthropic:{anthropic.DEFAULT_MODEL}", key, told)
    sdk = importlib.util.find_spec("openai") is not None
    extra = "type: pip install 'cave-runtime[openai]'"
    told = "any endpoint that speaks chat completions" if sdk else extra
    yield Known("openai:MODEL@http://host/v1", sdk, told)
    key = bool(os.environ.get(openai.KEY))
    told = ("the key was found" if key else f"type: export {openai.KEY}=...") if sdk else extra
    yield Known("openai:MODEL", sdk and key, told)


def _local() -> Iterator[Known]:
    engine = importlib.util.find_spec("xllamacpp") is not None
    extra = "type: pip install 'cave-runtime[local]'"
    files = local_files()
    for path in files:
        size = f"{path.stat().st_size / 1e9:.1f} GB"
        yield Known(f"llama:{path}", engine, size if engine else f"{size}; {extra}")
    if not files:
        told = "type: cave models pull" if engine else f"{extra}, then: cave models pull"
        yield Known("llama:/path.gguf", ready=False, detail=told)


Progress = Callable[[int, int], None]
"""Is told bytes done and bytes in all."""


def pull(
    what: Published = SMALL,
    *,
    into: Path | None = None,
    progress: Progress | None = None,
    timeout: float = 30.0,
) -> Path:
    """Fetch a model file, going on where an earlier try ended; gives its path.

    The file gets its name only when size and SHA-256 are right. Raises `OperatorError`.
    `timeout` is in seconds of silence.
    """
    import httpx2

    target = (into or folder()) / what.file
    if target.is_file() and _digest(target) == what.sha256:
        return target
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with part.open("ab") as file:
            _fetch(what, file, progress or (lambda _done, _all: None), timeout)
    except httpx2.HTTPError as error:
        raise OperatorError(
            f"fetching {what.url} stopped: {str(error) or type(error).__name__}; "
            f"type again to go on from there: cave models pull",
            reason="connection",
        ) from error
    except OSError as error:
        raise OperatorError(
            f"{part} cannot be written: {error}; make room, then: cave models pull"
        ) from error
    _check(part, what)
    part.replace(target)
    return target


def _fetch(what: Published, file: BinaryIO, progress: Progress, timeout: float) -> None:
    import httpx2

    have = file.tell()
    if have >= what.size:
        return
    headers = {"range": f"bytes={have}-"} if have else {}
    with httpx2.stream(
        "GET", what.url, headers=headers, timeout=timeout, follow_redirects=True
    ) as answer:
        answer.raise_for_status()
        if have and answer.status_code != 206:  # the server sends it all again
            file.truncate(0)
            have = 0
        for piece in answer.iter_bytes():
            file.write(piece)
            have += len(piece)
            progress(have, what.size)


def _check(part: Path, what: Published) -> None:
    """Whether the fetched file is the one that was published; a wrong one is removed."""
    size = part.stat().st_size
    if size < what.size:
        raise OperatorError(
            f"{what.url} ended after {size:,} of {what.size:,} bytes; "
            f"type again to go on from there: cave models pull",
            reason="connection",
        )
    if (got := _digest(part)) != what.sha256:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
        raise OperatorError(
            f"what {what.url} sent is not the published file (its SHA-256 is {got}, not "
            f"{what.sha256}); it was removed"
        )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
