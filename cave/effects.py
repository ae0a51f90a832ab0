"""Skills and what they did to the world. A part of `cave.session.AsyncSession`."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, get_args

from cave import broker
from cave.broker.pen import Pen
from cave.display import InDoubt
from cave.errors import ConfigError, EffectInDoubt, NotPortable, SkillError
from cave.events import Decision, EffectSettled, SkillRef, SkillsOffered, StoredValue
from cave.history import History
from cave.home import Home
from cave.journal import Journal
from cave.kernel import values
from cave.ledger import Entry
from cave.lineage import Lineage
from cave.loop import Work
from cave.operations import Operations, carried
from cave.policy.masking import Mask
from cave.policy.veil import Veil
from cave.ports import Declared, Holder, Kernel
from cave.skills import FolderSkill, Registry, Skill, SkillContext, skill
from cave.skills.discovery import discover
from cave.turn import Effect

_ANYTHING = [
    {"name": "args", "kind": "VAR_POSITIONAL", "required": False, "default": None},
    {"name": "kwargs", "kind": "VAR_KEYWORD", "required": False, "default": None},
]


_LONGEST = 500
"""Characters of a description that the operator is shown."""
PATIENCE = 5.0
"""Seconds that an answer of a person waits for another process that operates the session."""


def _quietly(text: str) -> None:
    """Nobody is told."""


class Effects:
    """What a session lets its cells call, and what became of their calls."""

    name: str
    home: Home
    _operations: Operations
    _journal: Journal
    _fold: History
    _work: Work
    _lineage: Lineage
    _mask: Mask

    def _begin_effects(self, owner: Holder) -> None:
        self._registry = Registry()
        self._given: tuple[Any, ...] = ()
        self._defined: dict[tuple[str, str], Skill] = {}
        """Skills by name and hash, as kernels got them."""
        self._told: tuple[int, int, tuple[SkillRef, ...], set[str]] = (0, 0, (), set())
        """What was told to which kernel."""
        self._found: Registry | None = None
        """What was discovered, for the operator to choose from."""
        self._use = _user_of(self.use_skill)
        from cave.snapshot import Reserve

        pen = Pen(
            self._journal,
            self.home.blobs,
            owner=owner,
            kernel=lambda: self._work.supply.number,
            encode=values.encode,
            reserve=Reserve(self.home.path / "reserve"),
            veil=lambda: self._mask.veil,
        )
        codec = broker.Codec(
            values.encode, lambda value: values.decode(value, name="arguments"), values.digest
        )
        self._asking = broker.Asking(pen, self._rules, codec, lambda name: self.find(name, ""))
        self._broker = broker.Broker(pen, self, self._asking)
        self._work.vet = self._asking.cell
        self._work.offer = self._offer
        self._work.supply.meet = self._meet

    @abstractmethod
    def _rules(self) -> broker.Rules: ...

    # -- skills ------------------------------------------------------------------------------

    @property
    def skills(self) -> Registry:
        """What cells may call; `skills.add(...)` takes skills, modules, folders, packages."""
        return self._registry

    def skill(self, function: Any) -> Any:
        """Decorate: add a skill, or what `@cave.skill` makes of a function."""
        (entry,) = self._registry.add(function)
        return entry

    def use_skill(self, name: str) -> str:
        """Activate a skill that was discovered; gives the text that the operator reads.

        Its functions can be called from the next cell on. Raises `SkillError`.
        """
        if name in self._registry:
            return self._registry.use(name)
        if self._found is None:
            self._found = discover().registry
        text = self._found.use(name)
        self._registry.add(self._found[name])
        return text

    async def _catalogue(self) -> str:
        """What the operator is told of skills: functions to call, instructions to read."""
        if self._found is None:
            self._found = (await asyncio.to_thread(discover)).registry
        return catalogue(self._registry, self._found)

    @property
    def _callable(self) -> tuple[Skill, ...]:
        """What cells may call now."""
        functions = self._registry.functions
        return functions if self._found is None else (*functions, self._use)

    def _give(self, skills: Sequence[Any]) -> None:
        """Add the skills of `open(skills=...)` once."""
        fresh = [skill for skill in skills if not any(skill is known for known in self._given)]
        if fresh:
            self._registry.add(*fresh)
            self._given += tuple(fresh)

    def find(self, name: str, hash: str) -> Skill | None:
        """The skill of that name as it was when the kernel got it; where no process has that any
        more, as it is now."""
        found = self._defined.get((name, hash))
        if found is not None:
            return found
        return next((s for s in self._callable if s.name == name), None)

    def _meet(self, kernel: Kernel) -> None:
        """Answer the calls of this kernel's cells from now on, also of one that runs already."""
        self._defined |= {(s.name, s.hash): s for s in self._callable}
        kernel.on_call = self._broker.answer

    async def _offer(self, kernel: Kernel) -> None:
        """Let the kernel's cells call the skills of now; says once when they are others."""
        functions = self._callable
        now = tuple(
            SkillRef(s.name, s.module, s.version, s.hash) for s in functions if s is not self._use
        )
        names = {ref.name for ref in now}
        gone = [ref for ref in self._fold.skills.values() if ref.name not in names]
        asks = {s.name for s in functions if self._asks(s)}
        told = (self._work.supply.number, len(functions), (*now, *gone), asks)
        if told == self._told or not (functions or gone):
            return
        self._defined |= {(s.name, s.hash): s for s in functions}
        declared = [*(_declared(s, asks=s.name in asks) for s in functions), *map(_missing, gone)]
        await kernel.define(declared, lease=self._journal.lease)
        acts = asks or any(s.effect != "none" for s in functions)
        if acts and not self._fold.lasting.latest and self._lineage.on:
            await self._lineage.take(kernel, self._work.supply.number)  # what cell 1 begins with
        if any(self._fold.skills.get(ref.name) != ref for ref in now):
            reopened = self._told[0] == 0
            changed = self._others(now) if reopened else ()
            await self._journal.append(SkillsOffered(skills=(*now, *gone), changed=changed))
        self._told = told

    async def _find_again(self) -> None:
        """In a session that an operator has worked in: what may be activated, and the folders
        that were, whose functions its cells know."""
        if self._found is not None or not self._fold.turns:
            return
        self._found = (await asyncio.to_thread(discover)).registry
        known = self._registry.functions
        used = {ref.module.partition(".")[0] for ref in self._fold.skills.values()
                if ref.name not in {s.name for s in known}}  # fmt: skip
        for entry in tuple(self._found):
            if isinstance(entry, FolderSkill) and entry.name.replace("-", "_") in used:
                with suppress(SkillError):  # calls of its functions say where they came from
                    self.use_skill(entry.name)

    def _asks(self, skill: Skill) -> bool:
        """Whether calls of this skill may need leave: its kernel asks before each then."""
        policy = self._rules().policy
        ruled = policy is not None and policy.concerns(skill.name, skill.effect)
        return ruled or skill.approval != "never"

    def _others(self, now: Sequence[SkillRef]) -> tuple[tuple[str, str, str], ...]:
        """Skills whose version or code is another than the session knew: name, then, now."""
        known = self._fold.skills
        pairs = [(known[ref.name], ref) for ref in now if ref.name in known]
        return tuple(
            (ref.name, was.version, ref.version if was.version != ref.version else "")
            for was, ref in pairs
            if (was.version, was.hash) != (ref.version, ref.hash)
        )

    # -- effects -----------------------------------------------------------------------------

    @property
    def in_doubt(self) -> InDoubt:
        """Effects of which nobody knows whether they were done; `settle` says it."""
        ledger = self._fold.ledger
        return InDoubt(map(ledger.effect, ledger.in_doubt()))

    def _require_settled(self) -> None:
        """Raises `EffectInDoubt` while a person has to say what became of an effect."""
        if not (waiting := self.in_doubt):
            return
        entries = self._fold.ledger.in_doubt()
        told = "; ".join(f"{e.id}, {e.intent.skill} {e.where}: {e.reason}" for e in entries)
        first = waiting[0].id
        raise EffectInDoubt(
            f"session {self.name!r} waits until somebody says of these effects whether they were "
            f"done ({told}). Look them up, then type s.settle({first!r}, 'done', result=...), "
            f"s.settle({first!r}, 'not_done') or s.settle({first!r}, 'give_up')"
        )

    @carried
    async def settle(self, id: str, decision: Decision, *, result: Any = None) -> Effect:
        """Say what became of an effect in doubt: `done` (with its result), `not_done` (it is
        called when its cell is gone on with), `give_up` (it never is).

        Raises `ConfigError` for what is not in doubt.
        """
        if decision not in get_args(Decision):
            raise ConfigError(f"{decision!r} is not one of {', '.join(get_args(Decision))}")
        if result is not None and decision != "done":
            raise ConfigError("result= goes with 'done' alone")
        stored = await self._stored(result)
        async with self._journal.operation(wait=PATIENCE):
            entry = self._fold.ledger.entries.get(id)
            if entry is None or entry.state != "in_doubt":
                there = ", ".join(e.id for e in self.in_doubt) or "none"
                state = f"is {entry.state}" if entry is not None else "is none of this session"
                raise ConfigError(f"effect {id!r} {state}; in doubt: {there}")
            same = self._fold.ledger.entries.get(entry.first.repeats.removeprefix("/"))
            if stored is None and decision == "done" and same is not None:
                stored = same.value
            await self._journal.append(
                EffectSettled(effect=id, decision=decision, value=stored), sync=True
            )
            return self._fold.ledger.effect(self._fold.ledger.entries[id])

    @carried
    async def undo(self, id: str, *, tell: Callable[[str], None] = _quietly) -> Effect:
        """Call what the skill of an effect names as `undo=`, with its arguments (and `result`,
        what it gave); gives the effect, which does not stand any more.

        Called again after a death it goes on with the same key, or asks. Raises `ConfigError`
        for what cannot be undone, `EffectInDoubt`, and `SkillError` for what the compensation
        raised: then it may be called again.
        """
        async with self._journal.operation(wait=PATIENCE) as news:
            if news:
                await self._broker.ask_about_left_open()
            entry = self._undoable(id)
            undoing = await self._undoing(entry, tell)
            answer = await self._broker.undo(entry, undoing)
            if answer.fault is not None and not self._fold.ledger.entries[id].undone:
                raise SkillError(
                    f"effect {id} still stands: {undoing.skill.name!r} raised "
                    f"{answer.fault.name}: {answer.fault.message}"
                )
            return self._fold.ledger.effect(self._fold.ledger.entries[id])

    def _undoable(self, id: str) -> Entry:
        ledger = self._fold.ledger
        entry = ledger.entries.get(id)
        if entry is None:
            there = ", ".join(e.id for e in ledger.entries.values() if e.stands and e.first.undo)
            raise ConfigError(
                f"no effect {id!r} in this session; that can be undone: {there or 'none'}"
            )
        if entry.undone:
            raise ConfigError(f"effect {id} was undone already, by {entry.undone}")
        if not entry.stands:
            raise ConfigError(f"effect {id} ({entry.said}) does not stand: it is {entry.state}")
        if not entry.first.undo or entry.first.given is None:
            raise ConfigError(
                f"effect {id} cannot be undone by cave: skill {entry.intent.skill!r} has no undo=; "
                f"what it did, {entry.said}, is for you to take back"
            )
        return entry

    async def _undoing(self, entry: Entry, tell: Callable[[str], None]) -> broker.Undoing:
        owner = self._known_skill(entry.intent.skill)
        if owner is None:
            await self._catalogue()  # what can be discovered
            owner = self._known_skill(entry.intent.skill)
        if not isinstance(owner, Skill):
            raise SkillError(
                f"skill {entry.intent.skill!r} of effect {entry.id} is not in this session now: it "
                f"came from module {entry.intent.module!r}; add it with s.skills.add(...)"
            )
        given, value = entry.first.given, entry.value
        assert given is not None
        return broker.Undoing(
            broker.compensation(owner.undo or entry.first.undo, self._known_skill),
            await asyncio.to_thread(read_value, given, self.home, self._mask.veil),
            None
            if value is None
            else await asyncio.to_thread(read_value, value, self.home, self._mask.veil),
            broker.NoCell(tell),
        )

    def _known_skill(self, name: str) -> Any:
        """The skill of that name, of this session or one that was discovered."""
        found = self._registry.get(name)
        return found if found is not None or self._found is None else self._found.get(name)

    async def _stored(self, result: Any) -> StoredValue | None:
        if result is None:
            return None
        try:
            encoded = values.encode(result)
        except NotPortable as error:
            raise ConfigError(f"result={result!r:.80} cannot be kept: {error}") from error
        return await broker.store(encoded, self.home.blobs, self._mask.veil)


