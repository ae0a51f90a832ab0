"""The host's side of one kernel: start it, adopt it, command it, see it die.

`start` brings a kernel up under a keeper and gives a `Kernel` (the protocol of
`cave.ports`); `adopt` finds the kernel that an earlier host started; `left_behind` reads
what a dead one had put out. The messages are listed in `cave/inkernel/__init__.py`, the
spool's format in `cave/inkernel/spool.py`, the record of a kernel in `launch.Record`.

Only this package and `cave.inkernel` know of Jupyter's protocol and ZMQ.
"""

from cave.kernel.confinement import Confinement
from cave.kernel.images import Capture, Stale
from cave.kernel.kernel import Kernel
from cave.kernel.launch import Launch
from cave.kernel.pending import discard, item, pending, progress
from cave.kernel.start import adopt, left_behind, start

__all__ = [
    "Capture",
    "Confinement",
    "Kernel",
    "Launch",
    "Stale",
    "adopt",
    "discard",
    "item",
    "left_behind",
    "pending",
    "progress",
    "start",
]
