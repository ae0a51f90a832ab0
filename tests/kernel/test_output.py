"""Outputs: folding, merging, bounds; as units, and on what a real kernel prints."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cave.kernel import output
from cave.kernel.output import Fold, Outputs
from cave.kernel.wire import Message
from cave.ports import Executed
from tests.kernel._host import Host, text


def fold(*pieces: str) -> str:
    it = Fold()
    return "".join(it.feed(piece) for piece in pieces) + it.rest


def message(kind: str, **content: Any) -> Message:
    return Message(kind, "id", "parent", content)


def stream(body: str, name: str = "stdout") -> Message:
    return message("stream", name=name, text=body)


def collected(*messages: Message, **options: Any) -> Outputs:
    outputs = Outputs(**options)
    for it in messages:
        outputs.add(it)
    return outputs


def test_what_is_nested_too_deep_is_said_to_be_left_out(host: Host) -> None:
    """In its place a line tells why: of a result, a display and the update of one."""
    ended = host.run("""
        from IPython.display import JSON, display
        deep = []
        for _ in range(120):
            deep = [deep]
        print("before")
        shown = display({"a": 1}, display_id=True)
        display(JSON(deep))
        shown.update(JSON({"k": deep}))
        JSON(deep)
    """)
    assert text(ended).count("[an output was left out: its data is nested more than 100 ") == 3
    assert text(ended).startswith("before")


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["a\n", "b"], "a\nb"),
        (["10%\r20%\r30%"], "30%"),
        (["10%", "\r", "20%\n", "next"], "20%\nnext"),
        (["windows\r\nlines\r\n"], "windows\nlines\n"),
        (["windows\r", "\nlines"], "windows\nlines"),
        (["abc\b\bX"], "aXc"),
        (["|\b/\b-\b\\"], "\\"),
        (["long line\rshort"], "shortline"[:5] + "line"),
        (["long line\r\x1b[Kshort"], "short"),
        (["a\n\rb\n"], "a\nb\n"),
        (["\b\b\r"], ""),
    ],
)
def test_terminal_text_folds_to_its_last_state(pieces: list[str], expected: str) -> None:
    """Carriage returns, backspaces and erased lines leave what a terminal shows."""
    assert fold(*pieces) == expected


@given(st.text(alphabet="ab\r\n\b", max_size=60), st.lists(st.integers(0, 60), max_size=6))
def test_folding_does_not_depend_on_how_text_is_cut(whole: str, cuts: list[int]) -> None:
    """Any cutting of a text into messages gives the same result."""
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    pieces = [whole[a:b] for a, b in itertools.pairwise(edges)]
    assert fold(*pieces) == fold(whole)


def test_folding_takes_linear_time_and_little_memory() -> None:
    """A million updates of a long line, and a line without end, are quick and bounded."""
    it = Fold()
    it.feed("x" * 60_000)
    for _ in range(1_000):
        it.feed("\ry" * 1_000)
    assert it.rest == "y" + "x" * 59_999
    for _ in range(200):
        it.feed("z" * 100_000)
    assert len(it.rest) <= 1 << 16


def test_streams_are_merged_until_the_other_one_writes() -> None:
    """Consecutive pieces of one stream are one output."""
    outputs = collected(stream("a"), stream("b"), stream("e", "stderr"), stream("c"))
    assert [(o.name, o.text) for o in outputs.result()] == [
        ("stdout", "ab"),
        ("stderr", "e"),
        ("stdout", "c"),
    ]


def test_a_display_is_updated_in_place_and_outputs_can_be_cleared() -> None:
    """update_display_data changes the earlier output; clear_output empties, at once or later."""
    show = {"data": {"text/plain": "1"}, "metadata": {}, "transient": {"display_id": "d"}}
    outputs = collected(message("display_data", **show), stream("x"))
    outputs.add(message("update_display_data", **{**show, "data": {"text/plain": "2"}}))
    assert outputs.result()[0].data == {"text/plain": "2"}
    outputs.add(message("clear_output", wait=True))
    assert len(outputs.result()) == 2
    outputs.add(stream("new"))
    assert [o.text for o in outputs.result()] == ["new"]
    outputs.add(message("clear_output", wait=False))
    assert outputs.result() == ()


def test_too_much_text_keeps_its_head_and_tail_and_says_what_was_cut() -> None:
    """Above the limit the middle is cut and counted; head and tail stay."""
    outputs = collected(*(stream(f"{i:06d}\n") for i in range(10_000)), limit=7_000)
    whole = "".join(o.text for o in outputs.result())
    assert outputs.clipped
    assert outputs.size == 70_000
    assert whole.startswith("000000\n")
    assert whole.endswith("009999\n")
    cut = int(whole.partition("[... ")[2].partition(" ")[0].replace(",", ""))
    assert cut == 70_000 - (len(whole) - len(f"\n[... {cut:,} characters cut ...]\n"))
    assert len(whole) < 8_000


def test_one_huge_piece_is_cut_exactly() -> None:
    """A single text above the limit loses its middle only."""
    outputs = collected(stream("h" * 50 + "m" * 10_000 + "\n" + "t" * 49 + "\n"), limit=100)
    whole = "".join(o.text for o in outputs.result())
    assert whole.startswith("h" * 50 + "\n[... 10,00")
    assert whole.endswith("t" * 49 + "\n")
    assert outputs.size == 10_101


def test_many_tiny_outputs_are_bounded_too() -> None:
    """A million alternations of two streams do not make a million outputs."""
    outputs = Outputs(limit=100_000)
    for i in range(100_000):
        outputs.add(stream("a\n", "stdout" if i % 2 else "stderr"))
    assert len(outputs.result()) < 5_000
    assert outputs.size == 200_000


def test_lone_surrogates_are_escaped_everywhere() -> None:
    """Text, data and metadata of outputs are valid UTF-8."""
    bad = "\udcc3"
    outputs = collected(
        stream(bad), message("display_data", data={"text/plain": bad, bad: [bad]}, metadata={})
    )
    first, second = outputs.result()
    assert first.text == "\\udcc3"
    assert second.data == {"text/plain": "\\udcc3", "\\udcc3": ["\\udcc3"]}


def test_malformed_contents_are_taken() -> None:
    """Messages whose fields have wrong types neither raise nor vanish without trace."""
    outputs = collected(
        message("stream", name=3, text=None),
        message("display_data", data=[], metadata="x", transient=7),
        message("error", traceback={}, ename=None),
        message("clear_output", wait="yes"),
    )
    assert len(outputs.result()) == 3


# -- a real kernel ---------------------------------------------------------------------------


def rss(pid: int) -> int:
    """Resident bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_flood_of_print_costs_the_host_little(host: Host) -> None:
    """Of 100 MB of prints the host holds head and tail, names the size, and can read it all."""
    host.run("pass")
    before = rss(os.getpid())
    done = host.run("for i in range(100): print(chr(97 + i % 26) * 999_999)")
    assert rss(os.getpid()) - before < 32 << 20
    assert done.status == "ok"
    assert done.full_size == 100_000_000
    assert 500_000 < len(text(done)) < 1_200_000
    assert text(done).startswith("a" * 1000)
    assert text(done).endswith(chr(97 + 99 % 26) * 1000 + "\n")
    assert done.full_text is not None
    assert sum(map(len, done.full_text())) == 100_000_000
    assert rss(os.getpid()) - before < 32 << 20
    assert done.bound == ""