def read_value(stored: StoredValue, home: Home, veil: Veil | None = None) -> Any:
    """The object of what a skill gave; None for what only a kernel may read."""
    encoded = broker.load(stored, home.blobs, veil)
    return values.decode(encoded, name="result") if encoded.kind == "safe" else None


def catalogue(active: Registry, found: Registry) -> str:
    """Functions of `active` with their signatures, then names of what may be activated."""
    calls = [f"- {s.signature}: {_line(s.description)}" for s in active.functions]
    waiting = [
        f"- {entry.name}: {_line(entry.description)}" for entry in found if entry.name not in active
    ]
    blocks = [
        ["Functions that cells can call by name, without importing them:", *calls],
        ["Instructions; before you do what one is for, run use_skill('its name'):", *waiting],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if len(block) > 1)


def _line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST]


def _user_of(use: Callable[[str], str]) -> Skill:
    @skill(runs="host")
    def use_skill(name: str, ctx: SkillContext) -> None:
        """Show the instructions of a skill; its functions can be called from the next cell on."""
        ctx.log(use(name))

    made: Skill = use_skill
    return made


def _declared(skill: Skill, *, asks: bool) -> Declared:
    told = {**skill.declaration(), "asks": asks}
    return Declared(told, skill.carried if skill.runs == "kernel" else None)


def _missing(ref: SkillRef) -> Declared:
    """The stand-in of a skill that the session had once: calling it says where it came from."""
    return Declared(
        {
            "name": ref.name,
            "doc": f"Not in this session now; it came from {ref.module}.",
            "signature": f"{ref.name}(*args, **kwargs)",
            "parameters": _ANYTHING,
            "returns": "",
            "effect": "none",
            "runs": "host",
            "hash": ref.hash,
            "version": ref.version,
            "module": ref.module,
            "is_async": False,
            "is_generator": False,
            "wants_context": False,
            "context": None,
        }
    )
