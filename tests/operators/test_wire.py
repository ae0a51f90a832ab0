"""The SDKs' own clients against the servers of `cave.testing`.

They are imported where they are used: it takes seconds, and every worker collects this file.
"""

import pytest

from cave.testing.wire import AnthropicServer, OpenAIServer, Said, cell, failure

HELLO = [{"role": "user", "content": "hello"}]


def connected(server):
    """Anthropic's own client for a server, without retries."""
    import anthropic

    return anthropic.Anthropic(api_key="k", base_url=server.url, max_retries=0)


def test_the_messages_api_in_one_piece():
    """Without streaming the SDK gets the same reply; the request is on record."""
    with AnthropicServer([cell("x = 1", "set", text="So:"), Said("hi")]) as server:
        with connected(server) as client:
            first = client.messages.create(model="m", max_tokens=9, messages=HELLO)
            second = client.messages.create(model="m", max_tokens=9, messages=HELLO)
        assert [b.type for b in first.content] == ["text", "tool_use"]
        assert first.content[1].input == {"note": "set", "code": "x = 1"}
        assert (first.stop_reason, second.stop_reason) == ("tool_use", "end_turn")
        assert server.requests[0].path == "/v1/messages"
        assert "k" in server.requests[0].headers["authorization"]
        assert server.requests[0].body["messages"] == HELLO


def test_chat_completions_in_one_piece():
    """Without streaming the SDK gets text and calls, and usage unless it is not counted."""
    import openai

    with OpenAIServer([cell("x = 1"), Said("hi", counted=False)]) as server:
        with openai.OpenAI(api_key="k", base_url=server.url) as client:
            first = client.chat.completions.create(model="m", messages=HELLO)
            second = client.chat.completions.create(model="m", messages=HELLO)
        assert first.choices[0].message.tool_calls[0].function.name == "run_cell"
        assert first.usage.total_tokens == 120
        assert second.choices[0].message.content == "hi"
        assert second.usage is None


def test_replies_may_be_made_from_the_request():
    """A function of the request is a reply too; after the last one the script is used up."""
    import anthropic

    echo = [lambda r: Said(r.body["messages"][0]["content"].upper())]
    with AnthropicServer(echo) as server, connected(server) as client:
        reply = client.messages.create(model="m", max_tokens=9, messages=HELLO)
        assert reply.content[0].text == "HELLO"
        with pytest.raises(anthropic.BadRequestError, match="used up"):
            client.messages.create(model="m", max_tokens=9, messages=HELLO)


def test_errors_have_the_providers_form():
    """Each status carries the error object that SDKs read."""
    import anthropic

    with AnthropicServer([failure(529, "busy")]) as server, connected(server) as client:
        with pytest.raises(anthropic.OverloadedError) as caught:
            client.messages.create(model="m", max_tokens=9, messages=HELLO)
        assert (caught.value.type, caught.value.api_message) == ("overloaded_error", "busy")
