"""Skills: named capabilities, declared with `@cave.skill` or kept in folders.

    @cave.skill(effect="write", runs="host")
    def post_entry(entry: Entry, ctx: cave.SkillContext) -> str:
        \"\"\"Post one adjusting entry.\"\"\"
        return erp.post(entry, idempotency_key=ctx.idempotency_key)

`declared` has the decorator and `Skill`; `arguments` and `annotations` check
what a call is given; `folder` and `frontmatter` read Agent Skills; `loading`, `registry` and
`discovery` find them. Nothing here starts a kernel or keeps a journal: the session does.
"""

from __future__ import annotations

from cave.inkernel.outcome import finish, finish_async
from cave.skills.arguments import Parameter
from cave.skills.context import LocalRuntime, Runtime, SkillContext
from cave.skills.declared import Skill, skill
from cave.skills.discovery import Discovery, bundled, discover
from cave.skills.folder import FolderSkill
from cave.skills.loading import load
from cave.skills.registry import Conflict, Registry, ShadowWarning

__all__ = [
    "Conflict",
    "Discovery",
    "FolderSkill",
    "LocalRuntime",
    "Parameter",
    "Registry",
    "Runtime",
    "ShadowWarning",
    "Skill",
    "SkillContext",
    "bundled",
    "discover",
    "finish",
    "finish_async",
    "load",
    "skill",
]
