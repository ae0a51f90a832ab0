import sys

import pytest

from cave.errors import ConfigError, OperatorError
from cave.operators.llama import LlamaOperator
from cave.ports import Message, View

pytestmark = pytest.mark.anyio

ASK = View("", (Message("user", "?"),), turn=1, step=1)


@pytest.fixture
def gguf(tmp_path):
    """A file that begins like a model and is none."""
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF" + b"\0" * 100)
    return file


async def test_a_missing_package_is_told(gguf, monkeypatch):
    """Without the extra the message has the command that installs it."""
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(OperatorError, match=r"pip install 'cave-runtime\[local\]'") as caught:
        await LlamaOperator(gguf).next(ASK, print)
    assert caught.value.reason == "missing"


async def test_what_is_no_model_is_refused_when_named(tmp_path):
    """A missing file, a folder and a file of another kind are told before any work."""
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(ConfigError, match="no model file"):
            LlamaOperator(path)
    other = tmp_path / "x.gguf"
    other.write_bytes(b"PK")
    with pytest.raises(OperatorError, match="not a GGUF file"):
        LlamaOperator(other)


async def test_it_is_named_as_it_is_spelled(gguf):
    """The name has the whole path, and closing what was never loaded is nothing."""
    operator = LlamaOperator(gguf)
    assert operator.name == f"llama:{gguf}"
    await operator.close()


async def test_a_damaged_file_is_told(gguf):
    """The engine's refusal becomes an OperatorError that says what to type."""
    pytest.importorskip("xllamacpp", reason="the extra 'local' is not installed")
    with pytest.raises(OperatorError, match=r"cannot be loaded.*cave models pull") as caught:
        await LlamaOperator(gguf).next(ASK, print)
    assert caught.value.reason == "model"
