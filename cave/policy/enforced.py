"""What of a policy is enforced; the rest is refused, so that nobody relies on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cave.errors import ConfigError

if TYPE_CHECKING:
    from cave.policy.rules import Policy

_PROFILES = ("open", "confined", "vetted")


def check_policy(policy: Policy | None) -> None:
    """Raises `ConfigError` for what this version would not hold cells to."""
    if policy is None:
        return
    if policy.profile not in _PROFILES:
        raise ConfigError(
            f"profile {policy.profile!r} is not there in this version; choose 'confined', 'vetted' "
            f"or 'open'"
        )
