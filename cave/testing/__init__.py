"""What users test with: the scripted operator, and servers that speak providers' formats."""

from __future__ import annotations

from cave.operators.scripted import Finish, ScriptedOperator

__all__ = ["Finish", "ScriptedOperator"]