def test_long_output_is_bound_in_the_kernel(host: Host) -> None:
    """A cell's long text is in `_output_N`; short texts and old ones are not."""
    done = host.run("print('x' * 5_000_000)")
    assert done.bound.startswith("_output_")
    assert done.full_size == 5_000_001
    assert text(host.run(f"len({done.bound})")) == "5000001"
    assert host.run("print('short')").bound == ""
    for _ in range(10):
        host.run("print('y' * 30_000)")
    assert text(host.run(f"'{done.bound}' in globals()")) == "False"


def test_ten_thousand_small_writes_lose_nothing(host: Host) -> None:
    """After a flood of flushed writes the last line is there and the count is right."""
    source = (
        "import sys\nfor i in range(10_000):\n"
        "    n = sys.stdout.write(f'{i:099d}\\n'); sys.stdout.flush()\nprint('hi')"
    )
    done = host.run(source)
    assert text(done).endswith("\nhi\n")
    assert text(done).count("\n") == 10_001


async def while_busy(host: Host, source: str, seconds: float) -> Executed:
    """Run a cell while the host's loop is blocked for a time."""
    cell = asyncio.ensure_future(host.send(source))
    await asyncio.sleep(0.01)
    time.sleep(seconds)  # noqa: ASYNC251 - a host that does not read is what is tested
    return await cell


