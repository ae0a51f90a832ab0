"""The decorator: what a declaration may say, and what a Skill says of itself."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import cave
from cave.skills import finish, finish_async


@cave.skill
def plain(x: int) -> int:
    """Twice x.

    Use when x is too small.
    """
    return 2 * x


@cave.skill(
    version="1.2.0",
    effect="write",
    approval="always",
    in_doubt="retry",
    retries=2,
    transient=ConnectionError,
    timeout=30,
    runs="host",
    undo="unpost",
    name="post_entry",
    inputs={"amount": "euros, with cents", "account": int},
    outputs=["id", "posted_at"],
)
def post(account: str, amount: float, ctx: cave.SkillContext) -> tuple[str, str]:
    """Post an entry."""
    return ctx.idempotency_key, str(account)


def test_bare_and_called_decorators_make_skills() -> None:
    """Both forms give a callable Skill that still looks like its function."""
    assert isinstance(plain, cave.Skill)
    assert isinstance(post, cave.Skill)
    assert plain(4) == 8
    assert plain.__name__ == "plain"
    assert plain.__doc__ == plain.__wrapped__.__doc__
    assert plain.description == "Twice x.\n\nUse when x is too small."
    assert (plain.version, plain.effect, plain.approval) == ("0.0.0", "none", "never")
    assert (plain.in_doubt, plain.retries, plain.timeout, plain.runs) == ("ask", 0, None, "kernel")


def test_settings_are_kept_and_override_the_signature() -> None:
    """name=, inputs= and outputs= are what the operator sees."""
    assert post.name == "post_entry"
    assert post.signature == "post_entry(account: int, amount: float) -> id, posted_at"
    assert post.transient == (ConnectionError,)
    assert post.schema["properties"]["account"]["type"] == "integer"
    assert post.schema["properties"]["amount"]["description"] == "euros, with cents"
    assert post.parameters[1].note == "euros, with cents"
    with pytest.raises(cave.SkillError, match="'account' is '4711', a str"):
        post("4711", 1.0)


def test_the_context_is_hidden_and_local_outside_of_sessions() -> None:
    """`ctx` is no argument; outside of a session a fresh one is given, or the caller's own."""
    assert post.wants_context
    assert [p.name for p in post.parameters] == ["account", "amount"]
    first, second = post(1, 2.0)[0], post(1, 2.0)[0]
    assert len(first) >= 16
    assert first != second
    mine = cave.SkillContext(idempotency_key="k")
    assert post(1, 2.0, ctx=mine)[0] == "k"


def test_a_local_context_has_variables_and_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    """Skills can be tested by hand: variables are given, progress goes to stderr."""

    @cave.skill
    def total(name: str, ctx: cave.SkillContext) -> float:
        ctx.log("adding")
        ctx.runtime.put(seen=True)
        return float(ctx.runtime.get(name).sum())

    ctx = cave.SkillContext.local(x=pd.Series([1.0, 2.0]))
    assert total("x", ctx=ctx) == 3.0
    assert ctx.runtime.get("seen") is True
    assert capsys.readouterr().err == "adding\n"
    with pytest.raises(cave.UnknownName, match="'y'"):
        total("y", ctx=ctx)


def test_async_skills_are_awaited() -> None:
    """An async function's call gives an awaitable, checked before it is made."""

    @cave.skill
    async def slow(x: int) -> int:
        await asyncio.sleep(0)
        return x + 1

    assert slow.is_async
    assert asyncio.run(slow(1)) == 2
    with pytest.raises(cave.SkillError):
        slow("1")


