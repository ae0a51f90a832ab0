"""What went wrong at a provider, as an `OperatorError` that says what to type.

Both SDKs are made by the same generator, so one reading serves both: an HTTP status, the
provider's own message, or a connection that failed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cave.errors import OperatorError
from cave.events import clean

_TOO_LONG = (
    "prompt is too long",
    "context length",
    "context_length",
    "context size",
    "context window",
    "maximum context",
    "too many tokens",
)

_BY_STATUS = {401: "key", 403: "key", 404: "model", 429: "rate"}
_BY_KIND = {
    "authentication_error": "key",
    "invalid_request_error": "request",
    "not_found_error": "model",
    "permission_error": "key",
    "rate_limit_error": "rate",
}
"""Errors in the middle of a stream come under status 200."""


@dataclass(frozen=True, slots=True)
class Provider:
    """Where an operator's calls go, in the words of its messages."""

    who: str
    """Name with model: `anthropic:MODEL`."""
    url: str
    model: str
    key: str
    """Environment variable that holds the key."""


def silence(seconds: float) -> Any:
    """The SDKs' time limit: `seconds` between two pieces, and at most ten to connect."""
    import httpx2

    return httpx2.Timeout(seconds, connect=min(seconds, 10.0))


def missing_package(module: str, extra: str, what: str) -> OperatorError:
    """An SDK that is not installed."""
    return OperatorError(
        f"{what} needs the package {module!r}, which is not installed; "
        f"type: pip install 'cave-runtime[{extra}]'",
        reason="missing",
    )


def fault(error: Exception, at: Provider) -> OperatorError:
    """The typed error for what an SDK, or the connection under it, raised."""
    said = _said(error)
    status = getattr(error, "status_code", None) or 0
    kind = str(getattr(error, "type", None) or _body(error).get("type") or "")
    reason = _reason(status, kind, said.lower(), type(error).__name__)
    message = (
        f"{at.who}: {_what(reason, at)} ({said})" if said else f"{at.who}: {_what(reason, at)}"
    )
    return OperatorError(clean(message), reason=reason)


def _body(error: Exception) -> dict[str, Any]:
    """The `error` object of the provider's answer."""
    body = getattr(error, "body", None)
    if not isinstance(body, dict):
        return {}
    inner = body.get("error", body)
    return inner if isinstance(inner, dict) else {}


def _said(error: Exception, limit: int = 400) -> str:
    text = _body(error).get("message") or getattr(error, "message", None) or str(error)
    line = " ".join(str(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _reason(status: int, kind: str, said: str, name: str) -> str:
    if status == 413 or any(words in said for words in _TOO_LONG):
        return "context"
    if "overloaded" in kind or status in {503, 529}:
        return "overloaded"
    if "Timeout" in name:
        return "timeout"
    if known := _BY_STATUS.get(status, "" if status >= 400 else _BY_KIND.get(kind, "")):
        return known
    if 400 <= status < 500:
        return "request"
    return "connection" if status < 400 and not kind else "overloaded"


def _what(reason: str, at: Provider) -> str:
    match reason:
        case "context":
            return "the prompt is longer than the model reads; take a model with a larger window"
        case "overloaded":
            return "the provider cannot answer now; ask again in a few minutes"
        case "timeout":
            return "no answer came in time; ask again"
        case "key":
            return f"the key was refused; type: export {at.key}=..."
        case "model":
            return f"there is no model {at.model!r} at {at.url}; name another"
        case "rate":
            return "too many requests, also after retries; ask again in a few minutes"
        case "request":
            return "the provider refused the request"
        case _:
            return f"the connection to {at.url} failed; look whether it is up, then ask again"