def test_thousands_of_displays_arrive_and_the_cell_ends(host: Host) -> None:
    """No queue on the way drops messages, also when the host is slow to read."""
    source = "from IPython.display import display\nfor i in range(5_000): display(i)"
    done = host(while_busy(host, source, 2))
    assert [o.data["text/plain"] for o in done.outputs] == [str(i) for i in range(5_000)]


def test_a_flood_past_a_busy_host_costs_it_little(host: Host) -> None:
    """Output above the cap is not sent at all, so it cannot pile up at a host that is busy."""
    host.run("pass")
    before = rss(os.getpid())
    done = host(while_busy(host, "for i in range(100): print('x' * 999_999)", 2))
    assert rss(os.getpid()) - before < 32 << 20
    assert done.full_size == 100_000_000


def test_a_progress_bar_leaves_one_line(host: Host) -> None:
    """2,000 updates on stderr fold to the last one, although they come in many messages."""
    done = host.run(
        "import sys, time\nfor i in range(2_000):\n"
        "    n = sys.stderr.write(f'\\r{i + 1}/2000'); sys.stderr.flush()\n"
        "    if i % 500 == 0: time.sleep(0.02)"
    )
    assert [(o.name, o.text) for o in done.outputs] == [("stderr", "2000/2000")]
    assert done.bound == ""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("print('\\udcc3')", "\\udcc3\n"),
        ("print(b'\\xff'.decode('latin1'))", "\xff\n"),
        ("import sys; n = sys.stderr.write('a\\ud800b')", "a\\ud800b"),
    ],
)
def test_surrogates_in_print_do_not_hang_the_cell(host: Host, source: str, expected: str) -> None:
    """Text that is no UTF-8 arrives as escapes, and the next cell works."""
    assert text(host.run(source)) == expected
    assert text(host.run("'next'")) == "'next'"


def test_surrogates_in_displays_and_errors_do_not_hang_the_cell(host: Host) -> None:
    """Results, displays, names and errors with surrogates are escaped."""
    source = (
        "class R:\n    def __repr__(self): return 'r\\udcc3'\n"
        "    def _repr_html_(self): return '<b>\\udcc3</b>'\nR()"
    )
    done = host.run(source)
    assert done.outputs[0].data == {"text/plain": "r\\udcc3", "text/html": "<b>\\udcc3</b>"}
    done = host.run("raise ValueError('\\udcc3')")
    assert done.error is not None
    assert done.error.message == "\\udcc3"
    done = host.run("import pandas as pd\npd.DataFrame({b'\\xff'.decode('latin1'): [1]})")
    assert done.status == "ok"
    assert host.run("1").status == "ok"


def test_big_displays_come_from_the_spool(host: Host) -> None:
    """A display above the cap of the wire is in the outputs whole."""
    done = host.run(
        "from IPython.display import display\n"
        "display({'text/plain': 'big', 'image/svg+xml': 's' * 3_000_000}, raw=True)\nprint('after')"
    )
    assert len(done.outputs[0].data["image/svg+xml"]) == 3_000_000
    assert done.outputs[1].text == "after\n"


def test_output_of_a_subprocess_belongs_to_its_cell(host: Host) -> None:
    """What a child process writes to the descriptors comes before the cell's end."""
    done = host.run("import subprocess; n = subprocess.run(['seq', '30000'])")
    assert text(done) == "".join(f"{i}\n" for i in range(1, 30_001))
    for i in range(20):
        done = host.run(f"import os; n = os.write(1, b'direct {i}' * 5_000)")
        assert text(done) == f"direct {i}" * 5_000


def test_a_full_disk_breaks_no_cell(host: Host) -> None:
    """When the spool cannot be written the output still arrives, and the loss is counted."""
    fault = (
        "import sys, errno\nspool = sys.modules['_cave_kernel.app'].App.instance()"
        ".kernel.publisher.spool\nwrite = spool._write\n"
        "def full(record): raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "spool._write = full"
    )
    host.run(fault)
    done = host.run("print('still here')")
    assert text(done) == "still here\n"
    assert host(host.kernel.status())["lost"] > 0
    host.run("spool._write = write")
    assert text(host.run("print('again')")) == "again\n"


def test_the_pieces_of_the_full_text_are_the_text() -> None:
    """full_text folds across messages and puts results between streams."""
    found = output.full_text(
        [
            stream("1%\r"),
            stream("2%\n"),
            message("execute_result", data={"text/plain": "res"}),
            stream("e", "stderr"),
            stream("o"),
        ]
    )
    assert b"".join(found) == b"2%\nres\neo"
