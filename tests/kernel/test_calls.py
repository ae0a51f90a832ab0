"""Calls of skills: from cells to the host and back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd  # noqa: TC002 -- skills look annotations up
import pytest

import cave
from cave.errors import SkillError, UnknownName
from cave.ports import Caller, Declared, SkillAnswer, SkillCall
from tests.kernel._desk import Desk, fault, until
from tests.kernel._host import Host, text

SECOND = 0.1


@cave.skill(runs="host")
def double(x: Any) -> Any:
    """Twice as much."""
    return x * 2


@cave.skill(runs="host")
async def later(x: Any) -> Any:
    """Twice as much, after a while."""
    await asyncio.sleep(0)
    return x * 2


@cave.skill(runs="host")
def total(frame: pd.DataFrame, column: str = "a", *, times: int = 1) -> float:
    """Sum of one column."""
    return float(frame[column].sum()) * times


@pytest.fixture
def desk(host: Host) -> Desk:
    """A desk that answers the module's kernel, with the skills above."""
    return Desk(host, double, later, total).open()


def test_a_skill_looks_like_its_function(desk: Desk) -> None:
    """The stand-in has the skill's name, signature and docstring; it is no variable."""
    done = desk.host.run(
        "import inspect\nprint(total.__name__, inspect.signature(total), total.__doc__)\ntotal"
    )
    assert text(done) == (
        "total (frame: pd.DataFrame, column: str = 'a', *, times: int = 1) -> float "
        "Sum of one column.\n"
        "<skill total(frame: pd.DataFrame, column: str = 'a', *, times: int = 1) -> float>"
    )
    assert not done.delta.added
    assert "total" not in [
        v.name for v in desk.host(desk.host.kernel.variables(lease=desk.host.lease))
    ]


def test_arguments_and_results_cross(desk: Desk) -> None:
    """Values come as they were called and go back as they were given, by name and place."""
    done = desk.host.run(
        "import pandas as pd\nf = pd.DataFrame({'a': [1, 2], 'b': [3., 4.]})\n"
        "print(total(f, 'b', times=3), double(x=[1, 'é']), double((1,)))"
    )
    assert text(done) == "21.0 [1, 'é', 1, 'é'] (1, 1)\n"
    cell = desk.calls[0].cell
    assert desk.places == [(cell, "", n) for n in (1, 2, 3)]
    first = desk.calls[0]
    assert list(first.arguments) == ["column", "frame", "times"]
    assert first.hash == total.hash
    assert len(first.digest) == 64


def test_digests_tell_arguments_apart(desk: Desk) -> None:
    """The same arguments have the same digest, in any order of names and of sets; others not."""
    desk.host.run(
        "for x in (1, 1, 2, {'b', 'a', 'c'}, {'c', 'b', 'a'}):\n"
        "    try: double(x)\n"
        "    except Exception: pass"
    )
    one, again, two, some, same = (call.digest for call in desk.calls)
    assert one == again != two
    assert some == same


def test_wrong_arguments_raise_as_python_does(desk: Desk) -> None:
    """Arguments that do not fit the signature are a TypeError naming the skill; nothing is sent."""
    done = desk.host.run("double(1, 2)")
    assert done.error is not None
    assert (done.error.name, done.error.message) == (
        "TypeError", "double() too many positional arguments",
    )  # fmt: skip
    assert desk.host.run("double(y=1)").error is not None
    assert desk.calls == []


def test_async_skills_are_awaited_and_sync_ones_may_be(desk: Desk) -> None:
    """`await later(...)`, `await double.aio(...)`, and fifty at once: each gets its own answer."""
    done = desk.host.run(
        "import asyncio\n"
        "print(await later(1), await double.aio(2))\n"
        "print(sum(await asyncio.gather(*[later(i) for i in range(50)])))\n"
        "async def both(i): return await later(i) + await double.aio(i)\n"
        "print(sum(await asyncio.gather(*[both(i) for i in range(50)])))"
    )
    assert text(done) == f"2 4\n{2 * 1225}\n{4 * 1225}\n"
    assert len(desk.calls) == 152


