"""Skills in snapshots: names of the session's skills, cells' own skills by value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cave
from cave.image import Image, Note
from tests.kernel._desk import Desk
from tests.kernel._host import Host, text
from tests.kernel._keep import Keep

Make = Callable[..., Host]


@cave.skill(runs="host")
def double(x: Any) -> Any:
    """Twice as much."""
    return x * 2


@cave.skill
def grown(n: int) -> int:
    """One more."""
    return n + 1


def snap(host: Host, id: str) -> Image:
    async def whole() -> Image:
        capture = await host.kernel.snapshot(id=id, base=None, lease=host.lease)
        return await capture.image()

    return host(whole())


def back(host: Host, keep: Keep, id: str) -> list[Note]:
    with keep.load(id) as load:
        return list(host(host.kernel.restore(load, lease=host.lease)))


def kept(image: Image) -> set[str]:
    return {name for group in image.groups for name in group.names if ":" not in name}


def test_skills_are_in_no_snapshot_but_what_holds_them_is(make_host: Make, tmp_path: Path) -> None:
    """A variable that holds a skill means, in another kernel, the session's skill of that name;
    where there is none its use says which module it came from."""
    host, keep = make_host(), Keep(tmp_path / "keep")
    host.start()
    Desk(host, double, grown).open()
    done = host.run(
        "held, pair = double, [grown, double]\nimport cave\ndef use(n): return double(grown(n))"
    )
    assert [v.name for v in done.delta.added] == ["held", "pair", "use"]
    image = keep.take(snap(host, "a"))
    assert kept(image) == {"held", "pair", "use", "cave"}

    host.start(2)
    before = Desk(host, double)
    before.answer()
    back(host, keep, "a")
    gone = host.run("held(1)")
    assert gone.error is not None
    assert "no skill 'double'" in gone.error.message
    assert repr(__name__) in gone.error.message
    before.define(double, grown)
    told = host.run("print(held(2), use(1), held is double, pair[1] is held, cave.SkillError)")
    assert text(told).startswith("4 4 True True <class")

    host.start(3)
    Desk(host, double, grown).open()
    back(host, keep, "a")
    assert text(host.run("print(held(2), use(1), held is double)")) == "4 4 True\n"


def test_a_restore_leaves_the_skills_where_they_are(make_host: Make, tmp_path: Path) -> None:
    """Going back takes variables, never the session's skills; a name that a variable had taken
    is the skill's again."""
    host, keep = make_host(), Keep(tmp_path / "keep")
    host.start()
    Desk(host, double, grown).open()
    host.run("a = 1")
    keep.take(snap(host, "a"))
    host.run("double, b = 'mine', 2")
    back(host, keep, "a")
    assert text(host.run("print(double(4), grown(1), 'b' in globals())")) == "8 2 False\n"
    assert not host.run("pass").delta.added


def test_a_cells_skill_comes_back_with_its_function(make_host: Make, tmp_path: Path) -> None:
    """A skill that a cell defined works after a restore, also without the host's skills, and
    sees the namespace that came back."""
    host, keep = make_host(), Keep(tmp_path / "keep")
    host.start()
    host.run(
        "import cave\nrate = 2\n"
        "@cave.skill(effect='write')\ndef priced(n: int) -> int: return n * rate\n"
        "also = [priced]"
    )
    keep.take(snap(host, "a"))
    host.start(2)
    desk = Desk(host)
    desk.answer()
    assert back(host, keep, "a") == []
    assert text(host.run("rate = 3\nprint(priced(2), also[0] is priced, priced)")) == (
        "6 True <skill priced(n: int) -> int>\n"
    )
    assert [call.phase for call in desk.calls] == ["begin", "end"]


@cave.skill
def appended(ctx: cave.SkillContext, name: str) -> int:
    """Changes a variable in place."""
    rows = ctx.runtime.get(name)
    rows.append(len(rows))
    return len(rows)


def test_what_a_skill_changes_in_place_is_in_the_next_snapshot(
    make_host: Make, tmp_path: Path
) -> None:
    """A variable that a skill reached through its context counts as touched, and one that a
    cell's skill names as well."""
    host, keep = make_host(), Keep(tmp_path / "keep")
    host.start()
    Desk(host, appended).open()
    host.run(
        "import cave\nrows, more, other = [], [], [1]\n@cave.skill\ndef added(): more.append(1)"
    )
    keep.take(snap(host, "a"))
    host.run("appended('rows'); added()")

    async def next_one() -> Image:
        capture = await host.kernel.snapshot(id="b", base="a", lease=host.lease)
        return await capture.image()

    image = keep.take(host(next_one()))
    given = {n for group in image.groups if not group.same for n in group.names if ":" not in n}
    assert {"rows", "more"} <= given
    assert "other" not in given
