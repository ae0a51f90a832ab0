"""The prompt: system text, ended turns, the open turn; and what is shortened when it is long.

Ended turns are one request and one answer each; the facts of their cells stand at the head
of the request that follows. Shortening is decided by going through the journal once in its
order and keeps its decision until the next limit is met, so that the beginning of the prompt
changes rarely and not from step to step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

from cave.events import (
    CellFinished,
    CheckSpec,
    Event,
    Fault,
    KernelEnded,
    StepReplied,
    ValuesDeleted,
    ValuesPut,
    Variable,
)
from cave.history import History, OpenTurn
from cave.ports import Message, View
from cave.stream.cells import result, summary
from cave.stream.facts import DIGEST_TOKENS, digest, one_line
from cave.stream.news import news
from cave.stream.tokens import estimate
from cave.stream.window import Unit, Window, cost, shortened
from cave.turn import Cell, Turn, clip

SYSTEM = """\
You fulfil a person's requests by running Python cells in a live session that you share.

- Objects live in the session's kernel and stay there: variables, imports, functions and
  connections of earlier cells and turns still exist. Use them; do not load or make them again.
- Act one cell at a time: write a cell, then read its result before you write the next. The
  value of a cell's last line is shown, as in a notebook; print what else you need to see.
- After each cell you are told what it added (+), changed (~) or removed (-), with types,
  shapes and columns. Look at heads and aggregates, never print whole tables. Long output is
  cut in the middle; where a variable holds all of it, its name is given.
- Give each cell a one-line note that says what it is for.
- When a cell fails, read the error and change the code; the same code fails again. There is
  no input(). `await` works at the top level.
- If the kernel ends, its variables come back from the last snapshot. You are told what is lost or
  different; make again what you need of it.
- When the request is fulfilled, finish with a short answer that gives the result itself, with
  figures taken from outputs, and names the variables that hold it."""
"""What every session's operator is told first. How to write a cell is said by the operator."""

CONTEXT = 100_000
"""Tokens of context assumed where nobody knows."""
SHARE = 0.7
"""How much of the context the prompt may fill; the rest is for tools and the reply."""
SOURCE = 12_000
"""Characters of one cell's code."""
RAW = 2_000
"""Characters of a reply that could not be used."""


def view(
    history: History,
    *,
    context_tokens: int | None = None,
    skills: str = "",
    extra: Sequence[Message] = (),
) -> View:
    """The operator's view of the open turn, `extra` messages at its end.

    `skills` is the catalogue of what cells may call: it belongs to the text that stays.

    `context_tokens` is the size of the model's context; the oldest turns, then the oldest
    steps, are shortened to one line each when the prompt would fill more than its share.
    """
    turn = history.turn
    assert turn is not None, "there is no open turn to view"
    system = f"{SYSTEM}\n\n{skills}" if skills else SYSTEM
    window = _past(history, int((context_tokens or CONTEXT) * SHARE))
    window.fixed += estimate(skills)
    head = _head(window, history, turn)
    window.fixed += cost(head)
    note = _add_steps(window, history, turn)
    return View(
        system=system,
        messages=(*_messages(window, head, note), *extra),
        turn=turn.n,
        step=max(turn.asked, len(turn.steps) + (not turn.asked)),
        variables=tuple(history.variables.values()),
        error=_last_fault(history, turn),
    )


def _last_fault(history: History, turn: OpenTurn) -> Fault | None:
    last = history.cells.get(max(turn.cells.values(), default=0))
    if last is None or last.error is None:
        return None
    return Fault(last.error.name, last.error.message, last.error.traceback)


def _messages(window: Window, head: Message, note: tuple[int, Message] | None) -> list[Message]:
    messages = []
    if window.old_turns:
        messages.append(Message("user", shortened("turns", window.old_turns, window.limit)))
    messages += [m for unit in window.turns for m in unit.messages]
    messages.append(head)
    if window.old_steps:
        text = shortened("steps of this request", window.old_steps, window.limit)
        messages.append(Message("user", text))
    at = -1 if note is None else note[0] - len(window.old_steps)
    for number, unit in enumerate(window.steps):
        messages += unit.messages
        if note is not None and number == at:
            messages.append(note[1])
    return messages


# -- turns -----------------------------------------------------------------------------------

_windows: WeakKeyDictionary[History, tuple[tuple[Turn, ...], Window]] = WeakKeyDictionary()
"""What the ended turns of a history came to, so that a step does not tell them again."""


def _past(history: History, limit: int) -> Window:
    """The window with all turns that have ended. Turns are values: the same ones tell the same."""
    turns = tuple(history.turns[n] for n in history.past)
    known, window = _windows.get(history, ((), None))
    if window is None or window.limit != limit or turns[: len(known)] != known:
        known, window = (), Window(limit, fixed=estimate(SYSTEM))
    for turn in turns[len(known) :]:
        _add_turn(window, history, history.past[turn.n], turn)
    _windows[history] = turns, window
    return window.copy()


def _add_turn(window: Window, history: History, past: OpenTurn, turn: Turn) -> None:
    head = _head(window, history, past)
    ending = "" if turn.status == "done" else f"({turn.status}: {turn.reason or 'no answer'})"
    answer = "\n".join(filter(None, [turn.answer, ending])) or "(no answer)"
    unit = Unit([head, Message("answer", answer)], _turn_line(turn))
    window.turns.append(unit)


def _turn_line(turn: Turn) -> str:
    cells = len(turn.cells)
    said = one_line(turn.answer or turn.reason, 200)
    return (
        f'turn {turn.n}: "{one_line(turn.prompt, 120)}" -> {turn.status}, '
        f"{cells} cell{'s' * (cells != 1)}: {said}"
    )


