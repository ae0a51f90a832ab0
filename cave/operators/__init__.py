"""Operators: who decides the next cell. Only the modules here import a model SDK.

`resolve` makes an operator of what `operator=` or `CAVE_MODEL` says. SDKs are imported at
the first step, so that making an operator costs nothing.
"""
