"""What the journal alone tells of snapshots: durable cells, fidelity, moments, reports."""

from __future__ import annotations

import pytest

from cave import moments
from cave.display import mimebundle
from cave.display.told import told_return
from cave.errors import SnapshotNotFound
from cave.events import (
    CellFinished,
    CellStarted,
    Delta,
    Event,
    KernelEnded,
    KernelStarted,
    Restored,
    SnapshotCommitted,
    SnapshotsRetired,
    TurnFinished,
    TurnStarted,
    ValuesPut,
    Variable,
)
from cave.history import History
from cave.image import Note
from cave.report import Diff, RestoreReport, Snapshot


class Story:
    """A journal in the making."""

    def __init__(self) -> None:
        self.fold = History()
        self.tell(KernelStarted(kernel=1, pid=1, python="3", executable="p"))

    def tell(self, *events: Event) -> None:
        for event in events:
            stamped = event.stamped(seq=self.fold.seq + 1, at=1.0, session="s")
            self.fold.feed([stamped])

    def cell(self, n: int, *names: str, kept: bool = True) -> None:
        made = tuple(Variable(name, "int", cell=n) for name in names)
        self.tell(
            CellStarted(cell=n, source="..."),
            CellFinished(cell=n, status="ok", kept=kept, delta=Delta(added=made)),
        )

    def snapshot(self, id: str, cell: int, *, upto: int | None = None, **fields: object) -> None:
        upto = self.fold.seq if upto is None else upto
        self.tell(SnapshotCommitted(snapshot=id, cell=cell, upto=upto, **fields))  # type: ignore[arg-type]

    def fidelity(self) -> dict[str, str]:
        return {v.name: v.fidelity for v in self.fold.lasting.of(self.fold.variables.values())}


def test_a_snapshot_that_arrives_late_covers_only_what_was_before_it() -> None:
    """A cell that ended between the image and its commit is neither durable nor exact."""
    story = Story()
    story.cell(1, "a")
    upto = story.fold.seq
    story.cell(2, "b")
    story.snapshot("one", 1, upto=upto)
    assert [story.fold.cells[n].durable for n in (1, 2)] == [True, False]
    assert story.fidelity() == {"a": "exact", "b": "volatile"}
    assert [v.name for v in story.fold.not_held()] == ["b"]
    assert story.fold.lasting.waiting == 1
    story.snapshot("two", 2)
    assert story.fold.cells[2].durable
    assert story.fidelity() == {"a": "exact", "b": "exact"}


def test_what_was_put_is_volatile_until_the_next_snapshot() -> None:
    """A value that was put again is not what the snapshot has."""
    story = Story()
    story.cell(1, "a")
    story.snapshot("one", 1)
    story.tell(ValuesPut(variables=(Variable("a", "str"),)))
    assert story.fidelity() == {"a": "volatile"}
    assert story.fold.lasting.unsaved


def test_the_gravest_note_is_the_fidelity() -> None:
    """A part that is lost makes the whole changed; a variable that is lost is lost."""
    story = Story()
    story.cell(1, "a", "b", "c", "d")
    notes = (
        Note("rebuilt", "a", "Engine", "by its URL"),
        Note("lost", "a", "lock", "held", path=".lock"),
        Note("lost", "b", "generator", "cannot be written"),
        Note("assumed", "c", "Node", "no cell reached it"),
    )
    story.snapshot("one", 1, notes=notes)
    assert story.fidelity() == {"a": "changed", "b": "lost", "c": "assumed", "d": "exact"}
    assert [v.name for v in story.fold.not_held()] == ["b"]
    assert "its .lock (lock) is lost: held" in story.fold.lasting.notes["a"].reason


def test_moments_follow_the_line_that_was_taken() -> None:
    """After going back, the line of snapshots is that of the moment gone to, and names that
    changed on an abandoned branch do not count."""
    story = Story()
    story.cell(1, "a")
    story.snapshot("one", 1)
    story.tell(TurnStarted(turn=1, prompt="p"))
    story.cell(2, "b")
    story.snapshot("two", 2, name="mine")
    story.tell(TurnFinished(turn=1, status="done"))
    story.tell(Restored(snapshot="one", cell=1, reason="asked", kernel=1))
    story.cell(3, "c")
    story.snapshot("three", 3)
    fold = story.fold
    assert fold.lasting.line == ["three", "one"]
    assert moments.resolve(fold, 2) == moments.resolve(fold, "turn 1") == "two"
    assert moments.resolve(fold, "before turn 1") == "one"
    assert moments.resolve(fold, "mine") == "two"
    assert moments.changed_between(fold, "one", "three") == {"c"}
    assert moments.changed_between(fold, "two", "three") is None
    story.tell(SnapshotsRetired(snapshots=("two",)))
    with pytest.raises(SnapshotNotFound, match="1, 3"):
        moments.resolve(fold, 2)
    assert fold.lasting.line == ["three", "one"]


