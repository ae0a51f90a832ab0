"""SQLAlchemy's object side: sessions without their transaction, factories, mapped classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .frozen import frozen
from .lost import Lost
from .recipes_databases import users
from .rules import rule

if TYPE_CHECKING:
    from .pickler import Pickler

_PENDING = ("new", "dirty", "deleted")


@rule("sqlalchemy.orm.session.Session", derived=True)
def _session(pickler: Pickler, obj: Any) -> Any:
    waiting = {name: len(getattr(obj, name)) for name in _PENDING}
    if any(waiting.values()):
        what = ", ".join(f"{count} {name}" for name, count in waiting.items() if count)
        return pickler.lose(obj, f"it has objects that are not written yet ({what}); commit first")
    how = "a new session on its engine, with the objects that it had loaded"
    if obj.in_transaction():
        how += "; its transaction is gone, and with it what was flushed and not committed"
    pickler.rebuilt(obj, how)
    settings = {"bind": obj.bind, "autoflush": obj.autoflush,
                "expire_on_commit": obj.expire_on_commit}  # fmt: skip
    loaded = list(obj.identity_map.values())
    return make_orm_session, (_public(type(obj)), settings), loaded, None, None, fill_orm_session


def _public(kind: type) -> type:
    """The class of sessions itself: a factory makes a nameless one for its sessions."""
    return kind.__mro__[1] if kind.__module__.startswith("sqlalchemy.") and len(kind.__mro__) > 2 \
        and kind.__mro__[1].__name__ == kind.__name__ else kind  # fmt: skip


@frozen
def make_orm_session(kind: Any, settings: dict[str, Any]) -> Any:
    """A session without a transaction."""
    return settings["bind"] if isinstance(settings["bind"], Lost) else kind(**settings)


@frozen
def fill_orm_session(made: Any, loaded: list[Any]) -> None:
    """The objects that it had loaded are its own again."""
    if not isinstance(made, Lost):
        made.add_all(loaded)


@rule("sqlalchemy.orm.session.sessionmaker", "sqlalchemy.ext.asyncio.session.async_sessionmaker")
def _factory(_: Pickler, obj: Any) -> Any:
    return make_orm_factory, (type(obj), _public(obj.class_), dict(obj.kw))


@frozen
def make_orm_factory(kind: Any, session: Any, settings: dict[str, Any]) -> Any:
    """A factory of sessions."""
    bind = settings.get("bind")
    return bind if isinstance(bind, Lost) else kind(class_=session, **settings)


@rule("sqlalchemy.orm.scoping.scoped_session")
def _scoped(pickler: Pickler, obj: Any) -> Any:
    pickler.rebuilt(obj, "it makes a new session at its first use")
    return make_scoped_session, (obj.session_factory,)


@frozen
def make_scoped_session(factory: Any) -> Any:
    """One session for each thread."""
    kind = users("sqlalchemy.orm").scoped_session
    return factory if isinstance(factory, Lost) else kind(factory)


_MAPPED = "a class that SQLAlchemy maps to a table; run the cell that defines it again"


@rule("sqlalchemy.orm.decl_api.DeclarativeAttributeIntercept",
      "sqlalchemy.orm.decl_api.DeclarativeMeta")  # fmt: skip
def _mapped_class(pickler: Pickler, obj: type) -> Any:
    """Its mapper is bound to a registry in this process; written, it could not be read."""
    if not pickler.inline or not pickler.definitions.is_definition(obj):
        return NotImplemented
    return pickler.lose(obj, _MAPPED)


@rule("sqlalchemy.orm.decl_api.DeclarativeBase", derived=True)
def _mapped_row(pickler: Pickler, obj: Any) -> Any:
    return pickler.lose(obj, "a row as an object of a mapped class; query it again")
