"""Facts of models, figures and other objects of libraries, read from their attributes.

Estimators and modules are often of classes that the session made: of those only the dict of
the instance is read, never a property, a `repr` or a method.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from . import describe, kinds

Told = tuple[list[int] | None, str]
NAMED = 8
"""Parts of one object that are named."""


def facts(obj: Any, base: type, *, exact: bool) -> Told | None:
    """Shape and summary; None of what is not known."""
    name = f"{kinds.library(base)}.{kinds.name(base)}"
    if (rule := _BY_DICT.get(name)) is not None:
        return rule(obj)
    if not exact and kinds.module(type(obj)) == "__main__":
        return None
    rule = _BY_API.get(name)
    return None if rule is None else rule(obj)


def _space(obj: Any) -> dict[str, Any]:
    return kinds.attributes(obj) or {}


# -- models ----------------------------------------------------------------------------------


def _estimator(obj: Any) -> Told:
    """Parameters that were set, what it was fitted on."""
    space = _space(obj)
    given = {n: v for n, v in space.items() if type(n) is str and n[-1:] != "_" and n[:1] != "_"}
    steps = space.get("steps", space.get("transformers"))
    if type(steps) is list:
        given = {n: v for n, v in given.items() if n not in ("steps", "transformers")}
    defaults = _defaults(type(obj))
    set_ = [f"{n}={describe.member(n, v)}" for n, v in given.items()
            if not (n in defaults and _same(v, defaults[n]))]  # fmt: skip
    parts = [", ".join(set_[:NAMED]) + (", ..." if len(set_) > NAMED else "")] if set_ else []
    if type(steps) is list:
        parts.insert(0, " -> ".join(_step(step) for step in steps[:NAMED]))
    parts.append(_fitted(space, steps))
    return None, "; ".join(parts)


def _step(step: Any) -> str:
    if type(step) is not tuple or len(step) < 2:
        return describe.brief(step)
    return f"{describe.brief(step[0])[1:-1]} {kinds.name(type(step[1]))}"


def _fitted(space: dict[str, Any], steps: Any) -> str:
    learned = [n for n in space if type(n) is str and n[-1:] == "_" and n[:1] != "_"]
    if not learned and type(steps) is list and steps and type(steps[0]) is tuple:
        inner = _space(steps[0][1]) if len(steps[0]) > 1 else {}
        learned = [n for n in inner if type(n) is str and n[-1:] == "_" and n[:1] != "_"]
        space = inner
    if not learned:
        return "not fitted"
    told = ["fitted"]
    if type(count := space.get("n_features_in_")) is int:
        told.append(f"on {count} features")
    names: Any = space.get("feature_names_in_")
    if kinds.name(type(names)) == "ndarray" and len(names) <= NAMED:
        told.append(f"({', '.join(str(n) for n in names.tolist() if type(n) is str)})")
    classes: Any = space.get("classes_")
    if kinds.name(type(classes)) == "ndarray" and classes.ndim == 1:
        shown = ", ".join(describe.brief(c) for c in classes[:NAMED].tolist())
        told.append(f"classes {shown}")
    return " ".join(told)


def _defaults(kind: type) -> dict[str, Any]:
    init = kinds.find(kind, "__init__")
    code, only = getattr(init, "__code__", None), getattr(init, "__kwdefaults__", None)
    if code is None:
        return {}
    values = init.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    return dict(zip(names, values, strict=True)) | dict(only or {})


def _same(value: Any, default: Any) -> bool:
    plain = (type(None), bool, int, float, str)
    return value is default or (
        type(value) is type(default) and type(value) in plain and value == default
    )


def _module(obj: Any) -> Told:
    """Layers and parameters of a torch module, from its own dicts."""
    count, layers, trained = _parameters(obj, 0), _space(obj).get("_modules"), "train"
    if _space(obj).get("training") is False:
        trained = "eval"
    names = [f"{name} {kinds.name(type(layer))}" for name, layer in islice(layers.items(), NAMED)
             ] if type(layers) is dict else []  # fmt: skip
    more = ", ..." if type(layers) is dict and len(layers) > NAMED else ""
    return None, f"{count:,} parameters, {trained} mode" + (
        f"; {', '.join(names)}{more}" if names else ""
    )


def _parameters(obj: Any, depth: int) -> int:
    space = _space(obj)
    own = space.get("_parameters")
    total = sum(p.numel() for p in own.values() if p is not None) if type(own) is dict else 0
    layers = space.get("_modules")
    if depth < 20 and type(layers) is dict:
        total += sum(_parameters(layer, depth + 1) for layer in islice(layers.values(), 1000))
    return total


def _tensor(obj: Any) -> Told:
    shape = [int(n) for n in obj.shape]
    told = f"{'x'.join(map(str, shape)) or 'scalar'} {str(obj.dtype).removeprefix('torch.')}"
    told += f" on {obj.device}" + (", requires grad" if obj.requires_grad else "")
    if obj.device.type == "cpu" and str(obj.layout) == "torch.strided":
        head = obj.detach().reshape(-1)[:5].tolist() if obj.is_contiguous() else []
        told += f": {', '.join(map(describe.brief, head))}" if head else ""
    return shape, told


def _sparse(obj: Any) -> Told:
    shape = [int(n) for n in obj.shape]
    cells = 1
    for n in shape:
        cells *= n
    filled = f", {100 * obj.nnz / cells:.2g}% filled" if cells else ""
    return (
        shape,
        f"{'x'.join(map(str, shape))} {obj.format} {obj.dtype}, {obj.nnz:,} stored{filled}",
    )


def _dataset(obj: Any) -> Told:
    """Of an xarray object: sizes, coordinates and variables; nothing lazy is loaded."""
    sizes = ", ".join(f"{name} {n:,}" for name, n in obj.sizes.items())
    coords = ", ".join(map(str, islice(obj.coords, NAMED)))
    if hasattr(obj, "data_vars"):
        held = (
            f"{n} {v.dtype}({', '.join(v.dims)})" for n, v in islice(obj.data_vars.items(), NAMED)
        )
        what = f"variables {', '.join(held)}"
    else:
        what = str(obj.dtype)
    return [int(n) for n in obj.sizes.values()], f"({sizes}) {what}; coords {coords}"


# -- pictures --------------------------------------------------------------------------------


def _figure(obj: Any) -> Told:
    """Axes with their titles and series, from what was drawn; nothing is rendered."""
    axes = list(islice(obj.axes, 5))
    told = [_axes(one)[1] for one in axes]
    title = getattr(obj, "_suptitle", None)
    head = f"{len(obj.axes)} axes" + (f" titled {title.get_text()!r}" if title is not None else "")
    return None, "; ".join([head, *filter(None, told)])


def _axes(obj: Any) -> Told:
    parts = [repr(title)] if (title := obj.get_title()) else []
    labels = [label for label in (obj.get_xlabel(), obj.get_ylabel()) if label]
    if labels:
        parts.append(" / ".join(labels))
    drawn = (("line", obj.lines), ("bar or patch", obj.patches), ("image", obj.images),
             ("collection", obj.collections))  # fmt: skip
    for what, artists in drawn:
        if count := len(artists):
            names = [str(a.get_label()) for a in islice(artists, NAMED)]
            named = [describe.clip(n, 30) for n in names if n and n[:1] != "_"]
            parts.append(f"{count} {what}{'s' * (count != 1)}" + (
                f" ({', '.join(named)})" if named else ""))  # fmt: skip
    return None, ", ".join(parts)


def _chart(obj: Any) -> Told:
    """Mark and encodings of an altair chart, as they were given; its data is not read."""
    given = _space(obj).get("_kwds")
    if type(given) is not dict:
        return None, ""
    parts = []
    mark = given.get("mark")
    mark = (_space(mark).get("_kwds") or {}).get("type") if type(mark) is not str else mark
    if type(mark) is str:
        parts.append(f"mark {mark}")
    channels = _space(given.get("encoding")).get("_kwds") or {}
    for name, channel in islice(channels.items(), 100):
        inner = _space(channel).get("_kwds") or {}
        field = inner.get("shorthand")
        if type(field) is str:
            parts.append(f"{name} {describe.clip(field, 40)}")
    if type(title := given.get("title")) is str:
        parts.append(f"titled {describe.clip(title, 60)!r}")
    parts += [
        f"{kind} of {len(inner)}"
        for kind in ("layer", "hconcat", "vconcat", "concat")
        if type(inner := given.get(kind)) is list
    ]
    return None, ", ".join(parts)


def _image(obj: Any) -> Told:
    """Size and mode of a picture; its pixels are not loaded."""
    space = _space(obj)
    size = space.get("_size", (0, 0))
    told = f"{size[0]}x{size[1]} {space.get('_mode', '')}".rstrip()
    form = kinds.find(type(obj), "format")
    return [int(size[1]), int(size[0])], told + (f" from {form}" if type(form) is str else "")


def _plotly(obj: Any) -> Told:
    """Traces of a plotly figure by type and name."""
    data = _space(obj).get("_data")
    traces = data if type(data) is list else []
    names = [f"{t.get('type', 'trace')} {t.get('name', '')}".rstrip()
             for t in islice(traces, NAMED) if type(t) is dict]  # fmt: skip
    return None, f"{len(traces)} traces: {', '.join(names)}"


Rule = Callable[[Any], Told]
_BY_DICT: dict[str, Rule] = {
    "sklearn.BaseEstimator": _estimator,
    "torch.Module": _module,
    "altair.TopLevelMixin": _chart,
    "PIL.Image": _image,
    "plotly.BaseFigure": _plotly,
}
"""Rules that read dicts of instances alone, so that they hold for any class that derives."""
_BY_API: dict[str, Rule] = {
    "torch.Tensor": _tensor,
    "scipy._spbase": _sparse,
    "scipy.spmatrix": _sparse,
    "xarray.Dataset": _dataset,
    "xarray.DataArray": _dataset,
    "matplotlib.Figure": _figure,
    "matplotlib._AxesBase": _axes,
}
