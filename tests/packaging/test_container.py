"""The Containerfile, as a linter reads it: known words, pinned images, no root, no secrets."""

import json
import re
from pathlib import Path

import pytest

from headrace.cli.terminal.location import DATA_VARIABLE
from headrace.node.config.settings import LISTEN, LISTEN_HTTP, SETTINGS

FILE = Path(__file__).parents[2] / "packaging" / "Containerfile"
KNOWN = frozenset(
    {"ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL"}
    | {"ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"}
)
_SECRET = re.compile(r"(?i)(token|secret|password|passwd|api_?key|private_?key)")


def instructions(text):
    """Return (word, rest) for each instruction; lines that go on are joined."""
    joined = re.sub(r"\\\n\s*", " ", re.sub(r"(?m)^\s*#.*\n", "", text))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def faults(text):
    """Return what is wrong with a Containerfile, in words."""
    found = instructions(text)
    stages = {rest.split()[-1] for word, rest in found if word == "FROM" and " AS " in rest}
    said = [f"{word} is no instruction" for word, *_ in found if word not in KNOWN]
    said += [f for word, rest in found if word == "FROM" for f in _image_faults(rest, stages)]
    said += [f for word, rest in found if word in ("ENV", "ARG") for f in _secrets(rest)]
    said += ["ADD fetches what nobody checked" for word, _ in found if word == "ADD"]
    last = max((n for n, (word, _) in enumerate(found) if word == "FROM"), default=0)
    users = [rest for word, rest in found[last:] if word == "USER"]
    if not users:
        said.append("it runs as root: no USER")
    elif users[-1].split(":")[0] in ("root", "0"):
        said.append("it runs as root")
    return said


def _image_faults(rest, stages):
    image = rest.split()[0]
    if image in stages:
        return
    name, _, tag = image.rpartition("/")[2].partition(":")
    if not tag or tag == "latest":
        yield f"{name} has no tag of its own"


def _secrets(rest):
    for name, value in re.findall(r"(\w+)=(\S*)", rest):
        if _SECRET.search(name) and not name.endswith("_FILE"):
            yield f"{name} holds a secret"
        elif _SECRET.search(name) and not value.startswith("/run/"):
            yield f"{name} names a file in the image"


@pytest.fixture
def found():
    return instructions(FILE.read_text())


def rest_of(found, word):
    return [rest for each, rest in found if each == word]


def test_it_has_no_fault():
    assert faults(FILE.read_text()) == []


GOOD = "FROM a/python:3.11-slim AS b\nRUN x\nFROM a/python:3.11-slim\nUSER 10001\n"


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ("RUNN x\n", "RUNN is no instruction"),
        ("FROM python\nUSER 1\n", "python has no tag of its own"),
        ("FROM x/python:latest\nUSER 1\n", "python has no tag of its own"),
        ("FROM b\n", "it runs as root: no USER"),
        ("USER root\n", "it runs as root"),
        ("USER 0:0\n", "it runs as root"),
        ("ENV A=1 \\\n    MY_TOKEN=abc\n", "MY_TOKEN holds a secret"),
        ("ARG password=abc\n", "password holds a secret"),
        ("ENV TOKEN_FILE=/etc/token\n", "TOKEN_FILE names a file in the image"),
        ("ADD https://example.org/x /x\n", "ADD fetches what nobody checked"),
    ],
)
def test_a_planted_fault_is_found(planted, said):
    assert faults(GOOD) == []
    assert faults(GOOD + planted) == [said]


def test_its_variables_are_settings(found):
    (variables,) = rest_of(found, "ENV")
    named = dict(re.findall(r"(HEADRACE_\w+)=(\S+)", variables))
    data = named.pop(DATA_VARIABLE)
    by_variable = {setting.variable: setting for setting in SETTINGS.values()}
    for name, text in named.items():
        by_variable[name].kind.read(text)
    assert rest_of(found, "VOLUME") == [json.dumps([data])]
    assert rest_of(found, "EXPOSE") == [f"{LISTEN.port} {LISTEN_HTTP.port}"]


def test_it_runs_the_node_in_the_foreground_and_stops_it_cleanly(found):
    assert json.loads(rest_of(found, "ENTRYPOINT")[0]) == ["headrace"]
    assert json.loads(rest_of(found, "CMD")[-1]) == ["serve"]
    assert rest_of(found, "STOPSIGNAL") == ["SIGTERM"]


def test_what_it_copies_is_there(found):
    for rest in rest_of(found, "COPY"):
        *sources, _ = rest.split()
        for each in sources:
            assert (FILE.parents[1] / each).exists()
