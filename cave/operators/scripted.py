"""The scripted operator: a list of steps, or a function, in the place of a model.

For tests, demos and evals. It costs nothing and reports as usage the estimate for the
prompt that it was shown.
"""

from __future__ import annotations

import dataclasses
import inspect
import runpy
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from cave.errors import CaveError, ConfigError, OperatorError
from cave.events import Usage
from cave.operators.tokens import estimate_tokens, estimate_view
from cave.ports import Reply, View


@dataclass(frozen=True, slots=True)
class Finish:
    """A step that ends the turn with `answer`; an empty one means the last cell's text."""

    answer: str = ""


Plain: TypeAlias = str | tuple[str, str] | Finish
"""A source, `(note, source)`, or a `Finish`."""
StepFunction: TypeAlias = Callable[[View], Plain | Awaitable[Plain | None] | None]
Step: TypeAlias = Plain | StepFunction

UNKNOWN = 1_000
"""Tokens that the reply of a function is taken for."""

_EXPECTED = "a step is a source, (note, source), Finish(answer), or a function of the view"


class ScriptedOperator:
    """Plays `steps` in order: one list serves all asks.

    A step is a source, `(note, source)`, `Finish(answer)`, or `f(view) -> step` (which may
    be async, and may give None to end the turn). A function in the place of the list is
    called for every step. When the list is used up, each turn ends with `answer`, or
    without one with an empty answer, which stands for the text of its last cell.
    """

    def __init__(
        self,
        steps: Sequence[Step] | StepFunction,
        *,
        answer: str | None = None,
        name: str = "scripted",
    ) -> None:
        self._function = steps if callable(steps) else None
        self._steps: list[Step] = [] if callable(steps) else _checked(steps)
        self._answer = answer or ""
        self._at = 0
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    @property
    def left(self) -> int:
        """How many steps of the list have not been played."""
        return len(self._steps) - self._at

    free = True

    @property
    def max_tokens(self) -> int:
        """Of the next reply; of a function's nobody knows."""
        if self._function is None and self._at == len(self._steps):
            return estimate_tokens(self._answer)
        step = self._function or self._steps[self._at]
        match step:
            case Finish(text):
                return estimate_tokens(text)
            case (note, source):
                return estimate_tokens(note + source)
            case str():
                return estimate_tokens(step)
            case _:
                return UNKNOWN

    @staticmethod
    def prompt_tokens(view: View) -> int:
        """As it reports them."""
        return estimate_view(view)

    async def next(self, view: View, on_text: Callable[[str], None]) -> Reply:
        step = self._take()
        while callable(step):
            step = await self._called(step, view)
        reply = self._reply(step, view)
        if spoken := reply.note or reply.text:
            on_text(spoken)
        return reply

    async def close(self) -> None:
        """Nothing is held."""

    def _take(self) -> Step | None:
        if self._function is not None:
            return self._function
        if self._at == len(self._steps):
            return None
        self._at += 1
        return self._steps[self._at - 1]

    async def _called(self, function: StepFunction, view: View) -> Step | None:
        label = getattr(function, "__name__", type(function).__name__)
        try:
            made = function(view)
            step = await made if inspect.isawaitable(made) else made
        except CaveError:
            raise
        except Exception as error:
            what = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise OperatorError(f"the scripted step {label!r} raised {what}") from error
        if step is not None and not _is_step(step):
            raise OperatorError(f"the scripted step {label!r} gave {step!r}; {_EXPECTED}")
        return step

    def _reply(self, step: Plain | None, view: View) -> Reply:
        match step:
            case None:
                return _spent(Reply("finish", text=self._answer), view)
            case Finish(answer):
                return _spent(Reply("finish", text=answer), view)
            case (note, source):
                return _spent(Reply("cell", source=source, note=note), view)
            case source:
                return _spent(Reply("cell", source=source), view)


def _spent(reply: Reply, view: View) -> Reply:
    """`reply` with the estimated usage of having read `view`."""
    usage = Usage(
        input_tokens=estimate_view(view),
        output_tokens=estimate_tokens(reply.note + reply.source + reply.text),
        model_calls=1,
        estimated=True,
    )
    return dataclasses.replace(reply, usage=usage)


def _is_step(step: object) -> bool:
    match step:
        case str() | Finish():
            return True
        case (str(), str()):
            return isinstance(step, tuple)
        case _:
            return callable(step)


def _checked(steps: object) -> list[Step]:
    if isinstance(steps, str) or not isinstance(steps, Sequence):
        raise ConfigError(f"the steps of a script are a list, not {type(steps).__name__!r}")
    for number, step in enumerate(steps, 1):
        if not _is_step(step):
            raise ConfigError(f"step {number} of the script is {step!r}; {_EXPECTED}")
    return list(steps)


def from_file(path: str | Path) -> ScriptedOperator:
    """The operator that a Python file defines by `steps` and, if it likes, `answer`.

    The file is run as it stands, with the rights of this process. It may use `Finish`
    without importing it.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"no script at {str(path)!r}; write script:FILE.py")
    try:
        made = runpy.run_path(str(path), init_globals={"Finish": Finish})
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise OperatorError(f"the script {str(path)!r} cannot be run: {what}") from error
    if "steps" not in made:
        raise ConfigError(f"the script {str(path)!r} defines no `steps`; add: steps = ['x = 1']")
    return ScriptedOperator(made["steps"], answer=made.get("answer"), name=f"script:{path}")
