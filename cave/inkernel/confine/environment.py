"""The environment of a kernel: what is known to be harmless and what the policy names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

_KEPT = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TZDIR", "TERM",
    "COLUMNS", "LINES", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "VIRTUAL_ENV", "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "PYTHONHASHSEED",
    "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONWARNINGS", "PYTHONUNBUFFERED",
    "PYTHONDONTWRITEBYTECODE", "PYTHONFAULTHANDLER", "PYTHONMALLOC", "PYTHONNOUSERSITE",
    "MPLBACKEND", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "JAVA_HOME", "R_HOME", "PROJ_LIB",
    "PROJ_DATA", "GDAL_DATA", "SOURCE_DATE_EPOCH", "MALLOC_ARENA_MAX",
})  # fmt: skip
_FAMILIES = ("LC_", "OMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "POLARS_", "ARROW_", "NUMBA_", "KMP_")
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")
_PRIVATE = {
    "TMPDIR": "tmp", "XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config",
    "XDG_DATA_HOME": "data", "XDG_STATE_HOME": "state", "IPYTHONDIR": "config/ipython",
    "MPLCONFIGDIR": "cache/matplotlib", "NUMBA_CACHE_DIR": "cache/numba",
    "JUPYTER_CONFIG_DIR": "config/jupyter", "JUPYTER_DATA_DIR": "data/jupyter",
    "JUPYTER_RUNTIME_DIR": "tmp/jupyter", "HF_HOME": "cache/huggingface",
    "TORCH_HOME": "cache/torch", "KERAS_HOME": "cache/keras", "NLTK_DATA": "data/nltk",
    "SCIKIT_LEARN_DATA": "data/scikit-learn", "SEABORN_DATA": "data/seaborn",
    "PYTHON_HISTORY": "state/python_history", "SQLITE_HISTORY": "state/sqlite_history",
}  # fmt: skip
"""Where libraries put what is not the user's work, below the kernel's own folder."""


def scrubbed(
    environ: Mapping[str, str], *, allowed: Iterable[str] = (), own: str
) -> dict[str, str]:
    """What a kernel sees of `environ`: the harmless, the `allowed` by name, and its folder `own`
    for temporary files, caches and settings of libraries."""
    named = frozenset(allowed)
    kept = {name: value for name, value in environ.items() if name in named or _harmless(name)}
    private = {name: os.path.join(own, part) for name, part in _PRIVATE.items()}
    return {**kept, **{k: v for k, v in private.items() if k not in named}}


def folders(own: str) -> list[str]:
    """The folders that libraries expect to be there, outermost first."""
    parts = {"tmp", "cache", "config", "data", "state", "tmp/jupyter", "cache/matplotlib"}
    return [own, *(os.path.join(own, part) for part in sorted(parts))]


def _harmless(name: str) -> bool:
    if name in _KEPT:
        return True
    return name.startswith(_FAMILIES) and not any(word in name for word in _SECRET)
