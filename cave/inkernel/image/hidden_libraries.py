"""Hidden state of libraries that are loaded: numpy, pandas, matplotlib, sklearn."""

from __future__ import annotations

import ctypes
import importlib
import sys
from typing import Any

from .hidden_kind import Kind
from .lost import Lost


class NumpyRandom(Kind):
    """The generator behind `numpy.random.rand()`."""

    name = "numpy_random"
    _generator: Any = None
    _address: Any = None
    _raw: Any = None

    def read(self) -> Any:
        module = sys.modules.get("numpy.random.mtrand")
        if module is None:
            return None
        generator = module._rand._bit_generator
        if self._last is not None and self._unchanged(generator):
            return self._last
        self._generator, self._address = generator, None
        state = module._rand.get_state(legacy=False)
        inner = state["state"]
        self._raw = self._words(generator)
        if state.get("bit_generator") != "MT19937":
            return ("other", type(module._rand._bit_generator), state)
        return ("MT19937", inner["key"].tobytes(), int(inner["pos"]), int(state["has_gauss"]),
                float(state["gauss"]))  # fmt: skip

    def _unchanged(self, generator: Any) -> bool:
        """Whether its memory is the same; a normal number kept for the next call is not in it."""
        value = self._last
        return (
            generator is self._generator
            and self._raw is not None
            and not value[3]
            and self._raw == self._words(generator)
        )

    def _words(self, generator: Any) -> bytes | None:
        if type(generator).__name__ != "MT19937":
            return None
        if self._address is None:
            self._address = generator.ctypes.state_address
        return ctypes.string_at(self._address, 625 * 4)

    def apply(self, value: Any) -> None:
        if value is None:
            return
        import numpy as np

        if value[0] == "other":
            np.random.mtrand.set_bit_generator(value[1]())
            np.random.set_state(value[2])
            return
        name, key, *rest = value
        np.random.set_state((name, np.frombuffer(key, "u4"), *rest))


_ERRORS = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}


class NumpyOptions(Kind):
    """How numpy prints, and what it does about division by zero and the like."""

    name = "numpy"
    _start: Any = None

    def read(self) -> Any:
        np = sys.modules.get("numpy")
        if np is None or not hasattr(np, "get_printoptions"):
            return None
        options, errors = np.get_printoptions(), np.geterr()
        usual = self._printed(np)
        changed = {name: value for name, value in options.items() if usual.get(name) != value}
        if not changed and errors == _ERRORS:
            return None
        return changed, errors

    def _printed(self, np: Any) -> dict[str, Any]:
        if self._start is None:
            core = sys.modules.get("numpy._core.printoptions")
            usual = getattr(core, "default_format_options_dict", None)
            self._start = dict(np.get_printoptions() if usual is None else usual)
            if self._start.get("legacy") in (sys.maxsize, None):
                self._start["legacy"] = np.get_printoptions()["legacy"]
        known: dict[str, Any] = self._start
        return known

    def apply(self, value: Any) -> None:
        if value is None and "numpy" not in sys.modules:
            return
        import numpy as np

        changed, errors = value or ({}, _ERRORS)
        usual = self._printed(np)
        now: dict[str, Any] = dict(np.get_printoptions())
        wanted = {**{name: usual.get(name, now[name]) for name in now}, **changed}
        if now != wanted:
            wanted.pop("override_repr", None)
            np.set_printoptions(**wanted)
        np.seterr(**errors)


class PandasOptions(Kind):
    """`pd.set_option`, as what differs from pandas' own."""

    name = "pandas"

    def __init__(self) -> None:
        super().__init__()
        self._seen: Any = None
        self._value: Any = None

    def read(self) -> Any:
        config = sys.modules.get("pandas._config.config")
        if config is None:
            return None
        if config._global_config != self._seen:
            self._seen = _nested(config._global_config)
            now = _flat(self._seen)
            known = config._registered_options
            self._value = {
                name: value
                for name, value in now.items()
                if name in known and not _same(value, known[name].defval)
            }
        return self._value or None

    def apply(self, value: Any) -> None:
        if value is None and "pandas" not in sys.modules:
            return
        import pandas as pd

        for name in [name for name in self.read() or () if name not in (value or {})]:
            pd.reset_option(f"^{name}$".replace(".", r"\."))
        for name, option in (value or {}).items():
            try:
                if not isinstance(option, Lost) and not _same(pd.get_option(name), option):
                    pd.set_option(name, option)
            except (KeyError, ValueError) as exc:
                self.note("lost", name, f"this version of pandas does not take the option: {exc}")

    def forget(self) -> None:
        super().forget()
        self._seen = None


def _nested(options: dict[str, Any]) -> dict[str, Any]:
    return {k: _nested(v) if type(v) is dict else v for k, v in options.items()}


