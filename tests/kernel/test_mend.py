"""Cells that break their surroundings: the next one works, and the error is a plain one."""

from __future__ import annotations

import pytest

from tests.kernel._host import Host, text


@pytest.mark.parametrize(
    "source",
    [
        "import sys; sys.stdout = None",
        "import sys; sys.stdout = sys.stderr = 3",
        "import sys; sys.stdout.close()",
        "import sys, io; sys.stdout = io.StringIO(); sys.stdout.close()",
        "import sys; del sys.stdout, sys.stderr",
        "import sys; sys.stdout = None; 1 / 0",
        "get_ipython().user_ns.clear()",
        "globals().clear()",
        "%reset -f",
        "_oh = None",
        "del _ih, _dh, In, Out",
        "import builtins; del builtins.len",
        "import builtins; builtins.isinstance = None",
        "import builtins; del builtins.print, builtins.dict; 1 / 0",
    ],
)
def test_what_a_cell_breaks_is_mended_for_the_next(host: Host, source: str) -> None:
    """Printing, results, errors, classes and variables work as before."""
    assert host.run(source).kept
    assert text(host.run("print(len('abc'), __name__)\n6 * 7")) == "3 __main__\n42"
    assert text(host.run("class C: pass\n(C.__module__, Out.get(0), len(In) > 1)")) == (
        "('__main__', None, True)"
    )
    failed = host.run("print('before'); 1 / 0")
    assert failed.error is not None
    assert failed.error.name == "ZeroDivisionError"
    assert text(failed).startswith("before\n")
    done = host.run("mine = object()")
    assert [v.name for v in (*done.delta.added, *done.delta.changed)] == ["mine"]


def test_a_redirect_that_works_stays(host: Host) -> None:
    """A file-like object that a cell puts for stdout stays until a cell takes it away."""
    host.run("import io, sys; ours, sys.stdout = sys.stdout, io.StringIO()")
    assert text(host.run("print('kept')")) == ""
    assert text(host.run("got, sys.stdout = sys.stdout.getvalue(), ours; print(got)")) == "kept\n\n"


def test_a_replaced_builtin_that_works_stays(host: Host) -> None:
    """A callable in the place of a builtin is the user's business."""
    host.run("import builtins; kept = builtins.abs; builtins.abs = lambda x: 'mine'")
    assert text(host.run("abs(1)")) == "'mine'"
    assert text(host.run("builtins.abs = kept; abs(-1)")) == "1"


def test_a_repr_that_gives_no_string_is_a_type_error(host: Host) -> None:
    """The fault of a result's `__repr__` is the cell's error, by its own name."""
    done = host.run("class A:\n    def __repr__(self): return 3\nA()")
    assert (done.status, done.error and done.error.name) == ("error", "TypeError")
    assert done.error is not None
    assert "non-string" in done.error.message
    assert host.run("1").status == "ok"


@pytest.mark.parametrize(
    ("source", "wanted"),
    [("len?", "number of items"), ("?len", "number of items"), ("here??", "SOURCE"),
     ("%load part.py", "SOURCE")],
)  # fmt: skip
def test_what_goes_to_a_pager_is_output(host: Host, source: str, wanted: str) -> None:
    """Help and loaded files are text of the cell: a session has no pager."""
    (host.root / "work" / "part.py").write_text("def here():\n    'SOURCE'\n")
    host.run("from part import here")
    assert wanted in text(host.run(source))


def test_a_magics_usage_error_comes_once(host: Host) -> None:
    """An unknown magic is the cell's error and not printed beside it."""
    done = host.run("%nosuchmagic")
    assert done.error is not None
    assert done.error.name == "UsageError"
    assert [out.kind for out in done.outputs] == ["error"]
    assert "nosuchmagic" in done.error.traceback


def test_a_deep_recursion_is_told_in_short(host: Host) -> None:
    """The traceback of thousands of calls shows its ends and how many are left out."""
    host.run("def f(): f()")
    done = host.run("f()")
    assert done.error is not None
    assert done.error.name == "RecursionError"
    assert "more calls in between" in done.error.traceback
    assert 10 < done.error.traceback.count("in f()") <= 40
    assert "----> 1 f()" in done.error.traceback
