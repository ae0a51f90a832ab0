"""Which snapshots stay, from the journal alone."""

from __future__ import annotations

from cave import thinning
from cave.events import SnapshotCommitted

from .test_lasting import Story

MB = 1_000_000


def story_of(count: int, *, written: int = 100, size: int = 1000, named: int = 0) -> Story:
    story = Story()
    for n in range(1, count + 1):
        story.tell(
            SnapshotCommitted(
                snapshot=f"{n:06d}", cell=n, written=written, size=size, name="x" * (n == named)
            )
        )
    return story


def test_a_short_past_is_kept_whole() -> None:
    """Nothing goes while snapshots are few and small."""
    story = story_of(100)
    assert not thinning.overdue(story.fold)
    assert len(thinning.kept(story.fold)) == 100


def test_a_long_past_gets_thinner_with_age() -> None:
    """Of 2,000 snapshots the newest 100 stay, every tenth of the last thousand cells, and what
    has a name; a session that is never idle is allowed some more."""
    story = story_of(2_000, named=7)
    stay = thinning.kept(story.fold)
    assert thinning.overdue(story.fold, slack=thinning.SLACK)
    assert {f"{n:06d}" for n in (7, 2_000, 1_999, 1_901, 1_010)} <= stay
    assert "000500" not in stay
    assert len(stay) < 250


def test_large_snapshots_make_room_for_newer_ones() -> None:
    """What automatic snapshots take is bounded by a multiple of the namespace; the latest two
    and named ones stay in any case."""
    story = story_of(40, written=500 * MB, size=500 * MB, named=3)
    stay = thinning.kept(story.fold)
    assert thinning.overdue(story.fold, slack=thinning.SLACK)
    assert {"000040", "000039", "000003"} <= stay
    assert len(stay) * 500 * MB <= 8 * 500 * MB
    huge = story_of(3, written=9_000 * MB, size=10 * MB)
    assert thinning.kept(huge.fold) == {"000002", "000003"}
