"""The policy of a session: what its cells may touch, and which calls need a person's leave.

A `Rule` gives `allow`, `ask` or `deny` for cells (by an imported module, a path that is
written down, a resource) and for calls of skills (by name, tier, or a function of the call).
What a rule reads in a cell is its text: a cell that hides a name escapes the rule, and the
confinement of the kernel, not the rule, is what holds then.
"""

from __future__ import annotations

import ast
import fnmatch
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, get_args

from cave import config
from cave.errors import ConfigError
from cave.proxy.hosts import entries

Profile = Literal["open", "confined", "vetted", "remote"]
Confinement = Literal["degrade", "require"]
KeepSecrets = Literal["reference", "never"]
Decision = Literal["allow", "ask", "deny"]
Tier = Literal["none", "read", "write"]

_STRICT: dict[Decision, int] = {"allow": 0, "ask": 1, "deny": 2}
_SELECTORS = ("module", "path", "resource", "skill", "tier", "when")


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a skill as rules see it."""

    skill: str
    tier: Tier = "none"
    """What the skill declares as its `effect`."""
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the rules say, and why; the reason is told to the operator and to whoever answers."""

    decision: Decision
    reason: str = ""
    rule: str = ""
    """The rule that decided, in words; empty where none did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule; it holds where all that it selects by is met.

    For cells: `module` (a name or pattern: `requests`, `urllib.*`), `path` (a pattern of paths
    in string literals), `resource` (the name of one). For skills: `skill` (a name or pattern),
    `tier` (what the skill declares as its effect), `when` (a function of the `Call`).
    """

    decision: Decision = "ask"
    module: str | None = None
    path: str | None = None
    resource: str | None = None
    skill: str | None = None
    tier: Tier | None = None
    when: Callable[[Call], object] | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        _choice("a rule's decision", self.decision, get_args(Decision))
        if self.tier is not None:
            _choice("a rule's tier", self.tier, get_args(Tier))
        for name in ("module", "path", "resource", "skill"):
            value: object = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise ConfigError(f"a rule's {name} is {value!r}, not a name or a pattern")
        if self.when is not None and not callable(self.when):
            raise ConfigError(f"a rule's when is {self.when!r}, not a function of the call")
        if not (self.for_cells or self.for_skills):
            raise ConfigError(f"a rule selects by nothing: give it one of {', '.join(_SELECTORS)}")
        if self.for_cells and self.for_skills:
            raise ConfigError(
                f"a rule is for cells (module, path, resource) or for skills (skill, tier, "
                f"when), not for both: {self}; write two rules"
            )

    @property
    def for_cells(self) -> bool:
        """Whether it is about the text of cells."""
        return (self.module, self.path, self.resource) != (None, None, None)

    @property
    def for_skills(self) -> bool:
        """Whether it is about calls of skills."""
        return (self.skill, self.tier, self.when) != (None, None, None)

    def __str__(self) -> str:
        told = [
            f"{name}={getattr(self, name)!r}"
            for name in _SELECTORS[:-1]
            if getattr(self, name) is not None
        ]
        if self.when is not None:
            told.append(f"when={getattr(self.when, '__name__', repr(self.when))}")
        return f"{self.decision} {', '.join(told)}"

    def names(self, skill: str, tier: Tier) -> bool:
        """Whether it is about calls of this skill, `when` aside."""
        if not self.for_skills or self.tier not in {None, tier}:
            return False
        return self.skill is None or fnmatch.fnmatchcase(skill, self.skill)

    def judge(self, call: Call) -> Verdict | None:
        """What it says about this call; None when it is not about it. What `when` raises counts
        as a yes, and is told: it fails closed."""
        if not self.names(call.skill, call.tier):
            return None
        try:
            return self.verdict if self.when is None or self.when(call) else None
        except Exception as fault:  # noqa: BLE001  what breaks must not let the call through
            if self.decision == "allow":
                return None
            what = f"{type(fault).__name__}: {fault}".removesuffix(": ")
            return Verdict(self.decision, f"the rule {self} raised {what}", str(self))

    @property
    def verdict(self) -> Verdict:
        """What it says where it holds."""
        return Verdict(self.decision, self.reason or f"the policy has a rule: {self}", str(self))

    def reads(self, found: Mentions) -> bool:
        """Whether a cell that mentions this is one that the rule is about."""
        wanted = ((self.module, found.modules), (self.path, found.paths))
        for pattern, there in wanted:
            if pattern is not None and not any(_matches(pattern, name) for name in there):
                return False
        return self.for_cells and (self.resource is None or self.resource in found.names)


