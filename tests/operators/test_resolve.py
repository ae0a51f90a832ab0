import subprocess
import sys
from pathlib import Path

import pytest

from cave.errors import ConfigError, OperatorError
from cave.operators import missing, resolve
from cave.operators.anthropic import DEFAULT_MODEL
from cave.operators.openai import OpenAIOperator
from cave.testing import ScriptedOperator

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    """No key and no model in the environment."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CAVE_MODEL", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("anthropic", f"anthropic:{DEFAULT_MODEL}"),
        ("anthropic:claude-sonnet-5", "anthropic:claude-sonnet-5"),
        ("openai:gpt-x", "openai:gpt-x"),
        (
            "openai:qwen2.5:7b@http://localhost:11434/v1",
            "openai:qwen2.5:7b@http://localhost:11434/v1",
        ),
        ("human", "human"),
        (["x = 1"], "scripted"),
        ([], "scripted"),
        (lambda _: "x = 1", "scripted"),
    ],
)
def test_each_way_to_name_an_operator(spec, name):
    """The operator's own name is how `operator=` spells it."""
    assert resolve(spec).name == name


def test_an_operator_is_taken_as_it_is():
    """An object that has the methods of an Operator needs no resolving."""
    operator = ScriptedOperator([])
    assert resolve(operator) is operator


def test_the_style_of_an_endpoint_can_be_chosen():
    """`?style=tools` turns tool calls on and is no part of the address."""
    operator = resolve("openai:m@http://localhost:1/v1?style=tools")
    assert isinstance(operator, OpenAIOperator)
    assert (operator.style, operator.name) == ("tools", "openai:m@http://localhost:1/v1")


def test_files_are_looked_for_at_once(tmp_path):
    """Scripts and models that are not there, or are something else, are told when named."""
    script = tmp_path / "play.py"
    script.write_text("steps = []\n")
    assert resolve(f"script:{script}").name == f"script:{script}"
    with pytest.raises(ConfigError, match="no script at"):
        resolve("script:none.py")
    with pytest.raises(ConfigError, match=r"no model file at .*cave models pull"):
        resolve("llama:/none.gguf")
    with pytest.raises(OperatorError, match="not a GGUF file"):
        resolve(f"llama:{script}")


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("gpt", "write one of anthropic"),
        ("claude-opus-5", "did you mean 'anthropic:claude-opus-5'"),
        ("/x/y.gguf", "did you mean 'llama:/x/y.gguf'"),
        ("openai:", "openai:MODEL@http://host:port/v1"),
        ("openai:m@ftp://x", "openai:MODEL@http://host:port/v1"),
        ("openai:m@http://h/v1?style=odd", "'fences' or 'tools'"),
        ("llama:", "write llama:FILE"),
        ("script:", "write script:FILE"),
        ("human:x", "no operator 'human:x'"),
        (7, "'int'"),
    ],
)
def test_a_wrong_name_says_what_to_write(spec, hint):
    """What names no operator is a ConfigError with the forms, or the one that was meant."""
    with pytest.raises(ConfigError) as caught:
        resolve(spec)
    assert hint in str(caught.value)


def test_what_counts_when_nothing_is_named(monkeypatch):
    """The call, then the setting, then CAVE_MODEL, then a key of Anthropic's, else None."""
    assert resolve(None) is None
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    assert resolve(None).name == f"anthropic:{DEFAULT_MODEL}"
    monkeypatch.setenv("CAVE_MODEL", "human")
    assert resolve(None).name == "human"
    assert resolve(None, model_env="openai:m").name == "openai:m"
    assert resolve("anthropic:x", model_env="openai:m").name == "anthropic:x"


def test_without_a_model_there_are_three_lines_to_type():
    """A key, an endpoint, a local model."""
    text = str(missing())
    assert "export ANTHROPIC_API_KEY=..." in text
    assert "CAVE_MODEL=openai:MODEL@http://localhost:11434/v1" in text
    assert "CAVE_MODEL=llama:/path.gguf" in text
    assert "--model" in text
    assert "pip install 'cave-runtime[local]'" in text


def test_making_operators_imports_no_sdk():
    """SDKs cost seconds and are imported at the first step."""
    code = (
        "import sys; from cave.operators import resolve\n"
        "resolve('anthropic:m'); resolve('openai:m'); resolve(['x'])\n"
        "sys.exit(any(m in sys.modules for m in ('anthropic', 'openai', 'httpx2')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, timeout=60, env={"PYTHONPATH": "."}
    )
    assert done.returncode == 0
