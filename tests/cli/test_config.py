"""`headrace config` as people run it: what is in force, from where, and what is wrong."""

import json
import os
import tomllib

import pytest
from tests.cli.commands import headrace_here

from headrace.node.config.settings import SETTINGS

TOKEN = "correct-horse-battery"
FILE = f'[seal]\nsize = "1GiB"\n\n[auth]\ntoken = "{TOKEN}"\n'


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Run `headrace config` in a directory with a file of settings."""
    (tmp_path / "mine.toml").write_text(FILE)
    (tmp_path / "bad.toml").write_text('# sizes\n[seal]\nsise = "1GiB"\n')

    def run(*arguments, **environment):
        with monkeypatch.context() as here:
            here.chdir(tmp_path)
            for name in [each for each in os.environ if "HEADRACE_" in each]:
                here.delenv(name)
            for name, text in environment.items():
                here.setenv(name, text)
            return headrace_here("config", *arguments)

    return run


def test_what_is_shown_is_a_config_file_with_every_setting(config):
    ended = config("show", "--config", "mine.toml", "--set", "commit.pipeline=512")
    assert (ended.code, ended.err) == (0, "")
    table = tomllib.loads(ended.out)
    assert [f"{section}.{name}" for section in table for name in table[section]] == list(
        SETTINGS
    )
    assert table["seal"]["size"] == "1GiB"
    assert table["commit"]["pipeline"] == 512
    assert TOKEN not in ended.out


def test_each_origin_is_named_beside_its_value(config):
    ended = config(
        *("show", "--origin", "--config", "mine.toml", "--set", "commit.pipeline=512"),
        HEADRACE_LOG__LEVEL="debug",
    )
    tomllib.loads(ended.out)
    said = {}
    for line in ended.out.splitlines():
        name, _, rest = line.partition(" = ")
        said.setdefault(name, rest.partition("  # ")[2].strip())
    assert said["size"] == "mine.toml:2"
    assert said["token"] == "mine.toml:5"
    assert said["pipeline"] == "a flag"
    assert said["level"] == "HEADRACE_LOG__LEVEL"
    assert said["shards"] == "the default"


def test_the_json_has_values_defaults_and_origins_and_no_secret(config):
    ended = config("show", "--json", "--config", "mine.toml")
    told = {one["key"]: one for one in json.loads(ended.out)["settings"]}
    assert list(told) == list(SETTINGS)
    assert told["seal.size"] == {
        "key": "seal.size",
        "value": "1GiB",
        "default": "512MiB",
        "origin": "file",
        "where": "mine.toml:2",
    }
    assert told["listen.socket"]["value"] is True
    assert told["auth.token"]["value"] == "********"
    assert TOKEN not in ended.out


def test_a_sound_file_is_said_to_be_sound(config):
    ended = config("validate", "mine.toml")
    assert (ended.code, ended.out) == (0, "")
    assert ended.err.startswith("mine.toml is valid: it has 2 settings")
    told = json.loads(config("validate", "mine.toml", "--json").out)
    assert (told["valid"], told["given"]) == (True, ["seal.size", "auth.token"])


def test_a_bad_file_exits_with_2_and_names_file_line_key_and_what_may_be_meant(config):
    ended = config("validate", "bad.toml")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        "headrace: seal.sise (from bad.toml:3): unknown setting. Did you mean seal.size?\n"
    )
    ended = config("validate", "bad.toml", "--json")
    assert (ended.code, ended.err) == (2, "")
    told = json.loads(ended.out)
    assert told["valid"] is False
    assert (told["key"], told["where"]) == ("seal.sise", "bad.toml:3")
    assert told["hint"] == "Did you mean seal.size?"


def test_a_file_that_is_not_there_is_named(config):
    ended = config("validate", "none.toml")
    assert ended.code == 3
    assert "'none.toml' does not exist" in ended.err


def test_a_file_is_judged_with_the_environment_that_a_node_would_have(config, tmp_path):
    (tmp_path / "open.toml").write_text('[listen]\naddress = "0.0.0.0:7654"\n')
    assert "no token is set" in config("validate", "open.toml").err
    assert config("validate", "open.toml", HEADRACE_AUTH__TOKEN=TOKEN).code == 0
