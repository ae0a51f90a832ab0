"""Sessions of HTTP clients: their settings, without passwords and tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import secrets
from .frozen import frozen
from .recipes_processes import losing
from .remarks import remark
from .rules import rule

if TYPE_CHECKING:
    from .pickler import Pickler


def _hidden(pickler: Pickler, obj: Any, secret: dict[str, Any], what: str) -> None:
    """Say which headers (or the like) are not written, and where they come from instead."""
    for name, place in secret.items():
        pickler.rebuilt(obj, f"its {what} {name!r} {secrets.where(place)}")


def _missing(root: str, kind: str, names: list[str], what: str) -> None:
    for name in names:
        remark("changed", root, kind, f"it has no {what} {name!r}: secrets are not kept")


# -- requests ------------------------------------------------------------------------------------


@rule("requests.sessions.Session", derived=True)
def _requests(pickler: Pickler, obj: Any) -> Any:
    """As requests pickles it, but for secrets and cookies that identify somebody."""
    state = dict(obj.__getstate__())
    headers, secret = secrets.split(dict(state["headers"]))
    params = state["params"]
    in_params: dict[str, Any] = {}
    if isinstance(params, dict):
        params, in_params = secrets.split(params)
    cookies, in_cookies = _cookies(state["cookies"])
    _hidden(pickler, obj, secret, "header")
    _hidden(pickler, obj, in_params, "parameter")
    _hidden(pickler, obj, in_cookies, "cookie")
    proxies = {name: secrets.without_password(url) for name, url in state["proxies"].items()}
    if proxies != state["proxies"]:
        pickler.rebuilt(obj, "its proxies have no passwords")
    auth = _auth(pickler, obj, state["auth"])
    own = {name: value for name, value in vars(obj).items() if name not in obj.__attrs__}
    state.update(headers=headers, params=params, proxies=proxies, auth=auth, cookies=cookies)
    what = {"headers": secret, "params": in_params}
    args = (pickler.root, type(obj))
    return make_requests, args, (state, own, what), None, None, fill_requests


def _cookies(jar: Any) -> tuple[Any, dict[str, Any]]:
    kept = jar.copy()
    gone: dict[str, Any] = {}
    for cookie in list(kept):
        if secrets.is_secret(cookie.name, cookie.value or ""):
            gone[cookie.name] = None
            kept.clear(cookie.domain, cookie.path, cookie.name)
    return kept, gone


def _auth(pickler: Pickler, obj: Any, auth: Any) -> Any:
    if not (isinstance(auth, tuple) and len(auth) == 2):
        return auth
    place = secrets.reference(_text(auth[1]))
    pickler.rebuilt(obj, f"the password of its auth {secrets.where(place)}")
    return Password(auth[0], place)


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


@frozen
class Password:
    """A user's name, and where the environment has the password."""

    def __init__(self, user: Any, place: Any) -> None:
        self.user = user
        self.place = place

    def __reduce__(self) -> Any:
        return Password, (self.user, self.place)


@frozen
def make_requests(root: str, kind: Any) -> Any:
    """A session without its settings."""
    made = kind.__new__(kind)
    made.__dict__["_cave_root"] = root
    return made


@frozen
def fill_requests(made: Any, state: tuple[Any, ...]) -> None:
    """Its settings, and what secrets the environment has."""
    import requests

    settings, own, hidden = state
    root = made.__dict__.pop("_cave_root")
    if isinstance(settings["auth"], Password):
        settings["auth"] = _open(root, settings["auth"])
    settings["headers"] = requests.structures.CaseInsensitiveDict(settings["headers"])
    for name, places in hidden.items():
        there, missing = secrets.joined(places)
        if there:
            settings[name].update(there)
        _missing(root, "requests.Session", missing, name.rstrip("s"))
    made.__setstate__(settings)
    vars(made).update(own)


def _open(root: str, auth: Password) -> Any:
    password = secrets.resolve(auth.place)
    if password is None:
        remark("changed", root, "auth", f"{auth.user!r} has no password: secrets are not kept")
        return None
    return auth.user, password


@rule("requests.auth.HTTPBasicAuth", "requests.auth.HTTPDigestAuth", "requests.auth.HTTPProxyAuth")
def _basic_auth(pickler: Pickler, obj: Any) -> Any:
    place = secrets.reference(_text(obj.password))
    pickler.rebuilt(obj, f"its password {secrets.where(place)}")
    return make_auth, (pickler.root, type(obj), obj.username, place)


