import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cave.errors import OperatorError
from cave.operators import models
from cave.operators.models import SMALL, Published, known, local_files, pull

DATA = b"GGUF" + bytes(range(256)) * 12_000


class Place(BaseHTTPRequestHandler):
    """The official place of a model, as `serve` sets it."""

    data, cut, ranges, status = DATA, None, True, 200

    def log_message(self, *args):
        """Say nothing."""

    def do_GET(self):
        self.server.asked.append(self.headers.get("range"))
        if self.path == "/moved.gguf":
            self.send_response(302)
            self.send_header("location", "/small.gguf")
            self.end_headers()
            return
        span = self.headers.get("range") if self.ranges else None
        start = int(span.removeprefix("bytes=").rstrip("-")) if span else 0
        body = self.data[start:]
        self.send_response(206 if span else self.status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.cut])


@pytest.fixture
def serve():
    """Start places; gives the published file and the record of ranges asked for."""
    running = []

    def start(path="/small.gguf", sha=None, **how):
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Place,), how))
        server.asked = []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        running.append((server, thread))
        url = f"http://127.0.0.1:{server.server_address[1]}{path}"
        return Published(url, sha or hashlib.sha256(DATA).hexdigest(), len(DATA)), server.asked

    yield start
    for server, thread in running:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_model_is_fetched_and_checked(serve, tmp_path):
    """The file arrives whole under its name, redirects are followed, progress is told."""
    what, asked = serve("/moved.gguf")
    told = []
    path = pull(what, into=tmp_path / "models", progress=lambda *p: told.append(p))
    assert path.read_bytes() == DATA
    assert told[-1] == (len(DATA), len(DATA))
    assert len(asked) == 2
    assert [p.name for p in path.parent.iterdir()] == ["moved.gguf"]


def test_a_model_that_is_there_is_not_fetched_again(serve, tmp_path):
    """A second pull asks nobody."""
    what, asked = serve()
    assert pull(what, into=tmp_path) == pull(what, into=tmp_path)
    assert len(asked) == 1


def test_a_cut_download_goes_on(serve, tmp_path):
    """What was fetched before the connection broke is kept, and only the rest is asked for."""
    what, _ = serve(cut=1_000_000)
    with pytest.raises(OperatorError, match="type again to go on") as caught:
        pull(what, into=tmp_path)
    assert caught.value.reason == "connection"
    assert not (tmp_path / what.file).exists()
    rest, asked = serve()
    assert pull(rest, into=tmp_path).read_bytes() == DATA
    [span] = asked
    assert span.startswith("bytes=")
    assert span != "bytes=0-"


def test_a_place_without_ranges_starts_again(serve, tmp_path):
    """A server that sends the whole file again gives no file with a doubled beginning."""
    (tmp_path / "small.gguf.part").write_bytes(DATA[:1000])
    what, _ = serve(ranges=False)
    assert pull(what, into=tmp_path).read_bytes() == DATA


def test_a_wrong_file_is_removed(serve, tmp_path):
    """Bytes of another hash are never left where a model is looked for."""
    what, _ = serve(sha="0" * 64)
    with pytest.raises(OperatorError, match="not the published file"):
        pull(what, into=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_had(serve, tmp_path):
    """An error of the server and a folder that cannot be written are told."""
    what, _ = serve(status=404)
    with pytest.raises(OperatorError, match="404"):
        pull(what, into=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(OperatorError, match="cannot be written"):
        pull(what, into=tmp_path / "file")


def test_the_official_file_is_pinned():
    """The published model is named by an https address, its size and its SHA-256."""
    assert SMALL.url.startswith("https://")
    assert SMALL.file.endswith(".gguf")
    assert len(SMALL.sha256) == 64
    assert SMALL.size > 10**9


def test_what_can_be_used_here(monkeypatch, tmp_path):
    """Each operator is shown with what it needs; local files and CAVE_MODEL are found."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_API_KEY", "CAVE_MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CAVE_HOME", str(tmp_path))
    bare = {k.spec.partition(":")[0]: k for k in known()}
    assert not bare["anthropic"].ready
    assert "export ANTHROPIC_API_KEY=" in bare["anthropic"].detail
    assert not bare["llama"].ready
    assert "cave models pull" in bare["llama"].detail
    assert bare["human"].ready

    file = tmp_path / "models" / "m.gguf"
    file.parent.mkdir()
    file.write_bytes(b"GGUF")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    monkeypatch.setenv("CAVE_MODEL", "script:none.py")
    rows = {k.spec: k for k in known()}
    assert local_files() == [file]
    assert f"llama:{file}" in rows
    assert not rows["script:none.py"].ready
    assert any(k.ready for k in rows.values() if k.spec.startswith("anthropic:"))


def test_missing_extras_are_told(monkeypatch, tmp_path):
    """Without an extra the row has the command that installs it."""
    monkeypatch.setenv("CAVE_HOME", str(tmp_path))
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda _: None)
    details = " ".join(k.detail for k in known())
    assert "cave-runtime[openai]" in details
    assert "cave-runtime[local]" in details
