"""What cave logs goes to the standard library's loggers below `cave`, never to stdout.

Whoever sets up logging has it there; nobody sees less than warnings, on stderr.
"""

from __future__ import annotations

import logging
from typing import cast

import structlog


def logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger of that name; facts are given by keyword."""
    made = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return cast("structlog.stdlib.BoundLogger", made)


def retries() -> None:
    """Have repeated calls logged there too, where structlog would print them; hooks that this
    process has set stay."""
    from stamina import instrumentation

    printing = instrumentation.StructlogOnRetryHook.hook_factory()
    hooks = instrumentation.get_on_retry_hooks()
    ours = [getattr(hook, "__module__", "") == printing.__module__ for hook in hooks]
    if any(ours) and not structlog.is_configured():
        instrumentation.set_on_retry_hooks(
            [
                instrumentation.LoggingOnRetryHook if our else hook
                for our, hook in zip(ours, hooks, strict=True)
            ]
        )
