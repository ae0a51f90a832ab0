from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import cave
from cave.config import Settings
from cave.errors import ConfigError
from cave.policy import Policy, Rule
from cave.policy.rules import Call


def test_the_profile_is_confined_unless_modules_are_named() -> None:
    """`allow_modules` implies `vetted`, and nothing else changes the default."""
    assert Policy().profile == "confined"
    assert Policy(allow_modules=["math"]).profile == "vetted"
    assert Policy(allow_modules=()).profile == "vetted", "none at all is a restriction, too"
    assert cave.Policy is Policy


WRONG: list[Mapping[str, Any]] = [
    {"profile": "vault"},
    {"profile": "open", "allow_modules": ["math"]},
    {"profile": "confined", "allow_modules": ["math"]},
    {"profile": "open", "confinement": "require"},
    {"confinement": "maybe"},
    {"read": "data/"},
    {"read": [7]},
    {"write": ["a\0b"]},
    {"network": ["https://api.example.com/v1"]},
    {"env": ["TOKEN=abc"]},
    {"secrets": {"TOKEN": "abc"}},
    {"allow_modules": ["os; import sys"]},
    {"cell_timeout": 0},
    {"cell_timeout": True},
    {"rules": [{"modul": "os"}]},
    {"rules": ["os"]},
]


@pytest.mark.parametrize("given", WRONG, ids=str)
def test_what_contradicts_itself_is_refused(given: Mapping[str, Any]) -> None:
    """A policy that cannot be is a ConfigError, never a weaker policy."""
    with pytest.raises(ConfigError) as refused:
        Policy(**given)
    assert "abc" not in str(refused.value) or "secrets" in given, "no value of a variable is shown"


def test_a_policy_is_frozen_and_keeps_what_was_given() -> None:
    """Lists that are changed later change nothing; paths under `open` are legal."""
    hosts = ["api.example.com"]
    policy = Policy(profile="open", read=[Path("data")], network=hosts)
    hosts.append("evil.example.com")
    assert policy.network == ("api.example.com",)
    assert policy.read == ("data",)
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.profile = "vetted"  # type: ignore[misc]


@pytest.mark.parametrize(
    "source",
    [
        "import requests",
        "import pandas, requests.adapters as a",
        "from requests import get",
        "def f():\n    try:\n        from requests.sessions import Session\n    finally: pass",
        "__import__('requests')",
        "import importlib; importlib.import_module('requests.api')",
        "!ls\nimport requests",
    ],
)
def test_a_module_is_found_however_it_is_imported(source: str) -> None:
    """A rule for a module meets every written form of its import, also beside shell lines."""
    policy = Policy(rules=[Rule(module="requests", decision="deny")])
    assert policy.for_cell(source).decision == "deny"
    assert policy.for_cell("import requestsmore").decision == "allow"


def test_paths_and_resources_are_found() -> None:
    """A path is met below its folder and in its normal form; a resource by its name."""
    policy = Policy(rules=[{"path": "/srv/ledger"}, {"resource": "warehouse", "decision": "deny"}])
    assert policy.for_cell("open('/srv/x/../ledger/a.csv')").decision == "ask"
    assert policy.for_cell("open('/srv/ledgers')").decision == "allow"
    both = policy.for_cell("pd.read_sql('q', warehouse).to_csv('/srv/ledger/o')")
    assert both.decision == "deny", "the strictest rule decides"
    assert "warehouse" in both.reason


def test_a_cell_too_deep_to_read_is_denied_where_there_are_rules() -> None:
    """What the rules cannot look at does not slip through them."""
    deep = "x = " + "(" * 150 + "1" + ")" * 150
    deeper = "x" + ".a" * 100_000
    policy = Policy(rules=[Rule(module="os")])
    for source in (deep, deeper):
        try:
            compile(source, "", "exec")
        except (RecursionError, MemoryError):
            assert policy.for_cell(source).decision == "deny"
        except SyntaxError:
            pass
    assert policy.for_cell("import o s").decision == "allow", "the kernel says what is wrong"


def test_rules_for_skills() -> None:
    """By name, tier and a function of the call; a function that breaks does not allow."""

    def dear(call: Call) -> bool:
        return bool(call.arguments["amount"] > 100)

    policy = Policy(
        rules=[
            Rule(tier="write"),
            Rule(skill="post_*", when=dear, decision="deny", reason="too much"),
        ]
    )
    assert policy.for_call(Call("look")).decision == "allow"
    assert policy.for_call(Call("send", "write")).decision == "ask"
    assert policy.for_call(Call("post_entry", "write", {"amount": 5})).decision == "ask"
    assert policy.for_call(Call("post_entry", "write", {"amount": 500})).reason == "too much"
    broken = policy.for_call(Call("post_entry", "none", {}))
    assert broken.decision == "deny", "fails closed"
    assert broken.reason.endswith("when=dear raised KeyError: 'amount'")
    assert policy.for_cell("import os").decision == "allow"


def test_a_rule_selects_by_something_of_one_kind() -> None:
    """A rule for everything or for cells and skills at once is a mistake."""
    with pytest.raises(ConfigError, match="selects by nothing"):
        Rule()
    with pytest.raises(ConfigError, match="write two rules"):
        Rule(module="os", skill="post")


def test_the_policy_comes_from_the_files_of_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The project's table goes over the user's, the call over both; the file is named."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text('[policy]\nread = ["/data"]\ncell_timeout = 9\n')
    project = tmp_path / "cave.toml"
    project.write_text('max_retries = 5\n[policy]\nread = ["/"]\n[[policy.rules]]\nmodule = "os"\n')
    monkeypatch.setenv("CAVE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    policy = Policy.load(profile="vetted")
    assert (policy.read, policy.cell_timeout, policy.profile) == (("/",), 9, "vetted")
    assert policy.rules == (Rule(module="os"),)
    assert Policy.load(trusted=False).read == ("/data",), "an untrusted project opens no door"
    assert Settings.load().max_retries == 5, "settings beside the table are read as before"
    project.write_text('[policy]\nprofil = "open"\n')
    with pytest.raises(ConfigError, match=r"cave\.toml \[policy\]: there is no policy .* 'profil'"):
        Policy.load()


@pytest.mark.parametrize(
    ("given", "bytes_"), [("8 GB", 8 * 10**9), ("512MiB", 512 << 20), (7, 7), ("0", 0)]
)
def test_sizes_are_written_as_people_write_them(given: object, bytes_: int) -> None:
    """In files, in the environment, in a policy; no limit is 0."""
    settings = Settings().updated("a test", {"memory": given, "file_size": given})
    assert (settings.memory, settings.file_size) == (bytes_, bytes_)
    assert cave.Policy(memory=given).memory == bytes_  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["much", -1, True, "3 XB"])
def test_what_is_no_size_is_refused(given: object) -> None:
    """The message says what would be one."""
    with pytest.raises(cave.ConfigError, match="write '8 GB'"):
        Settings().updated("a test", {"memory": given})