def test_a_thousand_calls_from_eight_threads(desk: Desk) -> None:
    """Threads call at the same time; every answer reaches the call that asked."""
    done = desk.host.run(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(8) as pool:\n"
        "    print(list(pool.map(double, range(1000))) == [2 * i for i in range(1000)])"
    )
    assert text(done) == "True\n"
    assert len({(call.lane, call.ordinal) for call in desk.calls}) == 1000


def test_a_hundred_megabytes_go_in_and_out(desk: Desk) -> None:
    """A large frame is an argument and a result, and comes back writable and equal."""
    done = desk.host.run(
        "import numpy as np, pandas as pd\n"
        "big = pd.DataFrame({'a': np.arange(12_500_000.)})\n"
        "twice = double(big)\n"
        "twice.loc[0, 'a'] = 7.0\n"
        "print(twice.a.iloc[0], twice.a.iloc[-1], len(twice))\n"
        "del big, twice"
    )
    assert text(done) == f"7.0 {2 * 12_499_999.0} 12500000\n"


def test_many_large_results_at_once(desk: Desk) -> None:
    """A hundred large answers that wait together lose nobody's."""
    done = desk.host.run(
        "import asyncio, numpy as np\n"
        "got = await asyncio.gather(*(later(np.full(10_000, float(i))) for i in range(100)))\n"
        "print([float(g[0]) for g in got] == [2.0 * i for i in range(100)])\n"
        "del got"
    )
    assert text(done) == "True\n"


def test_large_values_cross_without_the_door(make_host: Callable[..., Host]) -> None:
    """Where the door is gone (a cleaned /tmp) values go through the channel."""
    host = make_host()
    host.start()
    host.kernel.record.door.unlink()
    desk = Desk(host, double).open()
    done = host.run("import numpy as np; print(double(np.arange(100_000)).sum())")
    assert text(done) == f"{100_000 * 99_999}\n"
    assert len(desk.calls) == 1


def test_what_cannot_leave_the_kernel_is_named(desk: Desk) -> None:
    """An argument that the safe codecs do not carry is named with its kind and what to give."""
    done = desk.host.run("import threading; double([threading.Lock()])")
    assert done.error is not None
    assert done.error.name == "SkillError"
    assert "double() was not called: argument 'x' is a list" in done.error.message
    assert "lock is not a kind" in done.error.message
    assert "give the data" in done.error.message
    assert desk.calls == []


def test_dataclasses_and_enums_go_as_what_they_hold(desk: Desk) -> None:
    """Records of the cell's own classes arrive as dicts: the host checks them anew."""
    desk.host.run(
        "import dataclasses, enum\n"
        "class Side(enum.Enum): debit = 'D'\n"
        "@dataclasses.dataclass\nclass Entry:\n    account: str\n    side: Side\n"
        "try: double(Entry('4711', Side.debit))\nexcept TypeError: pass"
    )
    assert desk.calls[0].arguments == {"x": {"account": "4711", "side": "D"}}


def test_a_result_that_cannot_go_in_is_an_error(desk: Desk) -> None:
    """What a skill gives and no kernel can have is told in the cell, by kind."""

    @cave.skill(runs="host")
    def generator() -> Any:
        return (n for n in range(3))

    desk.define(generator)
    done = desk.host.run("generator()")
    assert done.error is not None
    assert done.error.name == "NotPortable"
    assert "generator" in done.error.message


def test_what_the_host_pickles_arrives(desk: Desk) -> None:
    """Results that the safe codecs do not carry are pickled by the host."""

    @cave.skill(runs="host")
    def pattern() -> Any:
        return re.compile("a+")

    desk.define(pattern)
    assert text(desk.host.run("pattern().match('aab').group()")) == "'aa'"


@pytest.mark.parametrize(
    ("name", "raised"),
    [
        ("ValueError", "ValueError: no such account"),
        ("ConnectionError", "ConnectionError: no such account"),
        ("SkillError", "SkillError: no such account"),
        ("EffectInDoubt", "EffectInDoubt: no such account"),
        ("LedgerClosed", "SkillError: double raised LedgerClosed: no such account"),
        ("UnicodeDecodeError", "SkillError: double raised UnicodeDecodeError: no such account"),
        ("SystemExit", "SkillError: double raised SystemExit: no such account"),
    ],
)
def test_errors_are_raised_in_the_cell(desk: Desk, name: str, raised: str) -> None:
    """Builtin errors and cave's come as such; others as a SkillError that tells of them."""
    desk.host.kernel.on_call = fault(name, "no such account")
    done = desk.host.run("double(1)")
    assert done.error is not None
    assert f"{done.error.name}: {done.error.message}" == raised
    assert "_cave_kernel" not in done.error.traceback
    assert "invoke.py" not in done.error.traceback


