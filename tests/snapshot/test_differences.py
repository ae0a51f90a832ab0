"""Images that tell only of the groups that differ from those of their base."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from cave.errors import SnapshotError
from cave.image import Image, ImageGroup
from cave.snapshot import Manifest, Snapshots


def group(n: int, content: bytes) -> ImageGroup:
    return ImageGroup(f"g-{n}", (f"v{n}",), same=False, checked=True, stream=memoryview(content))


def told(base: Manifest, /, *, ids: str | None = None, **options: object) -> Image:
    """Group 2 is new, group 1 is gone, 0 was looked at, 3 and 4 were not."""
    image = Image(
        "000002-00000002",
        base.id,
        65536,
        (group(2, b"changed"),),
        "3.11.7",
        {},
        0.0,
        order=((0, 1, True), 0, (3, 2, False)),
        ids=base.ids if ids is None else ids,
    )
    return replace(image, **options)  # type: ignore[arg-type]


@pytest.fixture
def base(store: Snapshots) -> Manifest:
    groups = tuple(group(n, b"content %d" % n) for n in range(5))
    image = Image("000001-00000001", None, 65536, groups, "3.11.7", {}, 0.0)
    return store.write(image, base=None, cell=1, at=0.0, variables=())


def test_what_is_not_told_of_is_as_in_the_base(store: Snapshots, base: Manifest) -> None:
    """Groups that are the same are the base's own entries, in the order that was told; a group
    that is in neither is gone."""
    two = store.write(told(base), base=base, cell=2, at=0.0, variables=())
    assert [g.names[0] for g in two.groups] == ["v0", "v2", "v3", "v4"]
    assert two.assumed == {"g-3", "g-4"}
    assert two.entries[0] is base.entries[0]
    again = store.read(two.id)
    assert again.groups == two.groups
    with contextlib.closing(store.plan(again, live=None)) as plan:
        loaded = [bytes(group.stream) for group in plan.load.groups]
    assert loaded == [b"content 0", b"changed", b"content 3", b"content 4"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"ids": "another order"},
        {"order": ((0, 6, True), 0)},
        {"order": ((5, 1, True), 0)},
        {"order": ((0, 3, True), 0)},
        {"order": (0, (3, 1, True), (3, 1, True))},
        {"base": "000009-00000009"},
    ],
)
def test_an_image_that_does_not_fit_its_base_is_refused(
    store: Snapshots, base: Manifest, wrong: dict[str, object]
) -> None:
    """Another base, another order of its groups, groups that are not there or there twice."""
    with pytest.raises(SnapshotError):
        store.write(told(base, **wrong), base=base, cell=2, at=0.0, variables=())  # type: ignore[arg-type]
    assert list(store.ids()) == [base.id]
