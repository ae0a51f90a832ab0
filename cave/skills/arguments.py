"""The arguments of a skill: its parameters, their JSON schema, and the check of a call."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import reprlib
import typing
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cave.errors import SkillError
from cave.skills.annotations import Later, Place, text_of
from cave.skills.context import SkillContext

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails, SchemaValidator

VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a skill, as the operator sees it."""

    name: str
    kind: str
    """As `inspect.Parameter` calls it: `POSITIONAL_OR_KEYWORD`, `VAR_POSITIONAL`, ..."""
    required: bool
    default_text: str | None
    annotation_text: str
    note: str = ""
    """What `inputs=` says of it."""

    def __str__(self) -> str:
        stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(self.kind, "")
        declared = f": {self.annotation_text}" if self.annotation_text else ""
        if self.default_text is None:
            return f"{stars}{self.name}{declared}"
        return f"{self.name}{declared}{' = ' if declared else '='}{self.default_text}"


@dataclass
class Arguments:
    """What a function takes besides its context, and the check of what it is given."""

    place: Place
    signature: inspect.Signature
    inputs: Mapping[str, Any]
    context: str | None = field(init=False)
    """The parameter that gets the `SkillContext`."""
    hints: dict[str, Any] = field(init=False, default_factory=dict)
    """The types of the parameters, once they are known."""
    _checked: tuple[SchemaValidator, dict[str, Any]] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.context = self._context()
        self._check_inputs()

    @property
    def taken(self) -> list[inspect.Parameter]:
        """The function's parameters without the context."""
        return [p for p in self.signature.parameters.values() if p.name != self.context]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """As the operator sees them."""
        return tuple(self._parameter(p) for p in self.taken)

    @property
    def text(self) -> str:
        """`(entry: Entry, *, dry: bool = False)`."""
        parts: list[str] = []
        kinds = [p.kind for p in self.taken]
        for at, parameter in enumerate(self.parameters):
            if kinds[at] is inspect.Parameter.KEYWORD_ONLY and not any(
                k in {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.KEYWORD_ONLY}
                for k in kinds[:at]
            ):
                parts.append("*")
            parts.append(str(parameter))
            last = at + 1 == len(kinds) or kinds[at + 1] is not kinds[at]
            if kinds[at] is inspect.Parameter.POSITIONAL_ONLY and last:
                parts.append("/")
        return f"({', '.join(parts)})"

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of the arguments, by name. Raises `SkillError`."""
        return self._ready()[1]

    def early(self) -> None:
        """Check the annotations now, unless one names what comes later in its file.

        Raises `SkillError`.
        """
        with contextlib.suppress(Later):
            self._checked = self._build()
            self.place = replace(self.place, scope={})  # or it would keep a whole frame alive

    def validate(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of one call, converted where that is safe. Raises `SkillError`."""
        from pydantic import ValidationError

        validator = self._ready()[0]
        try:
            accepted: dict[str, Any] = validator.validate_python(dict(given))
        except ValidationError as error:
            raise self._refusal(error.errors(include_url=False)) from error
        return accepted

    def bind(
        self, positional: Iterable[Any], named: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Any]:
        """Arguments by name, as Python binds them, and the context if one was given.

        Raises `TypeError` as Python does.
        """
        rest = dict(named)
        context = rest.pop(self.context, None) if self.context else None
        visible = self.signature.replace(parameters=self.taken)
        return dict(visible.bind(*positional, **rest).arguments), context

    def call(self, arguments: Mapping[str, Any], context: SkillContext) -> Any:
        """Call the function with arguments by name."""
        given = dict(arguments)
        if self.context:
            given[self.context] = context
        ordered = {name: given[name] for name in self.signature.parameters if name in given}
        bound = inspect.BoundArguments(self.signature, ordered)
        return self.place.function(*bound.args, **bound.kwargs)

    # -- declaration -------------------------------------------------------------------------

    def _declared(self, p: inspect.Parameter) -> Any:
        given = self.inputs.get(p.name)
        return p.annotation if given is None or isinstance(given, str) else given

    def _context(self) -> str | None:
        for parameter in self.signature.parameters.values():
            bare = parameter.annotation is inspect.Parameter.empty
            if parameter.name == "ctx" and bare:
                return parameter.name
            if not bare and self._is_context(parameter):
                if parameter.kind in {*VARIADIC, inspect.Parameter.POSITIONAL_ONLY}:
                    raise self.place.fault(
                        parameter.name, "the context is given by name", "declare it as `ctx: ...`"
                    )
                return parameter.name
        return None

    def _is_context(self, parameter: inspect.Parameter) -> bool:
        if "SkillContext" not in text_of(parameter.annotation):
            return False
        try:
            found = self.place.resolve(parameter.name, parameter.annotation)
        except (SkillError, Later):
            return text_of(parameter.annotation).split(".")[-1] == "SkillContext"
        return SkillContext in {found, *typing.get_args(found)}

    def _check_inputs(self) -> None:
        names = [p.name for p in self.taken]
        for name in self.inputs:
            if name not in names:
                raise self.place.fault(
                    name, "inputs= names it, and the function has none", _nearest(name, names)
                )

    def _parameter(self, p: inspect.Parameter) -> Parameter:
        given, declared = self.inputs.get(p.name), self._declared(p)
        default = None if p.default is inspect.Parameter.empty else _short(p.default)
        required = p.default is inspect.Parameter.empty and p.kind not in VARIADIC
        note = given if isinstance(given, str) else ""
        return Parameter(p.name, p.kind.name, required, default, text_of(declared), note)

    def _ready(self) -> tuple[SchemaValidator, dict[str, Any]]:
        if self._checked is None:
            try:
                self._checked = self._build()
            except Later as later:
                raise SkillError(
                    f"{self.place.where}: skill {self.place.skill!r}: the annotations name "
                    f"{str(later)!r}, which has no value at run time; define it, or import it "
                    f"outside of `if TYPE_CHECKING`"
                ) from later
        return self._checked

    def _build(self) -> tuple[SchemaValidator, dict[str, Any]]:
        self.hints = {p.name: self.place.resolve(p.name, self._declared(p)) for p in self.taken}
        fields = {p.name: _field(p, self.hints[p.name]) for p in self.taken}
        try:
            return _compiled(fields)
        except Exception as error:
            for name, declared in fields.items():
                self._blame(name, declared)
            raise SkillError(
                f"{self.place.where}: skill {self.place.skill!r}: its arguments cannot be "
                f"checked: {error}"
            ) from error

    def _blame(self, name: str, declared: Any) -> None:
        try:
            _compiled({name: declared})
        except Exception as error:
            given = next(p.annotation_text for p in self.parameters if p.name == name)
            reason = (str(error) or type(error).__name__).splitlines()[0]
            reason = reason.partition(" (it may")[0]
            raise self.place.fault(
                name,
                f"the annotation {given} cannot be checked ({reason})",
                "write a type there, such as `int`, `pd.DataFrame` or a dataclass",
            ) from error

    # -- refusals ----------------------------------------------------------------------------

    def _refusal(self, faults: list[ErrorDetails]) -> SkillError:
        told = [self._told(fault) for fault in faults[:5]]
        if len(faults) > 5:
            told.append(f"and {len(faults) - 5} more")
        name = self.place.skill
        return SkillError(
            f"skill {name!r} was not called: {'; '.join(told)}; it takes {name}{self.text}"
        )

    def _told(self, fault: ErrorDetails) -> str:
        head, *_ = fault["loc"] or ("",)
        path = _dotted(fault["loc"])
        match fault["type"]:
            case "missing":
                return f"argument {path!r} is missing"
            case "extra_forbidden" if len(fault["loc"]) == 1:
                names = [p.name for p in self.taken]
                return f"there is no argument {path!r}, {_nearest(str(head), names)}"
        message = fault["msg"].removeprefix("Value error, ")
        value = fault["input"]
        told = f"argument {path!r} is {_short(value)}, a {type(value).__name__}: {message}"
        if fault["type"] in {"int_type", "float_type"} and isinstance(value, str):
            told += ", without quotes"
        return told


