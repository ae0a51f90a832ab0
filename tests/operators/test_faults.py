import pytest

from cave.operators.faults import Provider, fault

AT = Provider("anthropic:m", "https://there", "m", "ANTHROPIC_API_KEY")


class Answered(Exception):
    """What an SDK raises, as far as it is read."""

    def __init__(self, status=None, kind=None, message="", body=None):
        super().__init__(message)
        self.status_code, self.type, self.message = status, kind, message
        self.body = body


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Answered(200, "rate_limit_error"), "rate"),
        (Answered(200, "overloaded_error"), "overloaded"),
        (Answered(200, "invalid_request_error"), "request"),
        (Answered(200, "api_error"), "overloaded"),
        (Answered(400, "invalid_request_error"), "request"),
        (Answered(400, None, "This model's maximum context length is 9"), "context"),
        (Answered(500), "overloaded"),
        (Answered(418), "request"),
        (Answered(), "connection"),
        (OSError("no route"), "connection"),
    ],
)
def test_each_failure_has_its_reason(error, reason):
    """Status, kind and words decide, in the middle of a stream too."""
    assert fault(error, AT).reason == reason


def test_messages_are_one_line_and_clean():
    """What a provider says is quoted on one line, shortened, and valid UTF-8."""
    told = {"error": {"message": "a\nb \ud800" + "x" * 9999}}
    said = str(fault(Answered(400, None, body=told), AT))
    assert "(a b \\ud800x" in said
    assert len(said) < 600
    assert "\n" not in said