def test_cells_catch_caves_errors_by_name(desk: Desk) -> None:
    """`except cave.SkillError` catches what a call raises."""
    desk.host.kernel.on_call = fault("SkillError", "not so")
    done = desk.host.run(
        "import cave\nfrom cave.errors import CaveError\n"
        "try: double(1)\n"
        "except cave.SkillError as e: print(isinstance(e, CaveError), isinstance(e, ValueError), e)"
    )
    assert text(done) == "True True not so\n"


def test_an_answer_that_raises_is_told(desk: Desk) -> None:
    """What the host's own code raises ends the call with that error, not the host."""

    async def broken(_: SkillCall, __: Caller) -> SkillAnswer:
        raise ZeroDivisionError("division by zero")

    desk.host.kernel.on_call = broken
    done = desk.host.run("double(1)")
    assert done.error is not None
    assert done.error.name == "ZeroDivisionError"


# -- notes and visits ------------------------------------------------------------------------


def test_notes_are_output_of_the_calling_cell(desk: Desk) -> None:
    """Progress comes while the call runs, in order, also to a call that is awaited."""

    async def noting(call: SkillCall, caller: Caller) -> SkillAnswer:
        caller.note("10%")
        caller.note("90%")
        return SkillAnswer("ok")

    desk.host.kernel.on_call = noting
    assert text(desk.host.run("print(double(1))")) == "10%\n90%\nNone\n"
    assert text(desk.host.run("print(await double.aio(1))")) == "10%\n90%\nNone\n"


@pytest.mark.parametrize("call", ["double(1)", "await double.aio(1)"])
def test_skills_of_the_host_reach_variables_while_the_cell_waits(desk: Desk, call: str) -> None:
    """`get` and `put` of the runtime are served by the code that waits, small and large."""
    seen: dict[str, Any] = {}

    async def visiting(_: SkillCall, caller: Caller) -> SkillAnswer:
        seen["small"] = await caller.get("small")
        seen["large"] = await caller.get("large")
        await caller.put({"made": np.arange(200_000), "mark": "put"})
        for name in ("absent", "handle"):
            try:
                await caller.get(name)
            except (UnknownName, cave.NotPortable) as error:
                seen[name] = error
        return SkillAnswer("ok")

    desk.host.kernel.on_call = visiting
    desk.host.run(
        "import numpy as np\nsmall, large, handle = {'k': 1}, np.arange(300_000), open('/dev/null')"
    )
    done = desk.host.run(f"{call}\nmade[0] = 5\nprint(made.sum(), mark)")
    assert text(done) == f"{sum(range(200_000)) + 5} put\n"
    assert seen["small"] == {"k": 1}
    assert seen["large"].sum() == sum(range(300_000))
    assert isinstance(seen["absent"], UnknownName)
    assert isinstance(seen["handle"], cave.NotPortable)
    assert {v.name for v in done.delta.added} >= {"made", "mark"} or call.startswith("await")
    desk.host.run("del made, mark, small, large; handle.close(); del handle")


# -- interrupts, threads, children ------------------------------------------------------------


@pytest.mark.parametrize("call", ["double(1)", "await double.aio(1)"])
def test_a_waiting_call_can_be_interrupted(desk: Desk, call: str) -> None:
    """SIGINT ends the wait; the host is told, its late answer is dropped, the next call works."""
    host = desk.host
    desk.hold.clear()

    async def interrupted() -> Any:
        cell = asyncio.ensure_future(host.send(call))
        await until(lambda: desk.calls)
        assert await host.kernel.interrupt()
        done = await cell
        await until(lambda: desk.cancelled)
        desk.hold.set()
        return done

    done = host(interrupted())
    assert done.status == "interrupted"
    assert done.error is not None
    assert done.error.name == "KeyboardInterrupt"
    assert desk.cancelled == [desk.calls[0].id]
    assert text(host.run("double(4)")) == "8"


