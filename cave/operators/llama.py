"""A local GGUF file, run in this process by llama.cpp (the wheel `xllamacpp`).

The chat template is the file's own. Replies are fenced code; a grammar holds them to one
complete block or to plain text, which small models otherwise miss now and then.
"""

from __future__ import annotations

import importlib
import os
import secrets
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.from_thread
import anyio.to_thread

from cave.errors import ConfigError, OperatorError
from cave.operators import tool
from cave.operators.faults import missing_package
from cave.operators.fence import FenceParser
from cave.operators.openai import Heard, estimated
from cave.ports import Reply, View

GRAMMAR = r"""root ::= prose (block)?
prose ::= (line)*
line ::= [^`\n] [^\n]* "\n" | "\n"
block ::= "```python\n" (code)+ "```"
code ::= [^`\n] [^\n]* "\n" | "\n"
"""
"""GBNF: text, then at most one block of Python whose lines begin with no backtick."""


class LlamaOperator:
    """A model in a GGUF file. `context` is in tokens, `threads` None takes half the cores."""

    def __init__(
        self,
        path: str | Path,
        *,
        context: int = 8192,
        max_tokens: int = 768,
        threads: int | None = None,
        temperature: float = 0.0,
        grammar: Literal["fences", "none"] = "fences",
    ) -> None:
        self.path = checked_gguf(path)
        self._context = context
        self._threads = threads or max(1, (os.cpu_count() or 2) // 2)
        self._sampling: dict[str, Any] = {"temperature": temperature, "max_tokens": max_tokens}
        if grammar == "fences":
            self._sampling["grammar"] = GRAMMAR
        self._server: Any = None
        self._loading = threading.Lock()

    @property
    def name(self) -> str:
        return f"llama:{self.path}"

    free = True
    heeds_max_tokens = True

    @property
    def max_tokens(self) -> int:
        """The most tokens of a reply."""
        return int(self._sampling["max_tokens"])

    async def next(self, view: View, on_text: Callable[[str], None]) -> Reply:
        messages = tool.fence_messages(view)
        stopped = threading.Event()
        limit = min(self.max_tokens, view.max_tokens or self.max_tokens)
        heard = Heard(FenceParser(), lambda text: anyio.from_thread.run_sync(on_text, text))
        try:
            await anyio.to_thread.run_sync(
                self._generate, messages, heard, stopped, limit, abandon_on_cancel=True
            )
        finally:
            stopped.set()
        usage = heard.usage or estimated(messages, heard.said)
        return replace(heard.reading(), usage=replace(usage, usd=0.0))

    async def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await anyio.to_thread.run_sync(lambda held: held.clear(), [server])

    def _generate(
        self, messages: list[dict[str, str]], heard: Heard, stopped: threading.Event, limit: int
    ) -> None:
        """Run one completion to its end; in a thread of its own."""
        faults: list[dict[str, Any]] = []

        def take(chunk: dict[str, Any] | None) -> bool:
            if stopped.is_set():
                return True
            if chunk and "error" in chunk:
                faults.append(chunk["error"])
            elif chunk:
                heard.take(chunk)
            return False

        request = {"messages": messages, "stream": True, "cache_prompt": True, **self._sampling}
        request["max_tokens"] = limit
        request["stream_options"] = {"include_usage": True}
        answer = self._loaded().handle_chat_completions(request, take)
        if answer and "error" in answer:
            faults.append(answer["error"])
        if faults:
            raise self._fault(faults[0])

    def _loaded(self) -> Any:
        with self._loading:
            if self._server is None:
                self._server = self._load()
            return self._server

    def _load(self) -> Any:
        try:
            engine = importlib.import_module("xllamacpp")
        except ImportError as error:
            raise missing_package("xllamacpp", "local", "operator 'llama:...'") from error
        settings = engine.CommonParams()
        settings.model.path = str(self.path)
        settings.n_ctx, settings.n_parallel = self._context, 1
        settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = self._threads
        settings.verbosity, settings.warmup, settings.ui = -1, False, False
        # the engine listens on the loopback too: nobody else shall use it
        settings.api_keys = [secrets.token_hex(32)]
        try:
            return engine.Server(settings)
        except RuntimeError as error:
            raise OperatorError(
                f"{str(self.path)!r} cannot be loaded: it is damaged, of a kind that this "
                f"llama.cpp does not know, or larger than the memory; fetch one with "
                f"`cave models pull`",
                reason="model",
            ) from error

    def _fault(self, error: dict[str, Any]) -> OperatorError:
        said = str(error.get("message") or error)
        if "context" in str(error.get("type")):
            return OperatorError(
                f"{self.name}: the prompt is longer than the window of {self._context} tokens "
                f"({said})",
                reason="context",
            )
        return OperatorError(f"{self.name}: the model failed ({said})", reason="request")


def checked_gguf(path: str | Path) -> Path:
    """`path` when a GGUF file is there. Raises `ConfigError`, `OperatorError`."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"no model file at {str(path)!r}; write llama:/path.gguf, "
            f"or fetch one with `cave models pull`"
        )
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise OperatorError(
                f"{str(path)!r} is not a GGUF file; fetch one with `cave models pull`",
                reason="model",
            )
    return path.absolute()
