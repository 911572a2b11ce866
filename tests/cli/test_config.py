"""`headrace config` as people run it: what is in force, from where, and what is wrong."""

import json
import os
import subprocess
import sys
import tomllib

import pytest

from headrace.node.settings import SETTINGS

TOKEN = "correct-horse-battery"
FILE = f'[seal]\nsize = "1GiB"\n\n[auth]\ntoken = "{TOKEN}"\n'


@pytest.fixture
def config(tmp_path):
    """Run `headrace config` in a directory with a file of settings."""
    (tmp_path / "mine.toml").write_text(FILE)
    (tmp_path / "bad.toml").write_text('# sizes\n[seal]\nsise = "1GiB"\n')
    kept = {name: text for name, text in os.environ.items() if "HEADRACE_" not in name}

    def run(*arguments, **environment):
        return subprocess.run(
            [sys.executable, "-m", "headrace", "config", *arguments],
            cwd=tmp_path,
            env=kept | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def test_what_is_shown_is_a_config_file_with_every_setting(config):
    ended = config("show", "--config", "mine.toml", "--set", "commit.pipeline=512")
    assert (ended.returncode, ended.stderr) == (0, "")
    table = tomllib.loads(ended.stdout)
    assert [f"{section}.{name}" for section in table for name in table[section]] == list(
        SETTINGS
    )
    assert table["seal"]["size"] == "1GiB"
    assert table["commit"]["pipeline"] == 512
    assert TOKEN not in ended.stdout


def test_each_origin_is_named_beside_its_value(config):
    ended = config(
        *("show", "--origin", "--config", "mine.toml", "--set", "commit.pipeline=512"),
        HEADRACE_LOG__LEVEL="debug",
    )
    tomllib.loads(ended.stdout)
    said = {}
    for line in ended.stdout.splitlines():
        name, _, rest = line.partition(" = ")
        said.setdefault(name, rest.partition("  # ")[2].strip())
    assert said["size"] == "mine.toml:2"
    assert said["token"] == "mine.toml:5"
    assert said["pipeline"] == "a flag"
    assert said["level"] == "HEADRACE_LOG__LEVEL"
    assert said["shards"] == "the default"


def test_the_json_has_values_defaults_and_origins_and_no_secret(config):
    ended = config("show", "--json", "--config", "mine.toml")
    told = {one["key"]: one for one in json.loads(ended.stdout)["settings"]}
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
    assert TOKEN not in ended.stdout


def test_a_sound_file_is_said_to_be_sound(config):
    ended = config("validate", "mine.toml")
    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr.startswith("mine.toml is sound: it gives 2 settings")
    told = json.loads(config("validate", "mine.toml", "--json").stdout)
    assert (told["valid"], told["given"]) == (True, ["seal.size", "auth.token"])


def test_a_bad_file_exits_with_2_and_names_file_line_key_and_what_may_be_meant(config):
    ended = config("validate", "bad.toml")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "headrace: seal.sise (from bad.toml:3): there is no such setting. Is it seal.size?\n"
    )
    ended = config("validate", "bad.toml", "--json")
    assert (ended.returncode, ended.stderr) == (2, "")
    told = json.loads(ended.stdout)
    assert told["valid"] is False
    assert (told["key"], told["where"]) == ("seal.sise", "bad.toml:3")
    assert told["hint"] == "Is it seal.size?"


def test_a_file_that_is_not_there_is_named(config):
    ended = config("validate", "none.toml")
    assert ended.returncode == 3
    assert "'none.toml' is not there" in ended.stderr


def test_a_file_is_judged_with_the_environment_that_a_node_would_have(config, tmp_path):
    (tmp_path / "open.toml").write_text('[listen]\naddress = "0.0.0.0:7654"\n')
    assert "there is no token" in config("validate", "open.toml").stderr
    assert config("validate", "open.toml", HEADRACE_AUTH__TOKEN=TOKEN).returncode == 0
