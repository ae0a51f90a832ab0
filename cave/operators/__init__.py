"""Operators: who decides the next cell. Only the modules here import a model SDK.

`resolve` makes an operator of what `operator=` or `CAVE_MODEL` says. SDKs are imported at
the first step, so that making an operator costs nothing.

=========================================  ===============================================
`anthropic`, `anthropic:MODEL`             Claude, with the key in `ANTHROPIC_API_KEY`
`openai:MODEL`                             OpenAI, with the key in `OPENAI_API_KEY`
`openai:MODEL@http://host/v1`              any endpoint that speaks chat completions
`openai:MODEL@http://host/v1?style=tools`  the same, with tool calls in place of fences
`llama:/path.gguf`                         a local model in this process
`script:file.py`                           the steps that a Python file defines
`human`                                    a person at the terminal
=========================================  ===============================================
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeGuard

from cave.errors import ConfigError, OperatorError
from cave.ports import Operator

Spec: TypeAlias = str | Operator | Sequence[Any] | Callable[..., Any] | None
"""What `operator=` takes: a text as above, an Operator, steps or a function for a script."""

FORMS = "anthropic[:MODEL], openai:MODEL[@URL], llama:/path.gguf, script:file.py, human"


def resolve(
    spec: Spec = None, *, model_env: str | None = None, max_retries: int = 2
) -> Operator | None:
    """The operator that `spec` names, or None when nothing names one.

    Without `spec`, `model_env` counts (the setting `model`; by default `CAVE_MODEL` of the
    environment), then a key of Anthropic's. Nothing is called and no SDK is imported.
    Raises `ConfigError` for a text that names no operator and `OperatorError` for one that
    cannot be had here.
    """
    if spec is None or spec == "":  # an empty list is a script
        spec = model_env or os.environ.get("CAVE_MODEL") or None
    if spec is None:
        from cave.operators.anthropic import key_found

        spec = "anthropic" if key_found() else None
    if spec is None:
        return None
    if isinstance(spec, str):
        return _named(spec.strip(), max_retries)
    if _is_operator(spec):
        return spec
    if callable(spec) or isinstance(spec, (list, tuple)):
        from cave.operators.scripted import ScriptedOperator

        return ScriptedOperator(spec)
    raise ConfigError(f"operator is {type(spec).__name__!r}; write one of {FORMS}, or a list")


def missing() -> OperatorError:
    """That there is no model, with the three lines to type."""
    return OperatorError(
        "no model is named and no key was found; type one of\n"
        "  a key:          export ANTHROPIC_API_KEY=...\n"
        "  an endpoint:    export CAVE_MODEL=openai:MODEL@http://localhost:11434/v1"
        "   (pip install 'cave-runtime[openai]')\n"
        "  a local model:  export CAVE_MODEL=llama:/path.gguf"
        "   (pip install 'cave-runtime[local]', then `cave models pull`)\n"
        "or name it for one call: operator=... in Python, --model ... at the terminal",
        reason="missing",
    )


def _is_operator(spec: object) -> TypeGuard[Operator]:
    return callable(getattr(spec, "next", None)) and callable(getattr(spec, "close", None))


def _named(spec: str, max_retries: int) -> Operator:
    kind, _, rest = spec.partition(":")
    match kind:
        case "anthropic":
            from cave.operators.anthropic import DEFAULT_MODEL, AnthropicOperator

            return AnthropicOperator(rest or DEFAULT_MODEL, max_retries=max_retries)
        case "openai":
            return _openai(spec, rest, max_retries)
        case "llama" if rest:
            from cave.operators.llama import LlamaOperator

            return LlamaOperator(rest)
        case "script" if rest:
            from cave.operators.scripted import from_file

            return from_file(rest)
        case "human" if not rest:
            from cave.operators.human import HumanOperator

            return HumanOperator()
        case "llama" | "script":
            raise ConfigError(f"operator {spec!r} names no file; write {kind}:FILE")
    hint = f"; did you mean 'anthropic:{spec}'?" if spec.startswith("claude") else ""
    hint = hint or (f"; did you mean 'llama:{spec}'?" if spec.endswith(".gguf") else "")
    raise ConfigError(f"there is no operator {spec!r}; write one of {FORMS}{hint}")


def _openai(spec: str, rest: str, max_retries: int) -> Operator:
    from urllib.parse import parse_qs, urlsplit

    from cave.operators.openai import OpenAIOperator

    model, _, url = rest.partition("@") if "://" in rest else (rest, "", "")
    parts = urlsplit(url)
    style = parse_qs(parts.query).get("style", [None])[0]
    if not model or (url and not (parts.scheme in {"http", "https"} and parts.netloc)):
        raise ConfigError(f"operator {spec!r}: write openai:MODEL@http://host:port/v1")
    if style is not None and style not in {"fences", "tools"}:
        raise ConfigError(f"operator {spec!r}: style is 'fences' or 'tools', not {style!r}")
    base = parts._replace(query="", fragment="").geturl() or None
    return OpenAIOperator(model, base, style=style, max_retries=max_retries)  # type: ignore[arg-type]
