"""The namespace as one file that plain dill opens, and from one."""

from __future__ import annotations

import io
import types
import warnings
from collections.abc import Mapping
from typing import Any

from .frozen import MODULE


def fit(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Those that go into such a file: neither private names nor modules."""
    return {
        name: value
        for name, value in variables.items()
        if name[:1] != "_" and type(value) is not types.ModuleType
    }


def dump(variables: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    """A dill pickle of a dict of variables, and what had to be left out, with the reason.

    What variables share is shared in the file; those that dill refuses are left out.
    """
    left_out: dict[str, str] = {}
    try:
        return _dumped(dict(variables)), left_out
    except Exception as exc:
        if not variables:
            raise
        why = exc
    fit = {}
    for name, value in variables.items():
        try:
            _dumped(value)
        except Exception as exc:
            left_out[name] = f"{type(exc).__name__}: {str(exc)[:200]}"
        else:
            fit[name] = value
    if not left_out:
        raise why
    return _dumped(fit), left_out


def _dumped(value: Any) -> bytes:
    import dill

    file = io.BytesIO()
    with warnings.catch_warnings():  # dill warns of what nobody will be able to load
        warnings.simplefilter("error", dill.PicklingWarning)
        dill.Pickler(file, protocol=5, recurse=False).dump(value)
    data = file.getvalue()
    if MODULE.encode() in data:
        raise TypeError("it holds something that did not come back with a snapshot")
    return data


def load(data: Any) -> dict[str, Any]:
    """The variables of such a file. Raises `ValueError` when it is no dict of names."""
    import dill

    found = dill.loads(bytes(data))
    if not isinstance(found, dict) or not all(type(name) is str for name in found):
        raise ValueError(f"the file holds a {type(found).__name__}, not a dict of variables")
    return {name: value for name, value in found.items() if name.isidentifier()}
