"""What differs between two snapshots, by name, without loading anything."""

from __future__ import annotations

from collections.abc import Collection

from cave.report import Diff

from .manifest import Entry, Manifest


def differences(old: Manifest, new: Manifest, *, touched: Collection[str] | None = None) -> Diff:
    """Variables that differ in content.

    What is stored together can only be compared together: of a group of several names that
    differs, those in `touched` count as changed, and all when none of them is known.
    """
    before, after = _groups(old), _groups(new)
    sides: dict[str, list[str]] = {"changed": [], "unchanged": []}
    for name, entry in after.items():
        if name in before:
            other = _other(before[name], entry, name, touched)
            sides["changed" if other else "unchanged"].append(name)
    return Diff(
        added=tuple(name for name in after if name not in before),
        changed=tuple(sides["changed"]),
        removed=tuple(name for name in before if name not in after),
        unchanged=tuple(sides["unchanged"]),
    )


def _groups(manifest: Manifest) -> dict[str, Entry]:
    return {v.name: entry for entry in manifest.entries for v in entry.variables}


def _other(one: Entry, two: Entry, name: str, touched: Collection[str] | None) -> bool:
    if one is two or (one.group.names == two.group.names and _same(one, two)):
        return False
    together = {*one.group.names, *two.group.names}
    if touched is None or len(together) == 1 or not together & set(touched):
        return True
    return name in touched


def _same(one: Entry, two: Entry) -> bool:
    damaged = one.group.damage or two.group.damage
    return not damaged and one.group.content == two.group.content
