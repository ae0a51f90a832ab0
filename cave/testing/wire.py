"""Local HTTP servers that speak providers' wire formats, with scripted replies.

For tests of what talks to a model over the network: real sockets, real streaming, real
SDKs, no provider::

    with AnthropicServer([cell("x = 1"), failure(529), finish("done")]) as server:
        operator = AnthropicOperator(base_url=server.url, api_key="test")
        ...
        server.requests[0].body["messages"]

Replies are used up in order, one a request. Each is one of the values below or a function
of the `Request` that gives one. `AnthropicServer` speaks the Messages API, `OpenAIServer`
chat completions; both stream where the request asks for it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Self, TypeAlias

STEP = 7
"""Characters of text or JSON in one streamed piece."""


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call: the tool's name and its arguments as JSON text, valid or not."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Said:
    """A reply of the model."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    thinking: str = ""
    """What it thought before (a `thinking` block; only at the Messages API)."""
    stop: str = ""
    """Why it stopped, in the provider's word; nothing means what fits."""
    input_tokens: int = 100
    """Prompt tokens that no cache held."""
    output_tokens: int = 20
    cache_read: int = 0
    cache_write: int = 0
    counted: bool = True
    """Whether the endpoint tells what it counted."""
    drop_after: int | None = None
    """Cut the connection after that many events of the stream."""
    error_after: int | None = None
    """Put an error (`overloaded_error`) into the stream after that many events."""
    hang_after: int | None = None
    """Say nothing more after that many events, until the server is closed."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An HTTP error with the provider's error object."""

    status: int
    kind: str
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """What came in."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]
    raw: bytes


Reply: TypeAlias = Said | Failure
Scripted: TypeAlias = Reply | Callable[[Request], Reply]

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


def cell(code: str, note: str = "", **fields: Any) -> Said:
    """A reply that calls `run_cell`; `fields` are those of `Said`."""
    return call("run_cell", {"note": note, "code": code}, **fields)


def finish(answer: str, **fields: Any) -> Said:
    """A reply that calls `finish`."""
    return call("finish", {"answer": answer}, **fields)


def call(name: str, arguments: Mapping[str, Any] | str, **fields: Any) -> Said:
    """A reply with one tool call; arguments that are a text go out as they stand."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return Said(calls=(Call(name, text),), **fields)


def failure(status: int, message: str = "", *, retry_after: float | None = None) -> Failure:
    """An HTTP error; `retry_after` in seconds tells the SDK when to try again."""
    kind = _KINDS.get(status, "api_error")
    headers = {} if retry_after is None else {"retry-after-ms": str(int(retry_after * 1000))}
    return Failure(status, kind, message or kind.replace("_", " "), headers)


class _Server:
    """What both servers share: a thread, the script, the record of requests."""

    prefix: ClassVar[str] = ""

    def __init__(self, replies: Sequence[Scripted] = ()) -> None:
        self._replies = list(replies)
        self._lock = threading.Lock()
        self.requests: list[Request] = []
        """All that came in, in order; retries included."""
        self.closing = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    @property
    def url(self) -> str:
        """What a client takes as its base URL."""
        return f"http://127.0.0.1:{self._http.server_address[1]}{self.prefix}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def answer(self, request: Request) -> Reply:
        """Record a request and take the next reply of the script."""
        with self._lock:
            self.requests.append(request)
            scripted = self._replies.pop(0) if self._replies else None
        if scripted is None:
            return failure(400, "the script of this server is used up")
        return scripted(request) if callable(scripted) else scripted

    def events(self, said: Said, body: dict[str, Any]) -> Iterator[bytes]:
        """The events of a streamed reply, as they go over the wire."""
        raise NotImplementedError

    def whole(self, said: Said, body: dict[str, Any]) -> dict[str, Any]:
        """The reply in one piece."""
        raise NotImplementedError

    def error(self, kind: str, message: str) -> dict[str, Any]:
        """The provider's error object."""
        return {"type": "error", "error": {"type": kind, "message": message}}

    def error_event(self) -> bytes:
        """An error in the middle of a stream."""
        raise NotImplementedError

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        return type("Handler", (_Handler,), {"wire": self})


class _Handler(BaseHTTPRequestHandler):
    wire: ClassVar[_Server]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        self.close_connection = True
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        try:
            body = json.loads(raw)
        except ValueError:
            body = {}
        headers = {k.lower(): v for k, v in self.headers.items()}
        reply = self.wire.answer(Request(self.path, headers, body, raw))
        try:
            if isinstance(reply, Failure):
                what = self.wire.error(reply.kind, reply.message)
                self._json(reply.status, what, reply.headers)
            elif body.get("stream"):
                self._stream(reply, body)
            else:
                self._json(200, self.wire.whole(reply, body), {})
        except ConnectionError:
            return  # the client has gone: cancelled, or its time was up

    def _json(self, status: int, what: dict[str, Any], headers: Mapping[str, str]) -> None:
        data = json.dumps(what).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, said: Said, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.send_header("connection", "close")
        self.end_headers()
        for number, event in enumerate(self.wire.events(said, body)):
            if number == said.drop_after:
                return
            if number == said.hang_after:
                self.wire.closing.wait()
                return
            if number == said.error_after:
                self._chunk(self.wire.error_event())
                break
            self._chunk(event)
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


def _pieces(text: str) -> Iterator[str]:
    for at in range(0, len(text), STEP):
        yield text[at : at + STEP]