def test_generators_yield_progress_and_return_their_value(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is yielded is shown, what `return` gives is the value."""

    @cave.skill
    def steps(n: int) -> Generator[str, None, int]:
        for i in range(n):
            yield f"{i + 1} of {n}"
        return n * 10

    assert steps.is_generator
    assert steps(2) == 20
    assert capsys.readouterr().err == "1 of 2\n2 of 2\n"
    notes: list[str] = []
    assert finish(steps.invoke({"n": 1}, cave.SkillContext.local()), notes.append) == 10
    assert notes == ["1 of 1"]


def test_async_generators_end_with_their_value() -> None:
    """An async generator cannot return: the last that it yields is its value."""

    @cave.skill
    async def steps() -> AsyncIterator[Any]:
        yield "begun"
        yield {"rows": 3}

    notes: list[str] = []
    made = steps.invoke({}, cave.SkillContext.local())
    assert asyncio.run(finish_async(made, notes.append)) == {"rows": 3}
    assert notes == ["begun"]
    assert asyncio.run(finish_async(plain.invoke({"x": 1}, cave.SkillContext.local()), str)) == 2


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"version": "1.2"}, "version is '1.2', not a semantic version"),
        ({"version": "01.2.3"}, "version is '01.2.3'"),
        ({"version": 1}, "version is 1"),
        ({"effect": "delete"}, "effect is 'delete', not one of 'none', 'read', 'write'"),
        ({"runs": "cloud"}, "runs is 'cloud', not one of 'kernel', 'host'"),
        ({"approval": "sometimes"}, "approval is 'sometimes'"),
        ({"in_doubt": "hope"}, "in_doubt is 'hope'"),
        ({"retries": -1}, "retries is -1"),
        ({"retries": True}, "retries is True"),
        ({"timeout": 0}, "timeout is 0"),
        ({"transient": ["ConnectionError"]}, "transient is 'ConnectionError'"),
        ({"transient": 5}, "transient is 5, not a class of exceptions"),
        ({"undo": 3}, "undo is 3"),
        ({"inputs": ["x"]}, "inputs is \\['x'\\]"),
        ({"inputs": {"y": int}}, "parameter 'y': inputs= names it"),
        ({"outputs": [1]}, "outputs is \\[1\\]"),
        ({"name": "post-entry"}, "name is 'post-entry'"),
        ({"name": "class"}, "name is 'class'"),
        ({"name": "_hidden"}, "name is '_hidden'"),
        ({"retry": 3}, "retry is 3, not a setting of a skill"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(settings: dict[str, Any], problem: str) -> None:
    """Each wrong setting is a SkillError that names the file, the skill and the setting."""

    def f(x: int) -> int:
        return x

    with pytest.raises(cave.SkillError, match=problem) as caught:
        cave.skill(**settings)(f)
    assert f"{__file__}:{f.__code__.co_firstlineno}: skill" in str(caught.value)


@pytest.mark.parametrize("version", ["0.0.1", "1.2.3-rc.1", "10.20.30+build.5", "1.0.0-alpha-a.b"])
def test_semantic_versions_are_taken(version: str) -> None:
    """Pre-releases and builds are part of the standard."""
    assert cave.skill(version=version)(lambda_named("f")).version == version


def lambda_named(name: str) -> Any:
    made = eval("lambda x: x")
    made.__name__ = name
    return made


@pytest.mark.parametrize("thing", [3, "f", len, pd.DataFrame, None])
def test_only_functions_become_skills(thing: Any) -> None:
    """Classes, builtins and values are refused."""
    with pytest.raises(cave.SkillError, match="decorate a function made by `def`"):
        cave.skill()(thing)


@pytest.mark.parametrize(
    ("annotation", "problem"),
    [
        ("5", "5"),
        ("[int]", r"annotation \[.*int.*\]"),
        ("'not a type'", "not a type"),
        ("Undefined", "names 'Undefined', which is not defined"),
        ("list[Undefined]", "names 'Undefined'"),
        ("pd.Dataframe", "pd.Dataframe"),
        ("print", "print"),
        ("list[5]", r"list\[5\]"),
    ],
)
@pytest.mark.parametrize("future", ["from __future__ import annotations\n", ""])
def test_wrong_annotations_are_refused_where_they_stand(
    annotation: str, problem: str, future: str, tmp_path: Path
) -> None:
    """The error names file, line, function, parameter, and what to write."""
    if not future and "Undefined" in annotation:
        annotation = f"'{annotation}'"  # else Python itself refuses it
    if not future and "Dataframe" in annotation:
        annotation = "'pd.Dataframe'"
    file = tmp_path / "mine.py"
    source = f"def f(ok: int, wrong: {annotation}) -> int:\n    return 1\n"
    file.write_text(f"{future}import pandas as pd\nimport cave\n@cave.skill\n{source}")
    with pytest.raises(cave.SkillError, match=problem) as caught:
        exec(compile(file.read_text(), str(file), "exec", dont_inherit=True), {})
    told = str(caught.value)
    assert told.startswith(f"{file}:")
    assert "function 'f', parameter 'wrong'" in told


def test_what_is_imported_for_type_checkers_only_is_told(tmp_path: Path) -> None:
    """A name under TYPE_CHECKING has no value; the skill says so when it is added."""
    file = tmp_path / "mine.py"
    file.write_text(
        textwrap.dedent("""
        from __future__ import annotations
        from typing import TYPE_CHECKING
        import cave
        if TYPE_CHECKING:
            from decimal import Decimal

        @cave.skill
        def f(x: Decimal) -> int:
            return 1
        """)
    )
    with pytest.raises(cave.SkillError, match="'Decimal', which has no value at run time"):
        cave.skills.load(file)


def test_the_declaration_is_json_and_says_what_a_kernel_needs() -> None:
    """It survives JSON, and has no context among the parameters."""
    declared = json.loads(json.dumps(post.declaration()))
    assert declared["name"] == "post_entry"
    assert declared["effect"] == "write"
    assert declared["runs"] == "host"
    assert declared["module"] == __name__
    assert declared["wants_context"]
    assert declared["context"] == "ctx"
    assert declared["hash"] == post.hash
    assert [p["name"] for p in declared["parameters"]] == ["account", "amount"]
    assert declared["parameters"][0] == {
        "name": "account",
        "kind": "POSITIONAL_OR_KEYWORD",
        "default": None,
        "required": True,
        "annotation": "int",
    }


def declared_in(folder: Path, source: str) -> Any:
    file = folder / "mine.py"
    file.write_text(f"import cave\n{source}")
    return cave.skills.load(file)[0]


def test_the_hash_follows_source_and_declaration(tmp_path: Path) -> None:
    """Another body, version or effect gives another hash; the same text gives the same one."""
    source = "@cave.skill\ndef f(x: int):\n    return x\n"
    texts = [
        source,
        source.replace("return x", "return x + 1"),
        source.replace("skill\n", "skill(version='1.0.0')\n"),
        source.replace("skill\n", "skill(effect='read')\n"),
    ]
    hashes = []
    for at, text in enumerate([*texts, source]):
        folder = tmp_path / str(at)
        folder.mkdir()
        hashes.append(declared_in(folder, text).hash)
    assert len(set(hashes)) == 4
    assert hashes[0] == hashes[-1]


def test_the_hash_is_the_same_in_another_process(tmp_path: Path) -> None:
    """Recovery on another day knows the skill again."""
    skill = declared_in(tmp_path, "@cave.skill(undo=len)\ndef f(x: int = 3):\n    return x\n")
    code = f"import cave.skills; print(cave.skills.load({str(tmp_path / 'mine.py')!r})[0].hash)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == skill.hash


def test_names_of_the_skills_api_do_not_load_pydantic() -> None:
    """`import cave` stays light, and `cave.SkillContext` too."""
    code = "import cave, sys; cave.SkillContext; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
