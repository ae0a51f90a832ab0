"""Any endpoint that speaks chat completions: OpenAI, vLLM, Ollama, LM Studio, llama.cpp.

Fenced code by default, which every model can write; tools for OpenAI's own endpoint, or
where the caller asks for them.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from cave.errors import OperatorError
from cave.events import Usage, clean
from cave.operators import prices, tool
from cave.operators.faults import Provider, fault, missing_package, silence
from cave.operators.fence import FenceParser
from cave.operators.tokens import MESSAGE_TOKENS, estimate_tokens
from cave.ports import Reply, View

if TYPE_CHECKING:
    from openai import AsyncOpenAI

KEY = "OPENAI_API_KEY"
OFFICIAL = "https://api.openai.com/v1"

Style = Literal["fences", "tools"]


class OpenAIOperator:
    """A model behind a compatible endpoint. `timeout` is in seconds of silence."""

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        style: Style | None = None,
        api_key: str | None = None,
        max_retries: int = 2,
        max_tokens: int | None = None,
        timeout: float = 600.0,
    ) -> None:
        self.model = model
        self._url = (base_url or os.environ.get("OPENAI_BASE_URL") or OFFICIAL).rstrip("/")
        self._official = urlsplit(self._url).hostname == urlsplit(OFFICIAL).hostname
        self.style: Style = style or ("tools" if self._official else "fences")
        self._key = api_key or os.environ.get(KEY) or ("" if self._official else "none")
        self._max_retries = max_retries
        self._timeout = timeout
        self._max_tokens = max_tokens
        self._client: AsyncOpenAI | None = None

    @property
    def name(self) -> str:
        return f"openai:{self.model}" + ("" if self._official else f"@{self._url}")

    heeds_max_tokens = True

    @property
    def max_tokens(self) -> int | None:
        """The most tokens of a reply; None leaves it to the server."""
        return self._max_tokens

    def price(self, usage: Usage) -> float | None:
        """US dollars for these tokens; None where the price is not known."""
        if self._official:
            return prices.usd(usage, self.model, "openai")
        local = urlsplit(self._url).hostname in {"localhost", "127.0.0.1", "::1"}
        return 0.0 if local else None

    async def next(self, view: View, on_text: Callable[[str], None]) -> Reply:
        client = await self._opened()
        from httpx2 import HTTPError
        from openai import OpenAIError

        request = self._request(view)
        heard = Heard(FenceParser() if self.style == "fences" else None, on_text)
        try:
            stream = await client.chat.completions.create(**request, stream=True)
            async with stream:
                async for chunk in stream:
                    heard.take(chunk.model_dump())
        except (OpenAIError, HTTPError) as error:
            raise fault(error, Provider(self.name, self._url, self.model, KEY)) from error
        if not heard.stop:
            raise OperatorError(
                f"{self.name}: the reply ended in its middle; ask again", reason="connection"
            )
        return replace(heard.reading(), usage=self._usage(heard, request))

    async def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    async def _opened(self) -> AsyncOpenAI:
        if self._client is None:
            sdk = await anyio.to_thread.run_sync(_imported)
            if not self._key:
                raise OperatorError(
                    f"{self.name} needs a key; type: export {KEY}=...", reason="key"
                )
            self._client = sdk.AsyncOpenAI(
                base_url=self._url,
                api_key=self._key,
                timeout=silence(self._timeout),
                max_retries=self._max_retries,
            )
        return self._client

    def _request(self, view: View) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": self.model,
            "stream_options": {"include_usage": True},
        }
        limits = [n for n in (self._max_tokens, view.max_tokens) if n is not None]
        if limits:
            key = "max_completion_tokens" if self._official else "max_tokens"
            request[key] = min(limits)
        if self.style == "fences":
            return {**request, "messages": tool.fence_messages(view)}
        messages = tool.openai_messages(view, protocol=tool.TOOL_PROTOCOL)
        tools = {"tools": tool.openai_tools(), "parallel_tool_calls": False}
        return {**request, **tools, "messages": messages}

    def _usage(self, heard: Heard, request: dict[str, Any]) -> Usage:
        usage = heard.usage or estimated(request["messages"], heard.said)
        return replace(usage, usd=self.price(usage))


def _imported() -> Any:
    try:
        return importlib.import_module("openai")
    except ImportError as error:
        raise missing_package("openai", "openai", "operator 'openai:...'") from error


def estimated(messages: list[dict[str, Any]], said: str) -> Usage:
    """Usage of a call whose endpoint counted nothing."""
    prompt = sum(
        estimate_tokens(str(m.get("content") or m.get("tool_calls") or "")) + MESSAGE_TOKENS
        for m in messages
    )
    spoken = estimate_tokens(said)
    return Usage(input_tokens=prompt, output_tokens=spoken, model_calls=1, estimated=True)


@dataclass(slots=True)
class Heard:
    """What came of a reply so far, in the chunks of chat completions.

    With a `parser` the text is read as fenced code, without one as an answer beside calls.
    """

    parser: FenceParser | None
    on_text: Callable[[str], None]
    pieces: list[str] = field(default_factory=list)
    calls: dict[int, list[str]] = field(default_factory=dict)
    stop: str = ""
    usage: Usage | None = None

    @property
    def said(self) -> str:
        """All that the model said, calls included."""
        return "".join([*self.pieces, *("".join(c) for c in self.calls.values())])

    def take(self, chunk: dict[str, Any]) -> None:
        """Take one chunk. Endpoints leave out what they like."""
        if usage := chunk.get("usage"):
            self.usage = _counted(usage)
        for choice in (chunk.get("choices") or [])[:1]:
            self.stop = choice.get("finish_reason") or self.stop
            self._delta(choice.get("delta") or {})

    def _delta(self, delta: dict[str, Any]) -> None:
        if text := delta.get("content") or delta.get("refusal"):
            self.pieces.append(text)
            shown = self.parser.feed(text) if self.parser else clean(text)
            if shown:
                self.on_text(shown)
        for call in delta.get("tool_calls") or ():
            made = call.get("function") or {}
            known = self.calls.setdefault(call.get("index") or 0, ["", ""])
            known[0] += made.get("name") or ""
            known[1] += made.get("arguments") or ""

    def reading(self) -> Reply:
        """What the whole reply means."""
        cut = self.stop == "length"
        if self.parser is None:
            calls = [(name, arguments) for name, arguments in self.calls.values()]
            return tool.reading("".join(self.pieces), calls, cut=cut)
        if self.calls:
            return Reply(
                "malformed",
                text="Tools are not known here. Send the cell as one block of Python.",
                raw=clean(self.said),
            )
        return tool.reading(self.said, [], cut=True) if cut else self.parser.close()


def _counted(usage: dict[str, Any]) -> Usage:
    """OpenAI counts what it read from its cache among the prompt tokens."""
    prompt = usage.get("prompt_tokens") or 0
    read = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Usage(
        input_tokens=max(prompt - read, 0),
        output_tokens=usage.get("completion_tokens") or 0,
        cache_read_tokens=read,
        model_calls=1,
    )