def _flat(nested: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in nested.items():
        if type(value) is dict:
            for below, inner in value.items():
                if type(inner) is dict:
                    found.update({f"{name}.{below}.{k}": v for k, v in inner.items()})
                else:
                    found[f"{name}.{below}"] = inner
        else:
            found[name] = value
    return found


def _same(one: Any, other: Any) -> bool:
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:
        return False


class MatplotlibOptions(Kind):
    """`plt.rcParams` and the backend, as what differs from matplotlib's own."""

    name = "matplotlib"

    def __init__(self) -> None:
        super().__init__()
        self._seen: Any = None
        self._value: Any = None

    def read(self) -> Any:
        library = sys.modules.get("matplotlib")
        if library is None or not hasattr(library, "rcParamsDefault"):
            return None
        if self._seen is None or not dict.__eq__(library.rcParams, self._seen):
            now = self._seen = dict(dict.items(library.rcParams))
            usual = library.rcParamsDefault
            self._value = {
                name: value
                for name, value in now.items()
                if name != "backend_fallback" and not _same(value, dict.get(usual, name))
            }
            self._value.pop("backend", None)
            if isinstance(chosen := now.get("backend"), str):  # kernels begin with another one
                self._value["backend"] = chosen
        return self._value or None

    def apply(self, value: Any) -> None:
        if value is None and "matplotlib" not in sys.modules:
            return
        import matplotlib as mpl

        wanted = dict(value or {})
        backend = wanted.pop("backend", None)
        usual = mpl.rcParamsDefault
        for name in [
            name for name in self.read() or () if name not in wanted and name != "backend"
        ]:
            dict.__setitem__(mpl.rcParams, name, dict.get(usual, name))
        mpl.rcParams.update(
            {name: option for name, option in wanted.items() if not isinstance(option, Lost)}
        )
        if isinstance(backend, str) and dict.get(mpl.rcParams, "backend") != backend:
            try:
                mpl.use(backend)
                _let_figures_stay(backend)
            except Exception as exc:
                self.note("lost", "backend", f"{backend!r} cannot be used here: {exc}")

    def forget(self) -> None:
        super().forget()
        self._seen = None


def _let_figures_stay(backend: str) -> None:
    """Only the backend of notebooks closes figures after each cell."""
    inline = sys.modules.get("matplotlib_inline.backend_inline")
    if inline is None or "inline" in backend:
        return
    from IPython.core.getipython import get_ipython

    shell: Any = get_ipython()
    if shell is not None and inline.flush_figures in shell.events.callbacks["post_execute"]:
        shell.events.unregister("post_execute", inline.flush_figures)


class Accessors(Kind):
    """`df.name` by `register_dataframe_accessor` and the like, made in the session."""

    name = "accessors"
    mutable = True

    def read(self) -> Any:
        pd = sys.modules.get("pandas")
        if pd is None or not hasattr(pd, "DataFrame"):
            return None
        found = tuple(
            (kind.__name__, name, made._accessor)
            for kind in (pd.DataFrame, pd.Series, pd.Index)
            for name in kind._accessors
            if (made := vars(kind).get(name)) is not None and _is_own(made)
        )
        return found or None

    def apply(self, value: Any) -> None:
        if not value:
            return
        import pandas as pd

        for kind, name, accessor in value:
            if isinstance(accessor, Lost):
                continue
            owner: Any = getattr(pd, kind)
            if name in owner._accessors:
                type.__setattr__(owner, name, type(vars(owner)[name])(name, accessor))
            else:
                getattr(pd.api.extensions, f"register_{kind.lower()}_accessor")(name)(accessor)


def _is_own(made: Any) -> bool:
    return getattr(getattr(made, "_accessor", None), "__module__", "") == "__main__"


class Dtypes(Kind):
    """Classes of the session that pandas knows as the dtype of their name."""

    name = "dtypes"
    mutable = True

    def read(self) -> Any:
        base = sys.modules.get("pandas.core.dtypes.base")
        known = getattr(getattr(base, "_registry", None), "dtypes", ())
        return tuple(kind for kind in known if kind.__module__ == "__main__") or None

    def apply(self, value: Any) -> None:
        if not value and "pandas.core.dtypes.base" not in sys.modules:
            return
        known = importlib.import_module("pandas.core.dtypes.base")._registry.dtypes
        kept = [kind for kind in known if kind.__module__ != "__main__"]
        known[:] = kept + [kind for kind in value or () if not isinstance(kind, Lost)]


class SklearnOptions(Kind):
    """`sklearn.set_config`, as what differs from its own."""

    name = "sklearn"

    def read(self) -> Any:
        config = sys.modules.get("sklearn._config")
        if config is None or not hasattr(config, "get_config"):
            return None
        usual = config._global_config
        return {
            name: value for name, value in config.get_config().items() if usual.get(name) != value
        } or None

    def apply(self, value: Any) -> None:
        config: Any = sys.modules.get("sklearn._config")
        if config is None and value:
            config = importlib.import_module("sklearn._config")
        if config is not None:
            config.set_config(**{**config._global_config, **(value or {})})


class Figures(Kind):
    """Figures of pyplot under their numbers, and the current one."""

    name = "figures"
    mutable = True

    def read(self) -> Any:
        helpers = sys.modules.get("matplotlib._pylab_helpers")
        figs = helpers.Gcf.figs if helpers is not None else None
        if not figs:
            return None
        return tuple((number, manager.canvas.figure) for number, manager in figs.items())

    def apply(self, value: Any) -> None:
        if not value and "matplotlib._pylab_helpers" not in sys.modules:
            return
        import matplotlib._pylab_helpers as helpers

        managers = {id(m.canvas.figure): m for m in helpers.Gcf.figs.values()}
        figures = [(number, fig) for number, fig in value or () if not isinstance(fig, Lost)]
        wanted = {id(fig) for _, fig in figures}
        for key, manager in managers.items():
            if key not in wanted:
                helpers.Gcf.destroy(manager)
        helpers.Gcf.figs.clear()
        for number, fig in figures:  # the current one is the last
            manager = managers.get(id(fig)) or _manager(number, fig)
            manager.num = number
            fig.number = number
            helpers.Gcf.figs[number] = manager


def _manager(number: int, figure: Any) -> Any:
    import matplotlib.pyplot as plt

    return plt._get_backend_mod().new_figure_manager_given_figure(number, figure)


KINDS: list[Kind] = [
    NumpyRandom(), NumpyOptions(), PandasOptions(), MatplotlibOptions(), Figures(),
    Accessors(), Dtypes(), SklearnOptions(),
]  # fmt: skip
