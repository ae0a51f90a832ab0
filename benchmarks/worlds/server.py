"""The world that tools change: runs in the environment of the tools' packages, knows no cave.

    python server.py SOCKET SUITE

Each case has a process of its own, forked off one that has the packages and their data. One
JSON object a connection is asked, one is answered. It counts the executions of each key, and
answers a key again that it is asked to know (`once`), as a service does that takes keys.
"""

from __future__ import annotations

import builtins
import copy
import importlib
import inspect
import itertools
import json
import os
import random
import signal
import socket
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

Case = dict[str, Any]
Request = dict[str, Any]
ANSWER_LIMIT = 1 << 26


class World(Protocol):
    """The tools of one case, and what they work on."""

    tools: dict[str, Callable[..., Any]]

    def kind(self, tool: str) -> str | None:
        """`read` or `write`; None where the package does not say."""

    def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        """What the tool gives, as JSON. Raises what it raises."""

    def state(self) -> Any:
        """All that tools may have changed, as JSON."""


# -- the suites ------------------------------------------------------------------------------

BFCL = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
"""API classes, and their modules."""


class Bfcl:
    """Instances of the API classes of one case of BFCL's multi-turn categories."""

    PLACE = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code."

    @classmethod
    def prepare(cls) -> None:
        for name in BFCL:
            cls.api(name)

    @classmethod
    def api(cls, name: str) -> Any:
        return getattr(importlib.import_module(cls.PLACE + BFCL[name]), name)

    def __init__(self, case: Case | None) -> None:
        self.instances: dict[str, Any] = {}
        self.tools: dict[str, Callable[..., Any]] = {}
        for name in BFCL if case is None else case["classes"]:
            instance = self.instances[name] = self.api(name)()
            if hasattr(instance, "_load_scenario"):
                scenario = (case or {}).get("initial_config", {}).get(name, {})
                load = instance._load_scenario  # noqa: SLF001  as BFCL's own runner does
                load(copy.deepcopy(scenario))
            methods = inspect.getmembers(instance, inspect.ismethod)
            self.tools |= {name: method for name, method in methods if name[0] != "_"}

    def kind(self, _: str) -> None:
        return None

    def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        return as_json(self.tools[tool](**arguments))

    def state(self) -> Any:
        return tree(self.instances, {})


class Tau:
    """The environment of one case of a domain of tau2-bench."""

    domain: str
    pristine: Any

    @classmethod
    def prepare(cls) -> None:
        """Load the domain's data once; each case changes it in a process of its own."""
        place = importlib.import_module(f"tau2.domains.{cls.domain}.environment")
        tasks = importlib.import_module("tau2.data_model.tasks")
        cls.pristine, cls.action, cls.assertion = (
            place.get_environment(),
            tasks.EnvFunctionCall,
            tasks.EnvAssertion,
        )

    action: Any
    assertion: Any

    def __init__(self, case: Case | None) -> None:
        self.environment = self.pristine
        self.assertions = (case or {}).get("env_assertions", ())
        kits = [self.environment.tools, self.environment.user_tools]
        self.kits = {name: kit for kit in kits if kit is not None for name in kit.tools}
        self.tools = {name: kit.tools[name] for name, kit in self.kits.items()}
        for action in (case or {}).get("init_actions", ()):
            self.environment.run_env_function_call(self.action(**action))

    def kind(self, tool: str) -> str:
        return "write" if self.kits[tool].tool_type(tool).value == "write" else "read"

    def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        given = self.tools[tool](**arguments)
        self.environment.sync_tools()
        return as_json(given)

    def state(self) -> Any:
        wanted = [self.assertion(**one) for one in self.assertions]
        hold = [self.environment.run_env_assertion(one, False) for one in wanted]  # noqa: FBT003
        agent, user = self.environment.get_db_hash(), self.environment.get_user_db_hash()
        return {"agent_db_sha256": agent, "user_db_sha256": user, "assertions": hold}


def suite(name: str) -> Any:
    if name == "bfcl":
        return Bfcl
    return type(name, (Tau,), {"domain": name.removeprefix("tau2-")})


# -- values ----------------------------------------------------------------------------------


def as_json(value: Any) -> Any:
    """What a tool gave, in types that any client knows."""
    return json.loads(json.dumps(value, default=_dumped))