def test_a_thread_that_outlives_its_cell_calls_for_that_cell(desk: Desk) -> None:
    """Its calls have the cell that started it, and its lane; what comes is output of that cell."""
    host = desk.host
    desk.hold.clear()
    late: list[Any] = []
    host.kernel.on_late = late.append
    first = host.run(
        "import threading\nt = threading.Thread(target=lambda: print('got', double(3)))\nt.start()"
    )
    second = host.run("'next'")
    assert (first.status, second.status) == ("ok", "ok")

    desk.hold.set()
    host(until(lambda: late))
    assert "".join(out.text for it in late for out in it.outputs).startswith("got")
    (call,) = desk.calls
    assert call.lane == "/1"
    assert late[0].cell == call.cell
    host.kernel.on_late = None
    host.run("t.join(); del t")


def test_a_forked_child_may_not_call(desk: Desk) -> None:
    """In a child of os.fork() a skill raises at once and says what to do."""
    done = desk.host.run(
        "import os\nif os.fork() == 0:\n"
        "    try: double(1)\n"
        "    except RuntimeError as e: print(e, flush=True)\n"
        "    os._exit(0)\n"
        "_ = os.wait()"
    )
    assert "double() in a forked child" in text(done)
    assert desk.calls == []


# -- definitions ------------------------------------------------------------------------------


def test_a_redefined_skill_is_new_from_the_next_call(make_host: Callable[..., Host]) -> None:
    """A call that runs ends as it began; the name, and who holds it, mean the new one then."""
    host = make_host()
    host.start()

    @cave.skill(runs="host", name="price")
    def old() -> str:
        return "old"

    @cave.skill(runs="host", name="price")
    def new(kind: str = "new") -> str:
        return kind

    desk = Desk(host, old).open()
    desk.hold.clear()
    host.run(
        "import threading\nheld, got = price, []\n"
        "t = threading.Thread(target=lambda: got.append(price())); t.start()"
    )
    first = desk.skills["price"]
    desk.define(new)

    async def old_one(call: SkillCall, caller: Caller) -> SkillAnswer:
        return await Desk.on_call(desk, call, caller)

    host.kernel.on_call = old_one
    desk.skills = {"price": first}
    desk.hold.set()
    host.run("t.join()")
    desk.skills = {"price": new}
    assert text(host.run("print(got, held(), price(kind='x'), held is price)")) == (
        "['old'] new x True\n"
    )
    assert [call.hash for call in desk.calls] == [old.hash, new.hash, new.hash]


def test_a_skill_that_is_gone_says_where_it_came_from(make_host: Callable[..., Host]) -> None:
    """A name that is defined no more leaves the namespace; who holds it gets a SkillError."""
    host = make_host()
    host.start()
    desk = Desk(host, double).open()
    host.run("held = double")
    desk.define()
    done = host.run("'double' in globals() or held(1)")
    assert done.error is not None
    assert done.error.name == "SkillError"
    assert "'double'" in done.error.message
    assert repr(__name__) in done.error.message


def test_a_variable_of_the_user_keeps_its_name(make_host: Callable[..., Host]) -> None:
    """A skill does not take the place of a variable; deleting its name is no variable's end."""
    host = make_host()
    host.start()
    host.run("double = 'mine'")
    desk = Desk(host, double, total).open()
    assert text(host.run("print(double, callable(total))")) == "mine True\n"
    host.run("total = 5")
    assert [v.name for v in host(host.kernel.variables(lease=1))] == ["double", "total"]
    desk.define(double, total)
    assert text(host.run("print(double, total)")) == "mine 5\n"


def test_a_skill_that_cannot_go_there_is_named(host: Host) -> None:
    """A kernel skill that drags along what no kernel can have is refused by name."""
    import threading

    lock = threading.Lock()

    @cave.skill
    def locked() -> None:
        with lock:
            pass

    with pytest.raises(SkillError, match="'locked' cannot go into the kernel"):
        host(host.kernel.define([Declared(locked.declaration(), locked.carried)], lease=host.lease))