def _field(p: inspect.Parameter, kind: Any) -> Any:
    """A parameter as a field of the arguments."""
    from typing import NotRequired

    from typing_extensions import Unpack

    if p.kind is inspect.Parameter.VAR_POSITIONAL:
        return NotRequired[tuple[kind, ...]]
    if p.kind is inspect.Parameter.VAR_KEYWORD:
        unpacked = typing.get_origin(kind) in {Unpack, typing.Unpack}
        named = typing.get_args(kind)[0] if unpacked else dict[str, kind]
        return NotRequired[named]
    if p.default is None:
        return NotRequired[typing.Optional[kind]]  # noqa: UP045 -- a type made at run time
    return kind if p.default is inspect.Parameter.empty else NotRequired[kind]


class _Schema:
    """JSON schemas also of kinds that JSON has no word for: they are described by name."""

    @staticmethod
    def of(adapter: Any) -> dict[str, Any]:
        from pydantic.json_schema import GenerateJsonSchema

        class Described(GenerateJsonSchema):
            def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> Any:
                kind = schema.get("cls")
                name = getattr(kind, "__qualname__", None) or schema.get("type", "object")
                return {"description": f"a Python object: {name}"}

        made: dict[str, Any] = adapter.json_schema(schema_generator=Described)
        return made


def _compiled(fields: Mapping[str, Any]) -> tuple[SchemaValidator, dict[str, Any]]:
    from pydantic import ConfigDict, TypeAdapter
    from pydantic.json_schema import PydanticJsonSchemaWarning
    from pydantic.warnings import ArbitraryTypeWarning
    from pydantic_core import SchemaValidator
    from typing_extensions import TypedDict

    from cave.inkernel.strictness import strict

    shape = TypedDict("Arguments", dict(fields))  # type: ignore[misc]  # noqa: UP013 -- made at run time
    shape.__pydantic_config__ = ConfigDict(  # type: ignore[attr-defined]
        arbitrary_types_allowed=True, extra="forbid"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", ArbitraryTypeWarning)
        warnings.simplefilter("ignore", PydanticJsonSchemaWarning)
        adapter = TypeAdapter(shape)
        validator = SchemaValidator(strict(adapter.core_schema))
        schema = _Schema.of(adapter)
    schema.pop("title", None)
    return validator, schema


def _dotted(location: tuple[int | str, ...]) -> str:
    """`entry.amount`, `rows[2].day`."""
    path = "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in location)
    return path.removeprefix(".")


def _nearest(name: str, names: list[str]) -> str:
    if near := difflib.get_close_matches(name, names, n=1):
        return f"did you mean {near[0]!r}?"
    return f"there are {', '.join(map(repr, names)) or 'none'}"


class _Short(reprlib.Repr):
    def repr_instance(self, x: Any, level: int) -> str:
        shape = getattr(x, "shape", None)
        if (
            isinstance(shape, tuple)
            and type(x).__module__.partition(".")[0] != "builtins"
            and shape
        ):
            return f"<{type(x).__name__} {'x'.join(map(str, shape))}>"
        return super().repr_instance(x, level)


def _short(value: object) -> str:
    """A repr of a few words; of tables and arrays their shape."""
    shorter = _Short()
    shorter.maxother = shorter.maxstring = 60
    try:
        return shorter.repr(value)
    except Exception:  # noqa: BLE001 -- a repr of somebody else's
        return f"<{type(value).__name__}>"