class AnthropicServer(_Server):
    """Speaks the Messages API of Anthropic as its SDK 2.14 reads it, at `/v1/messages`."""

    def events(self, said: Said, body: dict[str, Any]) -> Iterator[bytes]:
        start = self._message(said, body, content=[], stop=None)
        start["usage"]["output_tokens"] = 1
        yield self._event("message_start", message=start)
        yield self._event("ping")
        for index, (block, deltas) in enumerate(self._blocks(said)):
            yield self._event("content_block_start", index=index, content_block=block)
            for delta in deltas:
                yield self._event("content_block_delta", index=index, delta=delta)
            yield self._event("content_block_stop", index=index)
        ended = {"stop_reason": self._stop(said), "stop_sequence": None}
        usage = {"output_tokens": said.output_tokens}
        yield self._event("message_delta", delta=ended, usage=usage)
        yield self._event("message_stop")

    def whole(self, said: Said, body: dict[str, Any]) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        if said.text:
            content.append({"type": "text", "text": said.text})
        for number, made in enumerate(said.calls):
            block = self._tool_use(number, made)
            content.append({**block, "input": json.loads(made.arguments)})
        return self._message(said, body, content=content, stop=self._stop(said))

    def error_event(self) -> bytes:
        return self._event("error", error={"type": "overloaded_error", "message": "Overloaded"})

    @staticmethod
    def _event(kind: str, **fields: Any) -> bytes:
        data = json.dumps({"type": kind, **fields})
        return f"event: {kind}\ndata: {data}\n\n".encode()

    @staticmethod
    def _stop(said: Said) -> str:
        return said.stop or ("tool_use" if said.calls else "end_turn")

    @staticmethod
    def _tool_use(number: int, made: Call) -> dict[str, Any]:
        return {"type": "tool_use", "id": f"toolu_{number}", "name": made.name, "input": {}}

    def _blocks(self, said: Said) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
        if said.thinking:
            deltas = [{"type": "thinking_delta", "thinking": t} for t in _pieces(said.thinking)]
            deltas.append({"type": "signature_delta", "signature": "c2lnbmVk"})
            yield {"type": "thinking", "thinking": "", "signature": ""}, deltas
        if said.text:
            deltas = [{"type": "text_delta", "text": t} for t in _pieces(said.text)]
            yield {"type": "text", "text": ""}, deltas
        for number, made in enumerate(said.calls):
            deltas = [
                {"type": "input_json_delta", "partial_json": t} for t in _pieces(made.arguments)
            ]
            yield self._tool_use(number, made), deltas

    @staticmethod
    def _message(
        said: Said, body: dict[str, Any], *, content: list[dict[str, Any]], stop: str | None
    ) -> dict[str, Any]:
        return {
            "id": "msg_test",
            "type": "message",
            "role": "assistant",
            "model": body.get("model", ""),
            "content": content,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": {
                "input_tokens": said.input_tokens,
                "cache_creation_input_tokens": said.cache_write,
                "cache_read_input_tokens": said.cache_read,
                "output_tokens": said.output_tokens,
            },
        }


class OpenAIServer(_Server):
    """Speaks chat completions, at `/v1/chat/completions`."""

    prefix = "/v1"

    def events(self, said: Said, body: dict[str, Any]) -> Iterator[bytes]:
        yield self._chunk(body, {"role": "assistant", "content": ""})
        for piece in _pieces(said.text):
            yield self._chunk(body, {"content": piece})
        for index, made in enumerate(said.calls):
            named = {"name": made.name, "arguments": ""}
            head = {"index": index, "id": f"call_{index}", "type": "function", "function": named}
            yield self._chunk(body, {"tool_calls": [head]})
            for piece in _pieces(made.arguments):
                part = {"index": index, "function": {"arguments": piece}}
                yield self._chunk(body, {"tool_calls": [part]})
        yield self._chunk(body, {}, stop=self._stop(said))
        if said.counted and (body.get("stream_options") or {}).get("include_usage"):
            yield self._data({**self._frame(body), "choices": [], "usage": self._usage(said)})
        yield b"data: [DONE]\n\n"

    def whole(self, said: Said, body: dict[str, Any]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": said.text or None}
        if said.calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{index}",
                    "type": "function",
                    "function": {"name": made.name, "arguments": made.arguments},
                }
                for index, made in enumerate(said.calls)
            ]
        choice = {"index": 0, "message": message, "finish_reason": self._stop(said)}
        whole = {**self._frame(body), "object": "chat.completion", "choices": [choice]}
        return {**whole, "usage": self._usage(said)} if said.counted else whole

    def error(self, kind: str, message: str) -> dict[str, Any]:
        return {"error": {"type": kind, "message": message, "code": None, "param": None}}

    def error_event(self) -> bytes:
        return self._data(self.error("overloaded_error", "Overloaded"))

    @staticmethod
    def _stop(said: Said) -> str:
        return said.stop or ("tool_calls" if said.calls else "stop")

    @staticmethod
    def _usage(said: Said) -> dict[str, Any]:
        prompt = said.input_tokens + said.cache_read
        return {
            "prompt_tokens": prompt,
            "completion_tokens": said.output_tokens,
            "total_tokens": prompt + said.output_tokens,
            "prompt_tokens_details": {"cached_tokens": said.cache_read},
        }

    @staticmethod
    def _frame(body: dict[str, Any]) -> dict[str, Any]:
        kind = "chat.completion.chunk"
        return {"id": "chat_test", "object": kind, "created": 0, "model": body.get("model", "")}

    def _chunk(self, body: dict[str, Any], delta: dict[str, Any], *, stop: str = "") -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": stop or None}
        return self._data({**self._frame(body), "choices": [choice]})

    @staticmethod
    def _data(what: dict[str, Any]) -> bytes:
        return f"data: {json.dumps(what)}\n\n".encode()
