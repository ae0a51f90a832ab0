"""SKILL.md to the Agent Skills standard (agentskills.io/specification): read it, and check it.

The file begins with YAML between two lines of `---`: `name` (at most 64 lowercase letters,
digits and single hyphens, the same as its folder's), `description` (at most 1024 characters),
and optionally `license`, `compatibility` (at most 500), `metadata` (texts by text keys) and
`allowed-tools` (a text with spaces between, or a list). What follows are the instructions.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cave.errors import SkillError
from cave.skills.declared import VERSION

FILE = "SKILL.md"
NAME_LENGTH, DESCRIPTION_LENGTH, COMPATIBILITY_LENGTH = 64, 1024, 500
FIELDS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a skill's folder."""

    file: Path
    field: str
    """The field of the front matter, or the part of the file."""
    problem: str
    hint: str

    def __str__(self) -> str:
        return f"{self.file}: {self.field}: {self.problem}; {self.hint}"


@dataclass(frozen=True, slots=True)
class Page:
    """What a SKILL.md says."""

    name: str
    description: str
    body: str
    license: str = ""
    compatibility: str = ""
    allowed_tools: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """`metadata.version` where it is semantic, else 0.0.0."""
        given = self.metadata.get("version", "")
        return given if VERSION.fullmatch(given) else "0.0.0"


def read(folder: Path) -> tuple[Page | None, list[Fault]]:
    """The page of a skill's folder, and every fault of it; no page where it has none to use."""
    file = folder / FILE
    fields, body, faults = _parsed(file)
    if faults:
        return None, faults
    faults = list(_faults(file, fields))
    if any(fault.field in {"name", "description"} for fault in faults):
        return None, faults
    return _page(fields, body), faults


def page(folder: Path) -> Page:
    """The page of a skill's folder. Raises `SkillError` naming the file and the first fault."""
    found, faults = read(folder)
    if faults or found is None:
        more = f" (and {len(faults) - 1} more: cave skills check {folder})" if faults[1:] else ""
        raise SkillError(f"{faults[0]}{more}")
    return found


def _parsed(file: Path) -> tuple[dict[str, Any], str, list[Fault]]:
    import yaml
    from frontmatter.default_handlers import YAMLHandler

    def broken(field: str, problem: str, hint: str) -> tuple[dict[str, Any], str, list[Fault]]:
        return {}, "", [Fault(file, field, problem, hint)]

    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return broken("file", "there is no such file", "every skill's folder has one")
    except (OSError, UnicodeDecodeError) as error:
        return broken("file", f"it cannot be read ({error})", "write it as UTF-8 text")
    handler = YAMLHandler()
    if not handler.detect(text):
        return broken("front matter", "there is none", "begin the file with a line of ---")
    try:
        matter, body = handler.split(text)
        fields = yaml.safe_load(matter)
    except ValueError:
        return broken("front matter", "it has no end", "close it with a line of ---")
    except yaml.YAMLError as error:
        return broken("front matter", f"it is not YAML ({_at(error)})", "quote texts with a colon")
    if not isinstance(fields, dict):
        return broken("front matter", "it has no fields", "write lines such as name: my-skill")
    return fields, body.strip(), []


def _at(error: Any) -> str:
    mark = getattr(error, "problem_mark", None)
    told = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1}: {told}" if mark is not None else told


def _faults(file: Path, fields: Mapping[str, Any]) -> Iterator[Fault]:
    def fault(field: str, problem: str, hint: str) -> Fault:
        return Fault(file, field, problem, hint)

    for name in fields:
        if name not in FIELDS:
            yield fault(
                str(name), "the standard has no such field", "put it under metadata, or remove it"
            )
    yield from _name_faults(file, fields.get("name"))
    yield from _text_faults(file, "description", fields.get("description"), DESCRIPTION_LENGTH)
    for name, longest in (("license", None), ("compatibility", COMPATIBILITY_LENGTH)):
        if name in fields:
            yield from _text_faults(file, name, fields[name], longest)
    metadata = fields.get("metadata", {})
    if not isinstance(metadata, dict):
        yield fault("metadata", f"it is {metadata!r}, not a mapping", "write key: value below it")
        metadata = {}
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            hint = f'quote it: {key}: "{value}"'
            yield fault(f"metadata.{key}", f"it is {value!r}, not a text", hint)
    version = metadata.get("version", "0.0.0")
    if isinstance(version, str) and not VERSION.fullmatch(version):
        yield fault("metadata.version", f"{version!r} is not a semantic version", 'write "1.2.0"')
    tools = fields.get("allowed-tools", "")
    if not isinstance(tools, str) and not (
        isinstance(tools, list) and all(isinstance(tool, str) for tool in tools)
    ):
        yield fault("allowed-tools", f"it is {tools!r}", "write a text or a list of texts")


def _name_faults(file: Path, name: object) -> Iterator[Fault]:
    hint = "use at most 64 lowercase letters, digits and single hyphens"
    if name is None:
        yield Fault(file, "name", "it is missing", f"write name: {file.parent.name}")
        return
    if not isinstance(name, str) or not name.strip():
        yield Fault(file, "name", f"it is {name!r}, not a text", hint)
        return
    name = unicodedata.normalize("NFKC", name.strip())
    allowed = all(c.isalnum() or c == "-" for c in name) and name == name.lower()
    if not allowed or name[0] == "-" or name[-1] == "-" or "--" in name:
        yield Fault(file, "name", f"{name!r} is not allowed", hint)
    elif len(name) > NAME_LENGTH:
        yield Fault(file, "name", f"it has {len(name)} characters", hint)
    elif unicodedata.normalize("NFKC", file.parent.name) != name:
        yield Fault(
            file,
            "name",
            f"{name!r} is not the name of its folder {file.parent.name!r}",
            "rename one of them",
        )


def _text_faults(file: Path, field: str, value: object, longest: int | None) -> Iterator[Fault]:
    if value is None:
        yield Fault(file, field, "it is missing", "say what the skill does and when to use it")
    elif not isinstance(value, str) or not value.strip():
        yield Fault(file, field, f"it is {value!r}, not a text", "write a sentence")
    elif longest is not None and len(value) > longest:
        yield Fault(
            file, field, f"it has {len(value)} characters", f"{longest} is the most; shorten it"
        )


def _page(fields: Mapping[str, Any], body: str) -> Page:
    tools = fields.get("allowed-tools", ())
    metadata = fields.get("metadata", {})
    return Page(
        name=unicodedata.normalize("NFKC", fields["name"].strip()),
        description=" ".join(fields["description"].split()),
        body=body,
        license=str(fields.get("license", "")),
        compatibility=str(fields.get("compatibility", "")),
        allowed_tools=tuple(tools.split() if isinstance(tools, str) else map(str, tools)),
        metadata={
            str(k): str(v) for k, v in (metadata if isinstance(metadata, dict) else {}).items()
        },
    )
