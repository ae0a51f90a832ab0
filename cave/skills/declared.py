"""`Skill`: a function with a declaration, callable from cells; and the decorator that makes it."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import re
import sys
import textwrap
import tokenize
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Literal, get_args, overload

from cave import config
from cave.errors import ConfigError, SkillError
from cave.inkernel.outcome import finish, finish_async
from cave.skills.annotations import Place, text_of
from cave.skills.arguments import Arguments, Parameter
from cave.skills.carried import carried
from cave.skills.context import SkillContext

Effect = Literal["none", "read", "write"]
Runs = Literal["kernel", "host"]

# semver.org, section 11 "Is there a suggested regular expression", without named groups
VERSION = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?"
)


@dataclass(eq=False, repr=False)
class Skill:
    """A named capability: a function with what the session must know to call it once.

    Called outside of a session it checks its arguments and calls the function, with a
    `SkillContext` of its own.
    """

    name: str
    function: types.FunctionType
    version: str = "0.0.0"
    """Semantic (semver.org)."""
    effect: Effect = "none"
    """What it does to the world; calls with `read` and `write` are journaled."""
    approval: Literal["never", "always"] | Callable[[Any], str | bool] = "never"
    in_doubt: Literal["ask", "retry"] | Callable[[Any], Any] = "ask"
    """What follows a call whose result nobody knows; a function is a probe."""
    retries: int = 0
    transient: tuple[type[BaseException], ...] = ()
    """The errors that `retries` is for."""
    timeout: float | None = None
    """Seconds that a call may take. What it has done by then is in doubt where `effect` is
    `write`. A function of the host goes on in its thread; one of the kernel is stopped."""
    runs: Runs = "kernel"
    undo: Skill | str | Callable[..., Any] | None = None
    """What compensates a call, offered after a restore."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Types, or sentences for the operator, that override what the signature says."""
    outputs: tuple[str, ...] = ()
    """Names of the values of the result, for the operator."""
    scope: InitVar[Mapping[str, Any] | None] = None
    """Local names that its annotations may use."""

    def __post_init__(self, scope: Mapping[str, Any] | None) -> None:
        place = Place(self.name, self.function, scope or {})
        signature = inspect.signature(self.function)
        self._arguments = Arguments(place, signature, self.inputs)
        self._arguments.early()
        functools.update_wrapper(self, self.function)

    # -- what it says of itself --------------------------------------------------------------

    @property
    def description(self) -> str:
        """The function's docstring."""
        return inspect.getdoc(self.function) or ""

    @property
    def module(self) -> str:
        """Name of the module that declared it."""
        return self.function.__module__

    @property
    def where(self) -> str:
        """File and line of the declaration."""
        return self._arguments.place.where

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What the operator may give; the context is left out."""
        return self._arguments.parameters

    @property
    def signature(self) -> str:
        """`post_entry(entry: Entry) -> str`."""
        return f"{self.name}{self._arguments.text}{f' -> {self.returns}' if self.returns else ''}"

    @property
    def returns(self) -> str:
        """What a call gives: the names of `outputs=`, else the annotation."""
        if self.outputs:
            return ", ".join(self.outputs)
        return text_of(inspect.signature(self.function).return_annotation)

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of the arguments, by name. Raises `SkillError`."""
        schema = dict(self._arguments.schema)
        properties = {name: dict(of) for name, of in schema.get("properties", {}).items()}
        for parameter in self.parameters:
            if parameter.note:
                properties[parameter.name]["description"] = parameter.note
        return {**schema, "properties": properties}

    @property
    def wants_context(self) -> bool:
        """Whether the function has a parameter for the `SkillContext`."""
        return self._arguments.context is not None

    @property
    def is_async(self) -> bool:
        """Whether a call is to be awaited."""
        made = self.function
        return inspect.iscoroutinefunction(made) or inspect.isasyncgenfunction(made)

    @property
    def is_generator(self) -> bool:
        """Whether a call yields progress before it gives its value."""
        made = self.function
        return inspect.isgeneratorfunction(made) or inspect.isasyncgenfunction(made)

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of the source and the declaration: another one when either changes."""
        declared = {
            key: _stable(getattr(self, key))
            for key in (*_SETTINGS, "name", "version", "effect", "runs", "signature")
        }
        text = json.dumps([_source(self.function), declared], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def carried(self) -> types.FunctionType:
        """The function as it goes into a kernel, by value. Raises `SkillError`."""
        self.check()
        return carried(self.function, self._arguments.hints, self.name)

    def declaration(self) -> dict[str, Any]:
        """What a kernel needs to make its stand-in, as JSON."""
        return {
            "name": self.name,
            "doc": self.description,
            "signature": self.signature,
            "parameters": [
                {
                    "name": p.name,
                    "kind": p.kind,
                    "default": p.default_text,
                    "required": p.required,
                    "annotation": p.annotation_text,
                }
                for p in self.parameters
            ],
            "returns": self.returns,
            "effect": self.effect,
            "runs": self.runs,
            "retries": self.retries,
            "transient": [kind.__name__ for kind in self.transient],
            "timeout": self.timeout,
            "hash": self.hash,
            "version": self.version,
            "module": self.module,
            "is_async": self.is_async,
            "is_generator": self.is_generator,
            "wants_context": self.wants_context,
            "context": self._arguments.context,
        }

    # -- calls -------------------------------------------------------------------------------

    def check(self) -> None:
        """Look up annotations that named what came later. Raises `SkillError`."""
        _ = self._arguments.schema

    def bind(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Arguments by name, as Python binds them. Raises `TypeError` as Python does."""
        return self._arguments.bind(args, kwargs)[0]

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of one call, checked against the annotations, and converted.

        Raises `SkillError` naming the skill, the argument and what was wrong with it.
        """
        return self._arguments.validate(arguments)

    def invoke(self, arguments: Mapping[str, Any], context: SkillContext) -> Any:
        """Call the function with what `validate` gave: a value, an awaitable or a generator."""
        return self._arguments.call(arguments, context)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given, context = self._arguments.bind(args, kwargs)
        arguments = self.validate(given)
        ctx = context or SkillContext.local()
        made = self.invoke(arguments, ctx)
        if self.is_async:
            return finish_async(made, ctx.log)
        return finish(made, ctx.log) if self.is_generator else made

    def __repr__(self) -> str:
        return f"<skill {self.signature}, {self.version}, effect={self.effect!r}>"

    def __reduce__(self) -> Any:
        raise SkillError(
            f"skill {self.name!r} does not travel as an object: it is known by its name in every "
            f"cell; call it from there, or call its function: {self.name}.function"
        )


_SETTINGS = ("approval", "in_doubt", "retries", "transient", "timeout", "undo", "inputs", "outputs")


def _stable(value: Any) -> Any:
    """A setting as JSON that is the same in every process."""
    match value:
        case str() | int() | float() | None:
            return value
        case Mapping():
            return {str(k): _stable(v) for k, v in value.items()}
        case tuple() | list():
            return [_stable(v) for v in value]
        case Skill():
            return value.name
        case _:
            return getattr(value, "__qualname__", None) or text_of(value)


def _source(function: types.FunctionType) -> Any:
    """Its text; where there is none, its code."""
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        return _code(function.__code__)


def _code(code: types.CodeType) -> Any:
    constants = [_code(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return [code.co_code.hex(), constants, code.co_names, code.co_varnames]


# -- the decorator ---------------------------------------------------------------------------


@overload
def skill(function: Callable[..., Any], /) -> Skill: ...


@overload
def skill(
    *,
    name: str | None = None,
    version: str = "0.0.0",
    effect: Effect = "none",
    approval: Literal["never", "always"] | Callable[[Any], str | bool] = "never",
    in_doubt: Literal["ask", "retry"] | Callable[[Any], Any] = "ask",
    retries: int = 0,
    transient: Sequence[type[BaseException]] | type[BaseException] = (),
    timeout: float | None = None,
    runs: Runs = "kernel",
    undo: Skill | str | Callable[..., Any] | None = None,
    inputs: Mapping[str, Any] | None = None,
    outputs: str | Sequence[str] = (),
) -> Callable[[Callable[..., Any]], Skill]: ...


def skill(function: Callable[..., Any] | None = None, /, **settings: Any) -> Any:
    """Make a skill of a function: `@cave.skill`, or `@cave.skill(effect="write", ...)`.

    The docstring tells the operator what it does and when to use it; the annotations say what
    it takes, and are checked before it runs. `effect` is `none`, `read` or `write`, `runs` is
    `kernel` or `host`. Raises `SkillError` for a declaration that cannot be.
    """
    scope = sys._getframe(1).f_locals  # noqa: SLF001 -- as dataclasses do, to see local classes
    if function is not None:
        return _declared(function, settings, scope)
    return lambda made: _declared(made, settings, scope)


def _declared(function: Any, settings: dict[str, Any], scope: Mapping[str, Any]) -> Skill:
    if isinstance(function, Skill):
        raise SkillError(f"{function.where}: {function.name!r} is a skill already")
    if not isinstance(function, types.FunctionType):
        raise SkillError(
            f"@cave.skill cannot make a skill of {function!r}: decorate a function made by `def`"
        )
    name = settings.pop("name", None) or function.__name__
    where = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
    try:
        checked = {key: _checked(key, value) for key, value in settings.items()}
        if not config.bindable(name) or name.startswith("_"):
            raise _Wrong("name", name, "a name that cells can call; give one: name='post_entry'")
    except _Wrong as wrong:
        raise SkillError(f"{where}: skill {name!r}: {wrong}") from None
    local = dict(scope) if "<locals>" in function.__qualname__ else {}
    return Skill(name, function, **checked, scope=local)


class _Wrong(Exception):
    def __init__(self, key: str, value: object, expected: str) -> None:
        super().__init__(f"{key} is {value!r}, not {expected}")


def _checked(key: str, value: Any) -> Any:
    match key:
        case "version":
            if not isinstance(value, str) or not VERSION.fullmatch(value):
                raise _Wrong(key, value, "a semantic version such as '1.2.0'")
        case "effect" | "runs":
            allowed = get_args(Effect if key == "effect" else Runs)
            if value not in allowed:
                raise _Wrong(key, value, f"one of {', '.join(map(repr, allowed))}")
        case "approval" | "in_doubt":
            allowed = ("never", "always") if key == "approval" else ("ask", "retry")
            if value not in allowed and not callable(value):
                raise _Wrong(key, value, f"{' or '.join(map(repr, allowed))} or a function")
        case "retries":
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise _Wrong(key, value, "a number of 0 or more")
        case "timeout":
            try:
                config.check_seconds(key, value)
            except ConfigError:
                raise _Wrong(key, value, "a number of seconds above 0") from None
        case "transient":
            return _errors(value)
        case "undo":
            if value is not None and not isinstance(value, str) and not callable(value):
                raise _Wrong(key, value, "a skill, the name of one, or a function")
        case "inputs":
            if value is not None and not isinstance(value, Mapping):
                raise _Wrong(key, value, "a mapping from parameters to types or sentences")
            return dict(value or {})
        case "outputs":
            return _outputs(value)
        case _:
            raise _Wrong(key, value, f"a setting of a skill; those are {', '.join(_KNOWN)}")
    return value


_KNOWN = ("name", "version", "effect", "runs", *_SETTINGS)


def _errors(value: Any) -> tuple[type[BaseException], ...]:
    kinds = tuple(value) if isinstance(value, tuple | list | set | frozenset) else (value,)
    for kind in kinds:
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise _Wrong("transient", kind, "a class of exceptions such as ConnectionError")
    return kinds


def _outputs(value: Any) -> tuple[str, ...]:
    names = tuple(value) if isinstance(value, tuple | list) else (value,)
    if not all(isinstance(name, str) and name for name in names):
        raise _Wrong("outputs", value, "names, such as ('matched', 'unmatched')")
    return names