def _dumped(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return str(value)


def tree(value: Any, seen: dict[int, int]) -> Any:
    """An object with all that it holds, private names too; the clock's readings are left out."""
    if isinstance(value, (str, int, float, type(None), Enum)):
        return str(value) if isinstance(value, Enum) else value
    if isinstance(value, (date, random.Random)):
        return "a time" if isinstance(value, date) else repr(value.getstate())
    if id(value) in seen:
        return {"same as": seen[id(value)]}
    seen[id(value)] = len(seen)
    match value:
        case dict():
            return {str(name): tree(part, seen) for name, part in value.items()}
        case list() | tuple():
            return [tree(part, seen) for part in value]
        case set() | frozenset():
            return sorted(map(repr, value))
    return {"a": type(value).__name__, **{n: tree(v, seen) for n, v in vars(value).items()}}


@contextmanager
def numbered() -> Iterator[None]:
    """Have tools count where they draw new ids, so that two runs are alike."""
    counter, drawn = itertools.count(1), uuid.uuid4
    uuid.uuid4 = lambda: uuid.uuid5(uuid.NAMESPACE_OID, str(next(counter)))
    try:
        yield
    finally:
        uuid.uuid4 = drawn


def tried(call: Callable[[], Any]) -> dict[str, Any]:
    """An answer: the value, or the error as a name and a message."""
    try:
        return {"value": call()}
    except Exception as error:  # noqa: BLE001  tools raise what they like, and cells see it
        name = next(k.__name__ for k in type(error).__mro__ if hasattr(builtins, k.__name__))
        return {"error": [name, str(error)]}


# -- the plain run ---------------------------------------------------------------------------


def plain(world: World, cells: list[str]) -> dict[str, Any]:
    """All cells in one process, one after another: what everything else is compared with."""
    calls: list[list[dict[str, Any]]] = []
    space: dict[str, Any] = {name: _recorded(world, name, calls) for name in world.tools}
    faults = []
    for cell in cells:
        calls.append([])
        answer = tried(lambda cell=cell: exec(cell, space))  # type: ignore[misc]
        faults.append(answer.get("error"))
    values = {n: v for n, v in space.items() if n not in world.tools and n[0] != "_"}
    return {"calls": calls, "faults": faults, "values": values, "state": world.state()}


def _recorded(world: World, name: str, calls: list[list[dict[str, Any]]]) -> Callable[..., Any]:
    signature = inspect.signature(world.tools[name])

    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = as_json(dict(signature.bind(*args, **kwargs).arguments))
        before = None if world.kind(name) else world.state()
        answer = tried(lambda: world.call(name, arguments))
        kind = world.kind(name) or ("read" if world.state() == before else "write")
        calls[-1].append({"tool": name, "kind": kind, **answer})
        if "error" in answer:
            raise getattr(builtins, answer["error"][0])(answer["error"][1])
        return answer["value"]

    return call


# -- serving ---------------------------------------------------------------------------------


class Served:
    """One case, for clients that die and come again."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.answers: dict[str, dict[str, Any]] = {}
        self.done: Counter[str] = Counter()
        """How often each key was executed and gave a value."""
        self.tools: dict[str, str] = {}

    def answer(self, request: Request) -> Any:
        match request["op"]:
            case "call":
                return self.call(**request)
            case "seen":
                return self.answers.get(request["key"])
            case "told":
                return {"done": self.done, "tools": self.tools, "state": self.world.state()}
        raise ValueError(f"no operation {request['op']!r}")

    def call(self, key: str, tool: str, arguments: dict[str, Any], *, once: bool, op: str) -> Any:
        del op
        if once and key in self.answers:
            return self.answers[key]
        answer = self.answers[key] = tried(lambda: self.world.call(tool, arguments))
        self.done[key] += "value" in answer
        self.tools[key] = tool
        return answer


def read(connection: socket.socket) -> Request:
    with connection.makefile("r", encoding="utf-8") as lines:
        found: Request = json.loads(lines.readline(ANSWER_LIMIT))
        return found


def write(connection: socket.socket, answer: Any) -> None:
    try:
        connection.sendall(json.dumps(answer).encode() + b"\n")
    except BrokenPipeError:
        return  # who asked is dead; what was done is done


def serve(listening: socket.socket, answer: Callable[[socket.socket, Request], bool]) -> None:
    """Answer one connection after another, until an answer says that it was the last."""
    going_on = True
    while going_on:
        connection, _ = listening.accept()
        with connection:
            going_on = answer(connection, read(connection))


def listen(path: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    return listening


def forked(work: Callable[[], None]) -> None:
    """Do it in a process that begins with untouched data."""
    if os.fork() == 0:
        with numbered():
            work()
        os._exit(0)


class Server:
    """Begins cases; the process that all of them are forked off."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def answer(self, connection: socket.socket, request: Request) -> bool:
        match request["op"]:
            case "tools":
                world = self.kind(None)
                write(connection, [declared(world, name) for name in world.tools])
            case "plain":
                case = request["case"]
                forked(lambda: write(connection, plain(self.kind(case), case["cells"])))
            case "begin":
                with listen(request["socket"]) as listening:
                    forked(lambda: self.case(request["case"], listening))
                write(connection, None)
            case "end":
                write(connection, None)
        return bool(request["op"] != "end")

    def case(self, case: Case, listening: socket.socket) -> None:
        served = Served(self.kind(case))

        def answer(connection: socket.socket, request: Request) -> bool:
            ends = request["op"] == "end"
            write(connection, None if ends else served.answer(request))
            return not ends

        serve(listening, answer)


def declared(world: World, name: str) -> dict[str, Any]:
    """What a client needs to call a tool as it is called at home."""
    parameters = [
        [p.name, "" if p.default is p.empty else repr(p.default)]
        for p in inspect.signature(world.tools[name]).parameters.values()
    ]
    return {"name": name, "parameters": parameters, "kind": world.kind(name)}


def main() -> None:
    _, path, name = sys.argv
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    kind = suite(name)
    kind.prepare()
    with listen(path) as listening:
        print("ready", flush=True)
        serve(listening, Server(kind).answer)
    Path(path).unlink()


if __name__ == "__main__":
    main()
