"""The host's snapshots: one immutable, signed file each, in the session's folder.

`pack` is the file's format, `tree` how large buffers lie in it, `manifest` what it says;
`write` puts images there, `plan` finds the way back, `retire` lets go of what nobody needs.
`Snapshots` is all of it for one session.
"""

from __future__ import annotations

from .diff import differences
from .keep import Reserve, Retention, home_key, sweep
from .manifest import Group, Manifest
from .plan import Plan
from .retire import Retired
from .store import Snapshots
from .verify import Fault

__all__ = [
    "Fault",
    "Group",
    "Manifest",
    "Plan",
    "Reserve",
    "Retention",
    "Retired",
    "Snapshots",
    "differences",
    "home_key",
    "sweep",
]