def _matches(pattern: str, name: str) -> bool:
    """Whether the pattern is about that module or path, or about one that holds it."""
    plain = pattern.rstrip("/")
    inside = name.startswith((f"{plain}.", f"{plain}/"))
    return inside or fnmatch.fnmatchcase(name, plain) or fnmatch.fnmatchcase(name, pattern)


@dataclass(frozen=True, slots=True)
class Mentions:
    """What a cell's text names: modules it imports, paths, names it reads."""

    modules: frozenset[str] = frozenset()
    paths: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()


def mentions(source: str) -> Mentions:
    """What a cell names. Raises `SyntaxError`, `ValueError`, `RecursionError` as `ast` does."""
    modules: set[str] = set()
    paths: set[str] = set()
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                modules.update(alias.name for alias in node.names)
            case ast.ImportFrom() if node.module:
                modules.add(node.module)
                modules.update(f"{node.module}.{alias.name}" for alias in node.names)
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
                if _last_name(function) in {"__import__", "import_module"}:
                    modules.add(name)
            case ast.Name():
                names.add(node.id)
            case _:
                pass
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            paths.update(_as_paths(node.value))
    return Mentions(frozenset(modules), frozenset(paths), frozenset(names))


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return node.attr
        case _:
            return ""


def _as_paths(text: str) -> Iterator[str]:
    """A literal as a path: as it stands, and normal, with the home folder in full."""
    if "\n" in text or "\0" in text or not text:
        return
    yield text
    yield os.path.normpath(os.path.expanduser(text))  # noqa: PTH111  a text, perhaps no path


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What cells may do. Paths are of the host; `cell_timeout` is in seconds (None: no limit).

    `profile`: `open` (no confinement), `confined` (the default), `vetted` (confined, and each
    cell is checked with RestrictedPython), `remote` (another machine's kernel).
    `allow_modules` implies `vetted`. Raises `ConfigError` for what contradicts itself.
    """

    profile: Profile = "confined"
    confinement: Confinement = "degrade"
    """What a missing layer does: a DEGRADED line on every run, or a refusal to start."""
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    """Hosts that cells may reach, by HTTP through a proxy: names (`api.example.com`,
    `*.example.com`, with `:port` where one is meant) and addresses (`10.1.2.3`, `10.0.0.0/8`).
    Local addresses have to be named as such. `*`: the internet, whole and without a proxy."""
    env: tuple[str, ...] = ()
    """Names of variables of the host's environment that cells see."""
    secrets: tuple[str, ...] = ()
    """Names of variables of the host's environment whose values are masked wherever they come
    out: output, errors, journal, exports, prompts, snapshots."""
    keep_secrets: KeepSecrets = "reference"
    """What snapshots keep of them: that a value comes from the environment (`reference`), or
    nothing (`never`: the variables that hold one are lost with their kernel)."""
    memory: int | None = None
    """Bytes that a process of the kernel may write to ("8 GB" is taken too); None: what the
    settings say, 0: no limit. The same below."""
    file_size: int | None = None
    """Bytes of the longest file that cells may write."""
    allow_modules: tuple[str, ...] | None = None
    """Of `vetted`: what cells may import; None means the usual modules of data work."""
    cell_timeout: float | None = None
    rules: tuple[Rule, ...] = ()
    approval_timeout: float | None = None
    """Seconds after which what nobody has approved counts as denied; None: it waits for ever."""

    def __init__(  # what is given as a list is kept as a tuple
        self,
        *,
        profile: Profile | None = None,
        confinement: Confinement = "degrade",
        read: Sequence[str | os.PathLike[str]] = (),
        write: Sequence[str | os.PathLike[str]] = (),
        network: Sequence[str] = (),
        env: Sequence[str] = (),
        secrets: Sequence[str] = (),
        keep_secrets: KeepSecrets = "reference",
        memory: int | str | None = None,
        file_size: int | str | None = None,
        allow_modules: Sequence[str] | None = None,
        cell_timeout: float | None = None,
        rules: Sequence[Rule | Mapping[str, Any]] = (),
        approval_timeout: float | None = None,
    ) -> None:
        implied: Profile = "confined" if allow_modules is None else "vetted"
        values = {
            "profile": _profile(profile, implied, restricts=allow_modules is not None),
            "confinement": _choice("confinement", confinement, get_args(Confinement)),
            "read": _texts("read", read),
            "write": _texts("write", write),
            "network": _hosts(network),
            "env": _variables("env", env),
            "secrets": _variables("secrets", secrets),
            "keep_secrets": _choice("keep_secrets", keep_secrets, get_args(KeepSecrets)),
            "memory": None if memory is None else config.size("memory", memory),
            "file_size": None if file_size is None else config.size("file_size", file_size),
            "allow_modules": None if allow_modules is None else _modules(allow_modules),
            "cell_timeout": cell_timeout,
            "rules": tuple(_rule(rule) for rule in _several("rules", rules)),
            "approval_timeout": approval_timeout,
        }
        config.check_seconds("cell_timeout", cell_timeout)
        config.check_seconds("approval_timeout", approval_timeout)
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if self.profile == "open" and confinement == "require":
            raise ConfigError(
                "confinement='require' contradicts profile='open', which has no layers; choose "
                "profile='confined', or leave confinement out"
            )

    @property
    def vetted(self) -> bool:
        """Whether each cell is checked before it runs."""
        return self.profile == "vetted"

    @property
    def holds_as(self) -> Literal["open", "confined"]:
        """The profile of the kernel's process."""
        return "open" if self.profile == "open" else "confined"

    def concerns(self, skill: str, tier: Tier) -> bool:
        """Whether any rule might be about calls of this skill."""
        return any(rule.decision != "allow" and rule.names(skill, tier) for rule in self.rules)

    def for_call(self, call: Call) -> Verdict:
        """What the rules say about a call of a skill; the strictest that covers it decides."""
        return _strictest(rule.judge(call) for rule in self.rules)

    def for_cell(self, source: str) -> Verdict:
        """What the rules say about a cell. A cell that cannot be parsed is not for them: it
        fails in the kernel. One that is too deep to read is denied where there are rules.
        Under `vetted` the cell's text is checked first.
        """
        if self.vetted:
            from cave.policy.vetting import refusal

            if why := refusal(source, self.allow_modules):
                return Verdict("deny", why, "vetted")
        about = [rule for rule in self.rules if rule.for_cells]
        if not about:
            return Verdict("allow")
        try:
            found = mentions(source)
        except SyntaxError:
            return self._unread(source, about)
        except (ValueError, RecursionError, MemoryError) as fault:
            return Verdict("deny", f"the rules cannot read this cell ({type(fault).__name__})")
        return _strictest(rule.verdict for rule in about if rule.reads(found))

    def _unread(self, source: str, about: list[Rule]) -> Verdict:
        """IPython's own syntax (`!ls`, `%run`): lines that Python knows are read alone."""
        from IPython.core.inputtransformer2 import TransformerManager

        manager = TransformerManager()  # type: ignore[no-untyped-call]
        try:
            found = mentions(manager.transform_cell(source))
        except SyntaxError:
            return Verdict("allow")
        except (ValueError, RecursionError, MemoryError) as fault:
            return Verdict("deny", f"the rules cannot read this cell ({type(fault).__name__})")
        return _strictest(rule.verdict for rule in about if rule.reads(found))

    @classmethod
    def load(cls, *, trusted: bool = True, **call: Any) -> Self:
        """The policy of the settings' files (`[tool.cave.policy]`, `[policy]` in cave.toml and
        in the user's config.toml), with `call` over it. Without `trusted` the project's files
        are left out: what comes with a project must not open doors by itself.
        """
        merged: dict[str, Any] = {}
        for source, values in config.tables("policy", project=trusted):
            cls.from_table(values, source=source)  # so that the fault names its file
            merged |= values
        return cls.from_table(merged | call, source="the call")

    @classmethod
    def of_files(cls, profile: str) -> Self | None:
        """The policy that the settings' files have, under the `profile` of the settings where
        they name none; None where no file has one. Raises `ConfigError` for what is wrong, and
        for a project's that is not trusted."""
        found = config.tables("policy")
        for source, _ in found:
            config.check_trust(source.removesuffix(" [policy]"), ["[policy]"])
        if not found:
            return None
        named = any(key in table for _, table in found for key in ("profile", "allow_modules"))
        return cls.load() if named else cls.load(profile=profile)

    @classmethod
    def from_table(cls, values: Mapping[str, Any], *, source: str) -> Self:
        """A policy from a table of TOML. Raises `ConfigError` naming `source` and the key."""
        known = [f.name for f in fields(cls)]
        for key in values:
            if key not in known:
                raise ConfigError(
                    f"{source}: there is no policy setting {key!r}; they are {', '.join(known)}"
                )
        try:
            return cls(**values)
        except ConfigError as fault:
            raise ConfigError(f"{source}: {fault}") from None


def strictest(*verdicts: Verdict) -> Verdict:
    """The one that counts where several are about the same; the first of equals."""
    return max(verdicts, key=lambda verdict: _STRICT[verdict.decision])


def _strictest(verdicts: Iterable[Verdict | None]) -> Verdict:
    said = [verdict for verdict in verdicts if verdict is not None]
    return strictest(*said) if said else Verdict("allow")


def _profile(given: Profile | None, implied: Profile, *, restricts: bool) -> Profile:
    if given is None:
        return implied
    _choice("profile", given, get_args(Profile))
    if restricts and given != "vetted":
        raise ConfigError(
            f"allow_modules needs profile='vetted' and profile is {given!r}; leave one of them out"
        )
    return given


def _choice(what: str, value: object, allowed: tuple[str, ...]) -> Any:
    if value not in allowed:
        raise ConfigError(f"{what} is {value!r}, not one of {', '.join(map(repr, allowed))}")
    return value


def _several(what: str, values: object) -> list[Any]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise ConfigError(f"{what} is {values!r}, not a list; type {what}=[{values!r}]")
    return list(values)


def _texts(what: str, values: object) -> tuple[str, ...]:
    texts = []
    for value in _several(what, values):
        text = os.fspath(value) if isinstance(value, os.PathLike) else value
        if not isinstance(text, str) or not text or "\0" in text:
            raise ConfigError(f"{what} has {value!r}, which is not a text")
        texts.append(text)
    return tuple(texts)


def _hosts(values: object) -> tuple[str, ...]:
    hosts = _texts("network", values)
    for host in hosts:
        try:
            if host != "*":
                entries(host)
        except ValueError:
            raise ConfigError(
                f"network has {host!r}: give a host such as 'api.example.com', '*.example.com', "
                f"'example.com:8443' or '10.0.0.0/8', no URL"
            ) from None
    return hosts


def _variables(what: str, values: object) -> tuple[str, ...]:
    names = _texts(what, values)
    for name in names:
        if "=" in name:
            raise ConfigError(
                f"{what} takes names of environment variables, not their values: type "
                f"{what}=[{name.partition('=')[0]!r}]"
            )
    return names


def _modules(values: object) -> tuple[str, ...]:
    names = _texts("allow_modules", values)
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(f"allow_modules has {name!r}, which is not the name of a module")
    return names


def _rule(value: object) -> Rule:
    if isinstance(value, Rule):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"rules has {value!r}, not a cave.policy.Rule")
    known = [f.name for f in fields(Rule) if f.name != "when"]
    for key in value:
        if key not in known:
            raise ConfigError(f"a rule has no {key!r}; it takes {', '.join(known)}")
    return Rule(**value)
