"""Claude through the Anthropic SDK: tool use, streaming, prompt caching, the SDK's retries.

What the provider asks of newer models shapes the request: no forced tool choice, no
sampling settings, no thinking settings, and no assistant message at the end. Thinking is
neither shown nor sent back.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from cave.errors import OperatorError
from cave.events import Usage, clean
from cave.operators import prices, tool
from cave.operators.faults import Provider, fault, missing_package, silence
from cave.ports import Reply, View

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

DEFAULT_MODEL = "claude-opus-5-5"
"""Used where `anthropic` is named without a model, or a key was found and nothing named."""

KEY = "ANTHROPIC_API_KEY"


def key_found() -> bool:
    """Whether the environment holds a key or token for Anthropic's API."""
    return any(os.environ.get(name) for name in (KEY, "ANTHROPIC_AUTH_TOKEN"))


class AnthropicOperator:
    """A model of Anthropic's. `timeout` is in seconds, for the silence between two pieces."""

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        max_retries: int = 2,
        max_tokens: int = 32_000,
        timeout: float = 300.0,
    ) -> None:
        self.model = model
        self._key = api_key or os.environ.get(KEY)
        self._max_retries = max_retries
        self._timeout = timeout
        self._url = base_url or os.environ.get("ANTHROPIC_BASE_URL") or "https://api.anthropic.com"
        self._max_tokens = max_tokens
        self._client: AsyncAnthropic | None = None

    @property
    def name(self) -> str:
        return f"anthropic:{self.model}"

    heeds_max_tokens = True

    @property
    def max_tokens(self) -> int:
        """The most tokens of a reply."""
        return self._max_tokens

    def price(self, usage: Usage) -> float | None:
        """US dollars for these tokens; None where the price is not known."""
        return prices.usd(usage, self.model, "anthropic")

    async def next(self, view: View, on_text: Callable[[str], None]) -> Reply:
        client = await self._opened()
        from anthropic import AnthropicError
        from httpx2 import HTTPError

        heard = _Heard(on_text)
        try:
            stream = await client.messages.create(**self._request(view), stream=True)
            async with stream:
                async for event in stream:
                    heard.take(event)
        except (AnthropicError, HTTPError) as error:
            raise fault(error, Provider(self.name, self._url, self.model, KEY)) from error
        return self._reply(heard)

    async def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    async def _opened(self) -> AsyncAnthropic:
        if self._client is None:
            if not self._key and not key_found():
                raise OperatorError(
                    f"{self.name} needs a key; type: export {KEY}=...", reason="key"
                )
            sdk = await anyio.to_thread.run_sync(_imported)
            auth = {"api_key": self._key} if self._key else {}  # else the SDK reads the token
            self._client = sdk.AsyncAnthropic(
                base_url=self._url,
                max_retries=self._max_retries,
                timeout=silence(self._timeout),
                **auth,
            )
        return self._client

    def _request(self, view: View) -> dict[str, Any]:
        system = clean(f"{view.system}\n\n{tool.TOOL_PROTOCOL}".strip())
        cached = {"cache_control": {"type": "ephemeral"}}
        return {
            "model": self.model,
            "max_tokens": min(self._max_tokens, view.max_tokens or self._max_tokens),
            "tools": [
                {"name": name, "description": what, "input_schema": tool.schema(name)}
                for name, (what, _) in tool.TOOLS.items()
            ],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            "system": [{"type": "text", "text": system, **cached}],
            "messages": tool.anthropic_messages(view),
        }

    def _reply(self, heard: _Heard) -> Reply:
        match heard.stop:
            case "refusal":
                raise OperatorError(
                    f"{self.name} declined to go on; put the request differently",
                    reason="refused",
                )
            case "model_context_window_exceeded":
                raise OperatorError(
                    f"{self.name}: the session is longer than the model reads; "
                    "take a model with a larger window",
                    reason="context",
                )
            case "":
                raise OperatorError(
                    f"{self.name}: the reply ended in its middle; ask again", reason="connection"
                )
        usage = replace(heard.usage, model_calls=1)
        usage = replace(usage, usd=prices.usd(usage, self.model, "anthropic"))
        calls = [(c.name, c.arguments) for c in heard.calls.values()]
        reply = tool.reading("".join(heard.text), calls, cut=heard.stop == "max_tokens")
        return replace(reply, usage=usage)


def _imported() -> Any:
    try:
        return importlib.import_module("anthropic")
    except ImportError as error:
        raise missing_package("anthropic", "anthropic", "operator 'anthropic'") from error


@dataclass(slots=True)
class _Call:
    name: str
    arguments: str = ""


@dataclass(slots=True)
class _Heard:
    """What came of a reply so far."""

    on_text: Callable[[str], None]
    text: list[str] = field(default_factory=list)
    calls: dict[int, _Call] = field(default_factory=dict)
    stop: str = ""
    usage: Usage = Usage()

    def take(self, event: Any) -> None:
        """Take one event of the stream; kinds that a later API adds are passed over."""
        match event.type:
            case "message_start":
                self._count(event.message.usage)
            case "content_block_start" if event.content_block.type == "tool_use":
                self.calls[event.index] = _Call(event.content_block.name)
            case "content_block_delta":
                self._delta(event.index, event.delta)
            case "message_delta":
                self.stop = event.delta.stop_reason or self.stop
                self._count(event.usage)

    def _delta(self, index: int, delta: Any) -> None:
        if delta.type == "text_delta":
            self.text.append(delta.text)
            self.on_text(clean(delta.text))
        elif delta.type == "input_json_delta" and index in self.calls:
            self.calls[index].arguments += delta.partial_json

    def _count(self, usage: Any) -> None:
        """Counts are cumulative; what a later event leaves out stands."""
        told = {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cache_read_tokens": usage.cache_read_input_tokens,
            "cache_write_tokens": usage.cache_creation_input_tokens,
        }
        self.usage = replace(self.usage, **{k: v for k, v in told.items() if v is not None})