def _head(window: Window, history: History, turn: OpenTurn) -> Message:
    """The request with what must be known to fulfil it: what ran, what happened, what is there."""
    first = turn.n == min(history.past, default=turn.n)
    blocks = [_previous(history, turn), news(history, turn.before, first=first)]
    coming = estimate(turn.prompt) + sum(map(estimate, blocks))
    ended = any(isinstance(e, KernelEnded) for e in turn.before)
    if window.shorten(coming) or first or ended:
        blocks.append(_digest(turn.variables, window.limit, turn.prompt))
    blocks = [block for block in blocks if block]
    request = "\n\n".join(filter(None, [turn.prompt, _conditions(turn)]))
    if not blocks:
        return Message("user", request)
    return Message("user", "\n\n".join([*blocks, f"Request:\n{request}"]))


def _conditions(turn: OpenTurn) -> str:
    """What has to hold when the request is fulfilled."""
    lines = [f"- {one_line(_condition(check), 300)}" for check in turn.checks]
    return "\n".join(["It is fulfilled when all of this holds:", *lines]) if lines else ""


def _condition(check: CheckSpec) -> str:
    match check.kind:
        case "sql":
            return f"{check.on} gives no rows for: {check.text}"
        case "file":
            return f"the file {check.text!r} is there"
        case _:
            return check.name if check.name == check.text else f"{check.name}: {check.text}"


def _previous(history: History, turn: OpenTurn) -> str:
    """The facts of the cells of the turn before."""
    before = history.turns.get(turn.n - 1)
    if before is None or not before.cells:
        return ""
    return "\n".join(["Run for the request before:", *map(summary, before.cells)])


def _digest(variables: Iterable[Variable], limit: int, words: str = "") -> str:
    listed = tuple(variables)
    if not listed:
        return "The kernel holds no variables yet."
    text = digest(listed, min(DIGEST_TOKENS, limit // 8), words=words)
    return f"Variables in the kernel:\n{text}"


# -- steps -----------------------------------------------------------------------------------


def _add_steps(window: Window, history: History, turn: OpenTurn) -> tuple[int, Message] | None:
    """Add what was done in the open turn; the digest that shortening asks for, and its place."""
    names = {v.name: v for v in turn.variables}
    note = None
    calls = [*turn.replied, *(call for call, _ in turn.during)]
    for call in range(min(calls, default=0), max(calls, default=-1) + 1):
        replies = [s for s, c in zip(turn.steps, turn.replied, strict=True) if c == call]
        events = [e for c, e in turn.during if c == call]
        _follow(names, history, turn, replies, events)
        unit = _step(history, turn, replies, events, names)
        if not unit.messages:
            continue
        window.steps.append(unit)
        if window.shorten():
            text = f"{_digest(names.values(), window.limit)}\n(Earlier parts were shortened.)"
            if note is not None:
                window.fixed -= cost(note[1])
            place = len(window.old_steps) + len(window.steps) - 1
            note = place, Message("user", text)
            window.fixed += cost(note[1])
    return note


def _step(
    history: History,
    turn: OpenTurn,
    replies: list[StepReplied],
    events: list[Event],
    names: dict[str, Variable],
) -> Unit:
    """One call of the operator: what it replied, what came of it, what happened meanwhile."""
    messages: list[Message] = []
    lines: list[str] = []
    died = any(isinstance(e, KernelEnded) for e in events)
    for reply in replies:
        cell = history.cells.get(turn.cells.get(reply.step, 0))
        messages += _replied(reply, cell, names, died=died)
        lines.append(_step_line(reply, cell))
    if told := news(history, events, title="Meanwhile:"):
        lines += told.split("\n")[1:]
        if messages and messages[-1].role == "result":
            messages[-1] = Message("result", f"{messages[-1].text}\n{told}")
        else:
            messages.append(Message("user", told))
    return Unit(messages, "\n".join(lines))


def _replied(
    reply: StepReplied, cell: Cell | None, names: dict[str, Variable], *, died: bool
) -> list[Message]:
    match reply.kind:
        case "cell":
            text = "this cell was not run"
            if cell is not None:
                text = result(cell, variables=names, died=died)
            source = clip(reply.source, SOURCE)
            return [Message("cell", source, reply.note), Message("result", text)]
        case "malformed":
            raw = clip(reply.raw, RAW).strip() or "(an empty reply)"
            return [Message("answer", raw), Message("user", reply.text)]
        case _:
            return [Message("answer", reply.text)]


def _step_line(reply: StepReplied, cell: Cell | None) -> str:
    if cell is not None:
        return summary(cell)
    match reply.kind:
        case "cell":
            return f"a cell was not run [{one_line(reply.note, 120)}]"
        case "malformed":
            return f"a reply could not be used: {one_line(reply.text, 200)}"
        case _:
            return f"answered: {one_line(reply.text, 200)}"


def _follow(
    names: dict[str, Variable],
    history: History,
    turn: OpenTurn,
    replies: list[StepReplied],
    events: list[Event],
) -> None:
    """Bring `names` to the namespace as it was after one step."""
    for reply in replies:
        _apply(names, history.cells.get(turn.cells.get(reply.step, 0)))
    for event in events:
        match event:
            case CellFinished():
                _apply(names, history.cells.get(event.cell))
            case KernelEnded():
                names.clear()
            case ValuesPut():
                names.update({v.name: v for v in event.variables})
            case ValuesDeleted():
                for name in event.names:
                    names.pop(name, None)
            case _:
                pass


def _apply(names: dict[str, Variable], cell: Cell | None) -> None:
    if cell is not None:
        names.update({v.name: v for v in (*cell.delta.added, *cell.delta.changed)})
        for name in cell.delta.removed:
            names.pop(name, None)
