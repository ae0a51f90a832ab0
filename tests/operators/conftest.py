import functools

import httpcore2
import pytest


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True, scope="session")
def one_tls_context():
    """One TLS context for all clients: making it is most of what a client costs."""
    patch = pytest.MonkeyPatch()
    made = functools.cache(httpcore2.default_ssl_context)
    patch.setattr(httpcore2, "default_ssl_context", made)
    yield
    patch.undo()
