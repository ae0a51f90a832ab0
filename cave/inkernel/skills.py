"""Skills as cells see them: stand-ins under the skills' names, which are no variables.

A stand-in stands for a name: it calls what the session has under it now, so a cell that
holds one calls the new skill once it is redefined, and a snapshot keeps the name alone.
"""

from __future__ import annotations

import ast
import inspect
import json
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import invoke
from .errors import SkillError
from .invoke import Skill

if TYPE_CHECKING:
    from .kernel import Kernel


_BY_POSITION = {
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
}


class _Text:
    """A default or an annotation as its author wrote it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class Usable:
    """What cells call: a name with the signature of a skill."""

    _skill: Skill | None = None
    _plain = -1
    """How many parameters it has, if each may be given by its position; else -1."""

    def stand_for(self, skill: Skill) -> None:
        """Stand for this skill from the next call on."""
        self._skill = skill
        self.__name__ = self.__qualname__ = skill.name
        self.__doc__ = str(skill.declaration.get("doc", ""))
        self.__signature__ = signature_of(skill.declaration)
        kinds = [parameter.kind for parameter in self.__signature__.parameters.values()]
        self._plain = len(kinds) if _BY_POSITION.issuperset(kinds) else -1

    def present(self) -> tuple[Kernel, Skill]:
        """The kernel and the skill. Raises `SkillError` when the session has none."""
        raise NotImplementedError

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        kernel, skill, work = self._begin(args, kwargs)
        return (invoke.use_async if skill.is_async else invoke.use)(kernel, skill, work)

    def aio(self, /, *args: Any, **kwargs: Any) -> Any:
        """The same call, to be awaited."""
        return invoke.use_async(*self._begin(args, kwargs))

    def _begin(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Kernel, Skill, invoke.Steps]:
        kernel, skill = self.present()
        if not kwargs and len(args) == self._plain:  # as `bind` does it, in a tenth of the time
            arguments = dict(zip(self.__signature__.parameters, args, strict=True))
        else:
            arguments = bound(skill.name, self.__signature__, args, kwargs)
        return kernel, skill, invoke.steps(kernel, skill, arguments)

    def __repr__(self) -> str:
        if self._skill is None:
            return f"<skill {self.__name__}, which the session does not have now>"
        kind = "async skill" if self._skill.is_async else "skill"
        return f"<{kind} {self._skill.declaration.get('signature', self.__name__)}>"


class SkillStandIn(Usable):
    """What stands in cells for the session's skill of a name, whichever that is."""

    def __init__(self, kernel: Kernel | None, name: str, module: str) -> None:
        self._kernel = kernel
        self._module = module
        self.__name__ = self.__qualname__ = name

    def become(self, skill: Skill | None) -> None:
        """Stand for this skill from the next call on; None: the session has none."""
        if skill is None:
            self._skill = None
            return
        self._module = str(skill.declaration.get("module", ""))
        self.stand_for(skill)

    @property
    def stands(self) -> bool:
        """Whether the session has a skill of that name now."""
        return self._skill is not None

    def present(self) -> tuple[Kernel, Skill]:
        """The kernel and the skill. Raises `SkillError` when the session has none."""
        kernel, skill = self._kernel, self._skill
        if skill is None or kernel is None:
            raise SkillError(
                f"the session has no skill {self.__name__!r} now; it came from the module "
                f"{self._module!r}: open the session with it again, as skills=[...]"
            )
        return kernel, skill

    def __reduce__(self) -> Any:
        from .image.recipes_skills import skill_by_name

        return skill_by_name, (self.__name__, self._module)


def bound(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Arguments by name. Raises `TypeError`, as Python does."""
    try:
        return dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as exc:
        raise TypeError(f"{name}() {exc}") from None


def signature_of(declaration: Mapping[str, Any]) -> inspect.Signature:
    """The signature that a declaration tells of."""
    parameters = []
    for told in declaration.get("parameters", ()):
        kind = inspect._ParameterKind[told["kind"]]
        default: Any = inspect.Parameter.empty
        annotation = told.get("annotation")
        if not told["required"] and not kind.name.startswith("VAR_"):
            default = _Text(told.get("default") or "None")
        parameters.append(
            inspect.Parameter(
                told["name"],
                kind,
                default=default,
                annotation=_Text(annotation) if annotation else inspect.Parameter.empty,
            )
        )
    returns = _returns(str(declaration.get("signature", "")))
    return inspect.Signature(
        parameters, return_annotation=_Text(returns) if returns else inspect.Signature.empty
    )


def _returns(signature: str) -> str:
    try:
        (made,) = ast.parse(f"def {signature}: pass").body
    except (SyntaxError, ValueError):
        return ""
    returns = getattr(made, "returns", None)
    return "" if returns is None else ast.unparse(returns)


class Skills:
    """The skills of one session, in its kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._stand_ins: dict[str, SkillStandIn] = {}
        self._defined: set[str] = set()
        self._lock = threading.Lock()

    def define(
        self, declarations: Sequence[Mapping[str, Any]], session: str, parts: Sequence[Any]
    ) -> None:
        """Have exactly these skills. Those that run here come in `parts`, as functions."""
        functions = self._functions(parts)
        found = {
            str(told["name"]): Skill(told, functions.get(told["name"]), session)
            for told in declarations
        }
        for name in self._defined - found.keys():
            self._stand_ins[name].become(None)
            self._unbind(name)
        for name, skill in found.items():
            self.stand_in(name, "").become(skill)
            self._bind(name)
        self._defined = set(found)

    def stand_in(self, name: str, module: str) -> SkillStandIn:
        """The one that stands for this name."""
        with self._lock:
            if name not in self._stand_ins:
                self._stand_ins[name] = SkillStandIn(self._kernel, name, module)
            return self._stand_ins[name]

    def _functions(self, parts: Sequence[Any]) -> dict[str, Any]:
        if not parts:
            return {}
        from . import byvalue
        from .image import recipes_skills  # noqa: F401  functions may hold stand-ins

        names, data, *buffers = parts
        home = byvalue.Home(self._kernel.shell.user_ns)
        unpickler = byvalue.Unpickler(data, buffers, home)
        found = {name: self._function(name, unpickler) for name in json.loads(bytes(names))}
        for name, needed in home.needs.items():
            if name not in home.namespace:
                home.namespace[name] = self._kernel.shell.user_ns_hidden[name] = needed
        return found

    def _function(self, name: str, unpickler: Any) -> Any:
        try:
            return unpickler.load()
        except Exception as exc:
            raise SkillError(f"{name!r}: {type(exc).__name__}: {exc}") from exc

    def _bind(self, name: str) -> None:
        """Under its name, unless the user has a variable of that name."""
        space, ours = self._kernel.shell.user_ns, self._kernel.shell.user_ns_hidden
        stand_in = self._stand_ins[name]
        if name in space and space[name] is not stand_in and space[name] is not ours.get(name):
            return
        space[name] = ours[name] = stand_in

    def _unbind(self, name: str) -> None:
        for space in (self._kernel.shell.user_ns, self._kernel.shell.user_ns_hidden):
            if space.get(name) is self._stand_ins[name]:
                del space[name]


def of(kernel: Kernel) -> Skills:
    """The kernel's skills; made at the first."""
    if kernel.skills is None:
        kernel.skills = Skills(kernel)
        _ = kernel.calls  # it listens from now on
    found: Skills = kernel.skills
    return found