def test_a_death_forgets_what_was_not_held() -> None:
    """After the end of a kernel nothing waits; the next one begins from the latest snapshot."""
    story = Story()
    story.cell(1, "a")
    story.snapshot("one", 1)
    story.cell(2, "b")
    story.tell(KernelEnded(kernel=1, pid=1, reason="died", signal=9, lost=story.fold.not_held()))
    assert [v.name for v in story.fold.lost] == ["b"]
    assert not story.fold.lasting.unsaved
    assert story.fold.lasting.image is None
    story.tell(KernelStarted(kernel=2, pid=2, python="3", executable="p"))
    assert story.fold.lasting.fresh
    story.tell(
        Restored(
            snapshot="one", cell=1, reason="death", kernel=2, variables=(Variable("a", "int"),)
        )
    )
    assert not story.fold.lasting.fresh
    assert list(story.fold.variables) == ["a"]
    assert [v.name for v in story.fold.lost] == ["b"]


def test_cells_whose_work_the_namespace_holds_follow_the_way_that_was_taken() -> None:
    """Back, on from there, and to a snapshot that a later cell had overtaken."""
    story = Story()
    story.cell(1, "a")
    story.snapshot("one", 1)
    upto = story.fold.seq
    story.cell(2, "b")
    story.snapshot("late", 1, upto=upto)
    story.cell(3, "c")
    story.snapshot("three", 3)
    past = story.fold.lasting.past
    assert past.cells() == past.cells("three") == [1, 2, 3]
    assert past.cells("one") == past.cells("late") == [1]
    story.tell(Restored(snapshot="one", cell=1, reason="asked", kernel=1))
    story.cell(4, "d")
    story.snapshot("four", 4)
    assert past.cells() == [1, 4]
    story.tell(Restored(snapshot="three", cell=3, reason="asked", kernel=1))
    assert past.cells() == [1, 2, 3]
    story.tell(Restored(snapshot="", cell=0, reason="death", kernel=1))
    assert past.cells() == []


def restored() -> Restored:
    rows = tuple(Variable(name, "int", cell=1) for name in "abcde")
    return Restored(
        snapshot="one",
        cell=4,
        reason="death",
        kernel=2,
        variables=rows,
        kept=("a",),
        notes=(
            Note("rebuilt", "c", "int", "by recipe"),
            Note("lost", "d", "int", "<b>gone</b>"),
            Note("lost", "hidden:threads", "Thread", "it ran"),
        ),
        versions=(("pandas", "2.2.0", "3.1.0"),),
    )


def test_a_report_has_each_name_once_with_its_reason() -> None:
    """Kept, restored, rebuilt, lost, also what is no variable; variables made after the
    snapshot are lost, too."""
    report = RestoreReport.of(restored(), gone=[Variable("late", "str", cell=5)])
    assert [e.name for e in report.kept] == ["a"]
    assert [e.name for e in report.restored] == ["b", "e"]
    assert [e.name for e in report.rebuilt] == ["c"]
    assert [e.name for e in report.lost] == ["d", "hidden:threads", "late"]
    assert "after cell 4" in report.lost[-1].reason
    assert not report.exact
    assert "pandas was 2.2.0, is 3.1.0" in str(report)
    assert "lost: d (int, cell 1): <b>gone</b>" in str(report)


def test_what_a_notebook_shows_of_snapshots_is_escaped() -> None:
    """Reports, snapshots and diffs show themselves; text of a kernel is never HTML."""
    page = mimebundle(RestoreReport.of(restored()))["text/html"]
    assert "&lt;b&gt;gone" in page
    assert "<b>gone" not in page
    snapshot = Snapshot("one", "mine<", 4, 0.0, 2_000_000, 10)
    assert "mine&lt;" in mimebundle(snapshot)["text/html"]
    assert "2.0 MB" in mimebundle(snapshot)["text/html"]
    bundle = mimebundle(Diff(added=("a",), unchanged=("b",)))
    assert bundle["text/plain"] == "<Diff + a; 1 unchanged>"
    assert "1 unchanged" in bundle["text/html"]


def test_a_return_that_was_expected_is_not_told() -> None:
    """Opening a session whose objects are all exact says nothing; a death always does."""
    calm = Restored(snapshot="one", cell=1, reason="opened", kernel=2)
    assert told_return(calm) == ""
    assert "as after cell 4" in told_return(restored())
