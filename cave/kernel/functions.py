"""Functions of skills on their way into a kernel, by value.

What they use of their modules goes as `byvalue` has it (`Skill.carried` prepares them). A
skill that another one calls is met there as the stand-in of its name.
"""

from __future__ import annotations

import json
import pickle
import platform
from collections.abc import Callable, Mapping
from typing import Any

from cave.errors import SkillError
from cave.inkernel import byvalue
from cave.kernel.values import Parcel
from cave.ports import KernelFacts

_SKILL = ("cave.skills.declared", "Skill")
_CONTEXT = ("cave.skills.context", "SkillContext")


def pack(functions: Mapping[str, Callable[..., Any]], *, peer: KernelFacts) -> Parcel:
    """The functions, by the names of their skills. Raises `SkillError` naming the skill."""
    here = platform.python_version()
    if functions and peer.python.split(".")[:2] != here.split(".")[:2]:
        raise SkillError(
            f"skill {next(iter(functions))!r} cannot run in the kernel: that is Python "
            f"{peer.python}, and this is Python {here}; declare it with runs='host', or open "
            f"the session with a python= of this version"
        )
    file = byvalue.Sink()
    outside: list[pickle.PickleBuffer] = []
    pickler = _Pickler(file, outside)
    for name, function in functions.items():
        try:
            pickler.dump(function)
        except Exception as error:
            reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
            raise SkillError(
                f"skill {name!r} cannot go into the kernel: {reason}; make what it uses inside of "
                f"the function, or declare it with runs='host'"
            ) from error
    buffers = [memoryview(file), *(buffer.raw() for buffer in outside)]
    return Parcel("pickle", json.dumps(list(functions)).encode(), buffers)


class _Pickler(byvalue.Pickler):
    """Knows what of skills has a twin in kernels."""

    def reducer_override(self, obj: Any) -> Any:
        """Skills by their names, all else as `byvalue` does."""
        kind = type(obj)
        if (kind.__module__, kind.__name__) == _SKILL:
            return byvalue.make_stand_in, (obj.name, obj.module)
        if isinstance(obj, type) and (obj.__module__, obj.__name__) == _CONTEXT:
            return byvalue.make_context, ()
        return super().reducer_override(obj)
