"""`python -m tests.attacks`: every attack under each profile, as a table."""

from __future__ import annotations

import os

from tests.attacks import _run


def main() -> None:
    """Run all and print; as root also as an ordinary user."""
    users = {"ordinary": True} if os.getuid() else {"root": False, "ordinary": True}
    found = {
        f"{profile}, {user}": _run.run(profile, ordinary=ordinary)
        for user, ordinary in users.items()
        for profile in ("open", "confined")
    }
    print(_run.table(found))
    for title, one in found.items():
        print(f"\n{title}: {'; '.join(one.layers) or 'no layer'}")
        for line in one.degraded:
            print(f"  {line}")


if __name__ == "__main__":
    main()
