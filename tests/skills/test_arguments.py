"""What a call may be given: checked against the annotations before anything runs."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict, Unpack

import cave


@dataclass
class Entry:
    account: str
    amount: float
    day: dt.date | None = None
    tags: list[str] = field(default_factory=list)


class Rate(BaseModel):
    pair: str
    value: float


class Side(enum.Enum):
    DEBIT = "debit"
    CREDIT = "credit"


class Options(TypedDict, total=False):
    dry: bool
    limit: int


@cave.skill
def whole(n: int) -> int:
    return n


@cave.skill
def number(x: float) -> float:
    return x


@cave.skill
def flag(on: bool) -> bool:
    return on


@cave.skill
def day(d: dt.date) -> dt.date:
    return d


@cave.skill
def post(entry: Entry, side: Side = Side.DEBIT) -> tuple[Entry, Side]:
    return entry, side


@cave.skill
def table(df: pd.DataFrame, column: Literal["a", "b"], weights: np.ndarray | None = None) -> int:
    return len(df)


@cave.skill
def kinds(a: int, /, b: int = 2, *rest: int, c: int, d: int = 4, **more: str) -> Any:
    return a, b, rest, c, d, more


@cave.skill
def options(name: str, **settings: Unpack[Options]) -> Any:
    return settings


@cave.skill
def later(x: Later, many: list[Later] | None = None) -> Any:
    return x, many


@dataclass
class Later:
    n: int


@pytest.mark.parametrize("given", [3, 3.0, np.int64(3), np.float32(3), np.uint8(3)])
def test_what_means_a_whole_number_is_one(given: Any) -> None:
    """Numbers of numpy and floats without a fraction are taken for an int, and become one."""
    assert type(whole(given)) is int
    assert whole(given) == 3


@pytest.mark.parametrize("given", ["3", 3.5, True, None, b"3", [3], np.array([3]), np.bool_(True)])
def test_what_is_no_whole_number_is_refused(given: Any) -> None:
    """A text is never read as a number, nor is a truth value one."""
    with pytest.raises(cave.SkillError, match=r"skill 'whole' was not called: argument 'n' is "):
        whole(given)


def test_a_quoted_number_is_told_to_lose_its_quotes() -> None:
    """The refusal shows the value, its type, what is wanted, and the signature."""
    with pytest.raises(cave.SkillError) as caught:
        whole("12")
    assert str(caught.value) == (
        "skill 'whole' was not called: argument 'n' is '12', a str: Input should be a valid "
        "integer, without quotes; it takes whole(n: int)"
    )


@pytest.mark.parametrize(
    ("skill", "good", "bad"),
    [
        (number, [1, 1.5, np.float64(2), np.int8(1)], ["1.5", True, None, "nan"]),
        (flag, [True, False, np.bool_(True)], [1, 0, "true", "yes", 1.0]),
        (
            day,
            [dt.date(2026, 1, 31), "2026-01-31", pd.Timestamp("2026-01-31")],
            [20260131, "20260131", 1.5, "1769817600", "soon", True],
        ),
    ],
)
def test_each_kind_takes_what_means_the_same(
    skill: cave.Skill, good: list[Any], bad: list[Any]
) -> None:
    """Conversions that lose or guess nothing are made, others are refused."""
    for value in good:
        skill(value)
    for value in bad:
        with pytest.raises(cave.SkillError):
            skill(value)


def test_dataclasses_and_enums_come_also_from_plain_values() -> None:
    """A mapping becomes the dataclass, nested fields checked; a value becomes the Enum."""
    entry, side = post({"account": "4711", "amount": 5, "day": "2026-01-31"}, "credit")
    assert entry == Entry("4711", 5.0, dt.date(2026, 1, 31))
    assert side is Side.CREDIT
    same = Entry("1", 1.0)
    assert post(same)[0] is same


@pytest.mark.parametrize(
    ("entry", "path"),
    [
        ({"account": "1", "amount": "5"}, r"'entry\.amount' is '5'"),
        ({"account": "1", "amount": 5, "day": 20260131}, r"'entry\.day'"),
        ({"account": "1", "amount": 5, "tags": ["a", 7]}, r"'entry\.tags\[1\]' is 7"),
        ({"account": "1"}, r"'entry\.amount' is missing"),
        ({"account": "1", "amount": 5, "acount": "2"}, r"'entry\.acount'"),
    ],
)
def test_the_path_to_a_wrong_field_is_named(entry: dict[str, Any], path: str) -> None:
    """Dataclasses are checked as strictly as arguments, and the field is told by its path."""
    with pytest.raises(cave.SkillError, match=path):
        post(entry)


def test_models_of_pydantic_keep_their_own_rules() -> None:
    """A model that takes "1.5" for a float takes it here too."""

    @cave.skill
    def convert(rate: Rate) -> Rate:
        return rate

    assert convert({"pair": "EURUSD", "value": "1.5"}).value == 1.5
    with pytest.raises(cave.SkillError, match=r"rate\.value"):
        convert({"pair": "EURUSD", "value": "much"})


def test_frames_and_arrays_are_checked_by_their_class() -> None:
    """They pass as they are, without a copy; something else is refused by its shape."""
    df = pd.DataFrame({"a": range(3)})
    assert table(df, "a", np.ones(3)) == 3
    assert table.validate({"df": df, "column": "a"})["df"] is df
    with pytest.raises(cave.SkillError, match=r"'df' is <ndarray 3x2>, a ndarray"):
        table(np.ones((3, 2)), "a")
    with pytest.raises(cave.SkillError, match=r"'column' is 'c', a str: Input should be 'a' or"):
        table(df, "c")


def test_generic_arrays_callables_and_constraints() -> None:
    """`NDArray[...]`, `Callable`, `Annotated` with limits, `Path` and `Decimal` are understood."""

    @cave.skill
    def many(
        a: npt.NDArray[np.float64],
        f: Callable[[int], int],
        n: Annotated[int, Field(gt=0, description="how many")],
        where: Path,
        sum_: decimal.Decimal,
    ) -> Any:
        return where, sum_

    assert many(np.ones(2), abs, 1, "a/b", "12.50") == (Path("a/b"), decimal.Decimal("12.50"))
    with pytest.raises(cave.SkillError, match=r"'n' is 0, a int: .* greater than 0"):
        many(np.ones(2), abs, 0, "a", 1)
    assert many.schema["properties"]["n"]["description"] == "how many"


def test_a_union_takes_the_member_that_fits() -> None:
    """`int | str` leaves a text a text."""

    @cave.skill
    def either(x: int | str) -> int | str:
        return x

    assert either("12") == "12"
    assert either(12) == 12


def test_every_kind_of_parameter_is_passed_as_python_would() -> None:
    """Positional-only, defaults, *args, keyword-only and **kwargs arrive where they belong."""
    assert kinds(1, c=3) == (1, 2, (), 3, 4, {})
    assert kinds(1, 2, 3, np.int64(4), c=5, x="y") == (1, 2, (3, 4), 5, 4, {"x": "y"})
    with pytest.raises(TypeError, match="missing a required argument: 'c'"):
        kinds(1)
    with pytest.raises(cave.SkillError, match=r"'rest\[0\]' is 'x'"):
        kinds(1, 2, "x", c=1)
    with pytest.raises(cave.SkillError, match=r"'more\.z' is 1"):
        kinds(1, c=1, z=1)


def test_keywords_may_be_a_typed_dict() -> None:
    """`**settings: Unpack[Options]` is checked by the names of Options."""
    assert options("x", dry=True, limit=3) == {"dry": True, "limit": 3}
    with pytest.raises(cave.SkillError, match=r"settings\.limit"):
        options("x", limit="3")


def test_none_may_be_given_where_it_is_the_default() -> None:
    """`n: int = None` takes None, as its author meant."""

    @cave.skill
    def lax(n: int = None) -> Any:  # type: ignore[assignment]  # noqa: RUF013 -- what people write
        return n

    assert lax(n=None) is None
    assert lax() is None


def test_names_by_mapping_are_told_when_wrong() -> None:
    """`validate` names arguments that are missing or that nobody knows, with the nearest."""
    with pytest.raises(cave.SkillError, match=r"is missing; there is no argument 'entri', did"):
        post.validate({"entri": {}})
    assert whole.validate({"n": 3}) == {"n": 3}


def test_names_that_come_later_in_the_file_are_found_when_used() -> None:
    """A forward reference waits for its class."""
    assert later({"n": 1}, [{"n": 2}]) == (Later(1), [Later(2)])
    with pytest.raises(cave.SkillError, match=r"x\.n"):
        later({"n": "1"})


def test_the_schema_is_for_operators() -> None:
    """JSON schema by name; what is not required is not; frames are described by class."""
    schema = table.schema
    assert schema["required"] == ["df", "column"]
    assert schema["properties"]["column"] == {
        "enum": ["a", "b"],
        "title": "Column",
        "type": "string",
    }
    assert "DataFrame" in str(schema["properties"]["df"])
    assert schema["additionalProperties"] is False


def test_signatures_read_as_python() -> None:
    """The text that operators see is the signature without the context."""
    assert kinds.signature == (
        "kinds(a: int, /, b: int = 2, *rest: int, c: int, d: int = 4, **more: str) -> Any"
    )

    @cave.skill
    def noted(a: int, *, ctx: cave.SkillContext, b: bool = False) -> str:
        return ctx.session

    assert noted.signature == "noted(a: int, *, b: bool = False) -> str"
    assert [p.kind for p in noted.parameters] == ["POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY"]
    assert all(hasattr(inspect.Parameter, p.kind) for p in kinds.parameters)
