"""Asking the person who is here for leave: buttons in a notebook, else a question and a line.

Where nobody is, nothing is asked: the session waits, and an answer may come from anywhere.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable
from typing import Any, Literal

from cave.approval import Approval
from cave.display.live import in_notebook
from cave.display.waiting import Waiting, lines

Answer = Callable[[Approval, bool, str], object]
"""Records yes or no to an approval; the last is where it was said."""

Place = Literal["buttons", "notebook", "terminal", "nowhere"]

QUESTION = "approve {id}? [y]es, [n]o, Enter leaves it waiting: "


def place() -> Place:
    """Where a person can be asked by this thread."""
    if threading.current_thread() is not threading.main_thread():
        return "nowhere"
    if in_notebook():
        return "buttons" if importlib.util.find_spec("ipywidgets") else "notebook"
    ends = (sys.stdin, sys.stderr)
    return "terminal" if all(end is not None and end.isatty() for end in ends) else "nowhere"


def ask_here(waiting: Waiting, answer: Answer) -> bool:
    """Ask for each; whether all of them are answered now, so that the work can go on."""
    where = place()
    if not waiting or where == "nowhere":
        return False
    if where == "buttons":
        for asked in waiting:
            buttons(asked, answer)
        return False  # they are pressed when this cell has ended
    via = "notebook" if where == "notebook" else "terminal"
    return all(_asked(asked, answer, via) for asked in waiting)


def _asked(asked: Approval, answer: Answer, via: str) -> bool:
    print("\n".join(lines(asked)[:-2]), file=sys.stderr, flush=True)
    said = _line(QUESTION.format(id=asked.id), via).strip().lower()
    if said not in {"y", "yes", "n", "no"}:
        return False
    answer(asked, said.startswith("y"), via)
    return True


def _line(question: str, via: str) -> str:
    """What is typed; nothing where the front end takes no input, or at its end."""
    try:
        if via == "notebook":
            return input(question)
        print(question, end="", file=sys.stderr, flush=True)
        return sys.stdin.readline()
    except (EOFError, NotImplementedError):  # StdinNotImplementedError: a notebook run by a program
        return ""


def buttons(asked: Approval, answer: Answer) -> Any:
    """Show what is to be approved with two buttons; pressed once, they say what was answered."""
    from IPython.display import display

    ipywidgets: Any = importlib.import_module("ipywidgets")
    text = ipywidgets.HTML(f"<pre>{_escaped(asked)}</pre>")
    yes = ipywidgets.Button(description="Approve", button_style="success")
    no = ipywidgets.Button(description="Deny", button_style="danger")
    told = ipywidgets.Label("")

    def pressed(button: Any) -> None:
        yes.disabled = no.disabled = True
        try:
            answer(asked, button is yes, "notebook")
        except ValueError as error:  # somebody was quicker, or its time is over
            told.value = str(error)
        else:
            told.value = "approved" if button is yes else "denied"

    yes.on_click(pressed)
    no.on_click(pressed)
    box = ipywidgets.VBox([text, ipywidgets.HBox([yes, no, told])])
    display(box)  # type: ignore[no-untyped-call]
    return box


def _escaped(asked: Approval) -> str:
    from cave.display.safe import escaped

    return escaped("\n".join(lines(asked)[:-2]))
