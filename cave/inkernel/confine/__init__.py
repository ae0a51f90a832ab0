"""What a kernel's process may do: layers that it puts on itself before anything else runs.

`apply(plan)` is called with one thread, before the exec of a kernel's interpreter or in a
process that was forked to become a kernel. It needs the standard library alone and cannot be
undone. The host makes the plan, of plain JSON (see `cave/kernel/confinement.py`):

::

    read, write     paths; folders with all below them
    devices         paths of devices that are written to
    limits          {"data" | "file" | "processes" | "cpu": number}
    sockets         "sealed": none can be made or connected; "proxied": TCP alone, to connect
                    with; "internet": no local ones; "any"
    hosts           what the proxy of this kernel lets through; empty where it has none
    uid             user to become where the host is root, or None
    layers          names of what is to be put on, of LAYERS

What could be put on and what not is answered, never raised: whether to go on without a layer
is for the host to say.
"""

from .layers import LAYERS, Report, apply
from .privileges import hide

__all__ = ["LAYERS", "Report", "apply", "hide"]