@frozen
def make_auth(root: str, kind: Any, user: Any, place: Any) -> Any:
    """User and password."""
    password = secrets.resolve(place)
    if password is None:
        remark("changed", root, "auth", f"{user!r} has no password: secrets are not kept")
    return kind(user, password or "")


@rule("requests.models.Response")
def _response(pickler: Pickler, obj: Any) -> Any:
    """Pickling an answer reads it to its end, which one that is streamed must not be."""
    if not obj._content_consumed:
        return pickler.lose(obj, "an answer that is not read to its end; ask again")
    state = dict(obj.__getstate__())
    request = state.get("request")
    if request is not None:
        state["request"] = _without_secrets(pickler, obj, request)
    return make_response, (type(obj),), state, None, None, fill_response


def _without_secrets(pickler: Pickler, obj: Any, request: Any) -> Any:
    plain, secret = secrets.split(dict(request.headers or {}))
    if not secret:
        return request
    pickler.rebuilt(obj, f"its request has no headers {', '.join(secret)}: secrets are not kept")
    copied = request.copy()
    copied.headers = type(request.headers)(plain)
    copied._cookies = None
    return copied


@frozen
def make_response(kind: Any) -> Any:
    """An answer, still empty."""
    return kind.__new__(kind)


@frozen
def fill_response(made: Any, state: dict[str, Any]) -> None:
    """Its content."""
    made.__setstate__(state)


@rule("requests.models.PreparedRequest")
def _prepared(pickler: Pickler, obj: Any) -> Any:
    kept = _without_secrets(pickler, obj, obj)
    return make_response, (type(obj),), dict(vars(kept)), None, None, fill_prepared


@frozen
def fill_prepared(made: Any, state: dict[str, Any]) -> None:
    """Its content."""
    vars(made).update(state)


# -- httpx ---------------------------------------------------------------------------------------

_KEPT = ("params", "timeout", "follow_redirects", "max_redirects", "base_url", "trust_env")


@rule(*(f"{module}.{kind}" for module in ("httpx", "httpx._client", "httpx2", "httpx2._client")
        for kind in ("Client", "AsyncClient")))  # fmt: skip
def _httpx(pickler: Pickler, obj: Any) -> Any:
    headers, secret = secrets.split(dict(obj.headers))
    params, in_params = secrets.split(dict(obj.params))
    jar = list(obj.cookies.jar)
    cookies = {c.name: c.value for c in jar if not secrets.is_secret(c.name, c.value or "")}
    _hidden(pickler, obj, secret, "header")
    _hidden(pickler, obj, in_params, "parameter")
    if len(cookies) < len(jar):
        pickler.rebuilt(obj, f"{len(jar) - len(cookies)} of its cookies are not kept")
    auth = "; its auth is not kept" if obj.auth is not None else ""
    pickler.rebuilt(
        obj, f"a new client with its settings{auth}; transports, proxies, certificates and hooks "
        "must be given again"
    )  # fmt: skip
    timeout = {name: getattr(obj.timeout, name) for name in ("connect", "read", "write", "pool")}
    url = str(obj.base_url.copy_with(username=None, password=None)) if obj.base_url.userinfo \
        else str(obj.base_url)  # fmt: skip
    settings = {"headers": headers, "params": params, "cookies": cookies, "base_url": url,
                "follow_redirects": obj.follow_redirects, "max_redirects": obj.max_redirects,
                "trust_env": obj.trust_env, "timeout": timeout}  # fmt: skip
    what = {"headers": secret, "params": in_params}
    args = (pickler.root, type(obj), settings, what, obj.is_closed)
    return make_httpx, args


@frozen
def make_httpx(
    root: str,
    kind: Any,
    settings: dict[str, Any],
    hidden: dict[str, Any],
    closed: Any,
) -> Any:
    """A client with these settings, and what secrets the environment has."""
    import sys

    library = sys.modules[kind.__module__.partition(".")[0]]
    for name, places in hidden.items():
        there, missing = secrets.joined(places)
        settings[name] = {**settings[name], **there}
        _missing(root, "httpx.Client", missing, name.rstrip("s"))
    settings["timeout"] = library.Timeout(**settings["timeout"])
    made = kind(**settings)
    if closed:
        made._state = type(made._state).CLOSED
    return made


losing(
    "a client of a service, with its connections and keys; make it again",
    "anthropic._base_client.BaseClient", "openai._base_client.BaseClient",
    "botocore.client.BaseClient", "boto3.session.Session", "paramiko.client.SSHClient",
    "paramiko.transport.Transport", "aiohttp.client.ClientSession", "grpc._channel.Channel",
    "google.cloud.client.Client",
)  # fmt: skip
