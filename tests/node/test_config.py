"""A config is loaded in layers, whole and checked, and every error names its setting."""

import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadConfig
from headrace.journal.recovery.recover import RecoveryOptions
from headrace.model.units import KIB, MIB, MINUTE, SECOND
from headrace.node.config.config import (
    FILE_SIZE_MAX,
    Layer,
    SettingOrigin,
    effective,
    lines_of,
    load,
    trace,
)
from headrace.node.config.setting_kinds import AddressKind, Secret
from headrace.node.config.setting_rules import flaws
from headrace.node.config.settings import SETTINGS, Cluster, Config, Listen
from headrace.node.group.seal_pace import SealPace
from headrace.partition.segments.sealer import Children

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
TOKEN = "correct-horse-battery"


def flaw_of(file=None, environ=None, flags=None) -> BadConfig:
    with pytest.raises(BadConfig) as caught:
        load(file, environ or {}, flags or {})
    return caught.value


@pytest.fixture
def toml(tmp_path):
    def write(text: str | bytes) -> Path:
        path = tmp_path / "headrace.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_the_defaults_are_sound():
    assert load(None, {}, {}) == Config()


def test_defaults_that_other_rooms_have_too_are_equal():
    config = Config()
    assert config.journal.slots == RecoveryOptions().slots
    assert config.journal.file_size == RecoveryOptions().file_size
    assert config.journal.spare_count == RecoveryOptions().spare_count_max
    assert config.seal.size == SealPace(slots=1).seal_size
    assert config.seal.age.us == SealPace(slots=1).seal_age_us
    assert config.seal.children == Children().count


def test_each_layer_replaces_the_ones_before_it(toml):
    file = toml('[seal]\nsize = "128MiB"\nage = "1m"\nchildren = 3\n[log]\nlevel = "debug"\n')
    environ = {"HEADRACE_SEAL__SIZE": "512MiB", "HEADRACE_SEAL__AGE": "2m", "HOME": "/root"}
    config = load(file, environ, {"seal.size": "1GiB"})
    assert config.seal.size == 1024 * MIB
    assert config.seal.age == 2 * MINUTE
    assert config.seal.children == 3
    assert config.log.level == "debug"
    assert config.limits == Config().limits


def test_values_are_typed_whatever_layer_gives_them(toml):
    file = toml('[listen]\nsocket = false\nhttp = ""\n[commit]\ngroup_size = 1048576\n')
    flags = {"cluster.shards": "4", "request.timeout": "5s", "data.path": "/var/lib/headrace"}
    config = load(file, {"HEADRACE_LISTEN__ADDRESS": "[::1]:0"}, flags)
    assert config.listen == Listen(address=AddressKind("::1", 0), http=None, socket=False)
    assert config.commit.group_size == MIB
    assert config.cluster.shards == 4
    assert config.request.timeout == 5 * SECOND
    assert config.data.path == "/var/lib/headrace"


@pytest.mark.parametrize(
    ("text", "key", "flaw"),
    [
        ("[seal]\nsise = 1", "seal.sise", "unknown setting. Did you mean seal.size?"),
        ("[sael]\nsize = 1", "sael.size", "unknown setting. Did you mean seal.size?"),
        (
            "[request]\nchildren = 1",
            "request.children",
            "unknown setting. Did you mean seal.children?",
        ),
        (
            "[reconcile]\nmax_hold = 1",
            "reconcile.max_hold",
            "unknown setting. Did you mean retention.max_hold?",
        ),
        ("[zzz]", "zzz", "unknown setting. The sections are listen, data,"),
        ("seal = 5", "seal", "is a section, not a setting"),
        ("[[seal]]\nsize = 1", "seal", "is a section, not a setting"),
        ('"seal.size" = "1GiB"', "seal.size", "is outside its section. Move it to"),
        ("[seal.size]\nx = 1", "seal.size", "a table is not a valid size"),
        ("[seal]\nsize = true", "seal.size", "true is not a valid size. Write it as 64MiB"),
        ("[seal]\nsize = 1.5", "seal.size", "1.5 is not a valid size"),
        ("[seal]\nsize = 2000-01-01", "seal.size", "a date or time is not a valid size"),
        ("[seal]\nage = 30", "seal.age", "30 is not a valid duration. Write it as '30s'"),
        ("[seal]\nchildren = 0", "seal.children", "0 is outside the range 1 to 64"),
        ("[seal]\nchildren = -1", "seal.children", "-1 is outside the range 1 to 64"),
        ("[seal]\nchildren = true", "seal.children", "true is not a whole number"),
        ("[seal]\nchildren = []", "seal.children", "a list is not a whole number"),
        ("[listen]\nsocket = 1", "listen.socket", "must be true or false, got 1"),
        ("[data]\npath = 1", "data.path", "1 is not text"),
        ('[data]\npath = "a\\nb"', "data.path", "'a\\nb' has unprintable characters"),
        (
            '[log]\nlevel = "loud"',
            "log.level",
            "must be debug, info, warning or error, got 'loud'",
        ),
        (
            '[journal]\nfile_size = "1048577B"',
            "journal.file_size",
            "'1048577B' is not a multiple of 4096 bytes",
        ),
        (
            '[reconcile]\ntick = "31s"',
            "reconcile.tick",
            "'31s' is outside the range 10ms to 30s",
        ),
        (
            '[limits]\nbody_size = "65MiB"',
            "limits.body_size",
            "'65MiB' is outside the range 64KiB to 64MiB",
        ),
    ],
)
def test_what_a_file_has_wrong_is_said_exactly(toml, text, key, flaw):
    path = toml(text)
    name = key.rpartition(".")[2]
    line = next(n for n, said in enumerate(text.splitlines(), 1) if name in said)
    assert str(flaw_of(path)).startswith(f"{key} (from {path}:{line}): {flaw}")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[seal\n", "is not valid TOML: Expected ']'"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"a = " + b"[" * 100_000, "is nested too deeply"),
        (b"[seal]\nchildren = " + b"9" * 10_000, "is not valid TOML: Exceeds the limit"),
        (b"[seal]\nsize = 1\nsize = 2", "is not valid TOML: Cannot overwrite a value"),
        (b"#" * (FILE_SIZE_MAX + 1), "the config file is larger than 1048576 bytes"),
    ],
)
def test_a_file_that_is_no_config_is_refused(toml, content, said):
    assert said in str(flaw_of(toml(content)))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    assert str(flaw_of(tmp_path / "none.toml")).endswith(
        "none.toml' cannot be read: No such file or directory"
    )
    assert "Is a directory" in str(flaw_of(tmp_path))
    assert "cannot be read" in str(flaw_of(Path("a\0b")))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("HEADRACE_SEAL__SISE", "Did you mean HEADRACE_SEAL__SIZE?"),
        ("HEADRACE_seal__size", "Did you mean HEADRACE_SEAL__SIZE?"),
        ("HEADRACE_SEAL__SIZE__MAX", "Did you mean HEADRACE_SEAL__SIZE?"),
        ("HEADRACE__SEAL__SIZE", "Did you mean HEADRACE_SEAL__SIZE?"),
        (
            "HEADRACE_\udcff__\n",
            "HEADRACE_\\udcff__\\n (from the environment): unknown setting",
        ),
    ],
)
def test_an_unknown_variable_is_an_error_with_a_suggestion(name, said):
    error = str(flaw_of(environ={name: "1GiB"}))
    assert said in error
    assert error.isprintable()


def test_variables_that_are_no_settings_are_let_be():
    environ = {"HEADRACE_HOME": "x", "HEADRACE_": "y", "SEAL__SIZE": "z", "PATH": "/bin"}
    assert load(None, environ, {}) == Config()


def test_an_unknown_flag_is_an_error_with_a_suggestion():
    error = flaw_of(flags={"seal.siz": "1GiB"})
    assert str(error) == "seal.siz (from a flag): unknown setting. Did you mean seal.size?"
    assert (error.key, error.source) == ("seal.siz", "a flag")
    assert "is a section" in str(flaw_of(flags={"seal": "1GiB"}))


def test_a_bad_value_names_the_layer_it_came_from(toml):
    file = toml("[seal]\nchildren = 99")
    environ = {"HEADRACE_SEAL__CHILDREN": "many"}
    assert flaw_of(file).source == f"{file}:2"
    error = flaw_of(file, environ)
    assert str(error) == (
        "seal.children (from HEADRACE_SEAL__CHILDREN): 'many' is not a whole number"
    )
    assert flaw_of(file, environ, {"seal.children": ""}).source == "a flag"
    assert load(file, environ, {"seal.children": "1"}).seal.children == 1


def test_each_setting_is_traced_to_the_layer_that_gave_it(toml):
    file = toml('# mine\n[seal]\nsize = "128MiB"\nage = "1m"\n\n[log]\nlevel = "debug"\n')
    environ = {"HEADRACE_SEAL__AGE": "2m"}
    origins = trace(file, environ, {"log.level": "error"}).origins
    assert list(origins) == list(SETTINGS)
    assert origins["seal.size"] == SettingOrigin(Layer.FILE, f"{file}:3")
    assert origins["seal.age"] == SettingOrigin(Layer.VARIABLE, "HEADRACE_SEAL__AGE")
    assert origins["log.level"] == SettingOrigin(Layer.FLAG, "a flag")
    assert origins["seal.children"] == SettingOrigin(Layer.DEFAULT, "the default")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("[seal]\nsize = 1", {"seal": 1, "seal.size": 2}),
        ("seal.size = 1\n'seal' . \"age\" = 2", {"seal.size": 1, "seal.age": 2}),
        ("\n# [log]\n [ 'seal' ] # x\n\n\tsize=1", {"seal": 3, "seal.size": 5}),
        ("seal = { size = 1 }", {"seal": 1}),
        ("[seal]\nsize = 1\n[log]\nlevel = 2", {"seal": 1, "seal.size": 2, "log": 3}),
        ('x = """\n[seal]\nsize = 1\n"""\n', {}),
    ],
)
def test_the_line_of_a_setting_is_known_or_not_told(text, lines):
    assert lines.items() <= lines_of(text).items()
    if not lines:
        assert not lines_of(text)


@pytest.mark.parametrize(
    ("flags", "key", "flaw"),
    [
        (
            {"cluster.replicas": "3"},
            "cluster.replicas",
            "is 3, but this release runs one replica",
        ),
        (
            {"cluster.topic_bits": "25"},
            "cluster.partition_bits",
            "stream_bits + topic_bits + partition_bits is 65",
        ),
        ({"cluster.stream_bits": "0"}, "cluster.stream_bits", "0 is outside the range 1 to 62"),
        (
            {"journal.slots": "4095"},
            "journal.slots",
            "4095 is less than 4 x commit.pipeline, 4096",
        ),
        (
            {"journal.metadata_slots": "4095"},
            "journal.metadata_slots",
            "4095 is less than 4 x commit.pipeline, 4096",
        ),
        (
            {"journal.slots": "6", "commit.pipeline": "1"},
            "journal.slots",
            "6 is outside the range 7 to",
        ),
        (
            {"journal.file_size": "4097MiB"},
            "journal.file_size",
            "'4097MiB' is outside the range 1MiB to 4GiB",
        ),
        (
            {"commit.pipeline_size": "63MiB"},
            "commit.pipeline_size",
            "63MiB is less than limits.body_size, 64MiB",
        ),
        ({"seal.size": "63MiB"}, "seal.size", "63MiB is less than limits.body_size, 64MiB"),
        (
            {"limits.in_flight_size": "63MiB"},
            "limits.in_flight_size",
            "63MiB is less than limits.body_size, 64MiB",
        ),
        (
            {"limits.queue_size": "63MiB"},
            "limits.queue_size",
            "63MiB is less than limits.in_flight_size, 64MiB",
        ),
        (
            {"request.timeout": "301s"},
            "request.timeout",
            "301s is more than request.timeout_max, 5m",
        ),
        ({"request.timeout": "0s"}, "request.timeout", "'0s' is outside the range 1ms to 1h"),
        ({"stop.timeout": "0s"}, "stop.timeout", "'0s' is outside the range"),
        (
            {"listen.address": "0.0.0.0:7654"},
            "listen.address",
            "0.0.0.0:7654 is reachable from other machines, but no token is set. "
            "Set auth.token_file",
        ),
        (
            {"listen.address": "db.example:1"},
            "listen.address",
            "db.example:1 is reachable from other machines",
        ),
        (
            {"listen.advertise": "0.0.0.0:1"},
            "listen.advertise",
            "0.0.0.0:1 is a wildcard address: clients cannot connect to it",
        ),
        (
            {"listen.advertise": "a:0"},
            "listen.advertise",
            "port 0 is outside the range 1 to 65535",
        ),
        (
            {"listen.http": "127.0.0.1:7654"},
            "listen.http",
            "127.0.0.1:7654 is also listen.address",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_named(flags, key, flaw):
    source = "a flag" if key in flags else "the default"
    assert str(flaw_of(flags=flags)).startswith(f"{key} (from {source}): {flaw}")


def test_the_limits_of_the_rules_themselves_are_allowed():
    flags = {
        "journal.slots": "8192",
        "journal.metadata_slots": "8192",
        "commit.pipeline": "2048",
        "seal.size": "64MiB",
        "request.timeout": "5m",
        "listen.address": "127.0.0.1:0",
        "listen.http": "127.0.0.1:0",
        "journal.file_size": "1MiB",
    }
    assert load(None, {}, flags).journal.file_size == MIB


def test_several_nodes_on_a_wildcard_must_say_how_they_are_reached():
    config = replace(
        Config(), cluster=Cluster(replicas=3), listen=Listen(address=AddressKind("::", 7654))
    )
    found = {flaw.key: flaw.text for flaw in flaws(config)}
    assert found["listen.advertise"].startswith("is required: listen.address is [::]:7654")
    said = replace(config, listen=replace(config.listen, advertise=AddressKind("node-1", 7654)))
    assert "listen.advertise" not in {flaw.key for flaw in flaws(said)}


@pytest.mark.parametrize(
    ("text", "host", "is_loopback", "is_wildcard"),
    [
        ("127.0.0.1:1", "127.0.0.1", True, False),
        ("127.8.9.1:1", "127.8.9.1", True, False),
        ("localhost:1", "localhost", True, False),
        ("LOCALHOST:1", "LOCALHOST", True, False),
        ("[::1]:1", "::1", True, False),
        ("[::ffff:127.0.0.1]:1", "::ffff:127.0.0.1", True, False),
        ("0.0.0.0:1", "0.0.0.0", False, True),
        ("[::]:1", "::", False, True),
        ("[::ffff:0.0.0.0]:1", "::ffff:0.0.0.0", False, True),
        ("192.0.2.7:1", "192.0.2.7", False, False),
        ("localhost.evil.example:1", "localhost.evil.example", False, False),
        ("3f2a9b7c:1", "3f2a9b7c", False, False),
    ],
)
def test_addresses_know_who_can_reach_them(text, host, is_loopback, is_wildcard):
    flags = {"listen.address": text, "auth.token": TOKEN}
    address = load(None, {}, flags).listen.address
    assert address == AddressKind(host, 1)
    assert (address.is_loopback, address.is_wildcard) == (is_loopback, is_wildcard)
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7654",
        ":7654",
        "a",
        "a:",
        "a:b",
        "a:65536",
        "a:99999",
        "a:-1",
        "a:123456",
        "::1:7654",
        "[::1]",
        "[127.0.0.1]:1",
        "[a]:1",
        "[fe80::1%eth0]:1",
        "127.1:1",
        "0:1",
        "2130706433:1",
        "0x7f000001:1",
        "1.2.3.4.5:1",
        "256.1.1.1:1",
        "a b:1",
        "a..b:1",
        "-a:1",
        "a-:1",
        "a:1\n",
        "http://a:1",
        "a:\u0661",
        "é:1",
        "a" * 64 + ":1",
        "a." * 127 + ":1",
        "a" * 60 + "-:1",
        ".".join(["a" * 50] * 4) + "-:1",
        "a" * 100_000 + "-:1",
    ],
)
def test_what_is_no_address_is_refused_at_once(text):
    error = flaw_of(flags={"listen.address": text, "auth.token": TOKEN})
    assert error.key == "listen.address"
    assert len(str(error)) < 300
    assert str(error).isprintable()


def test_a_token_lets_others_in(tmp_path):
    (tmp_path / "token").write_text(TOKEN + "\n")
    by_file = {"HEADRACE_AUTH__TOKEN_FILE": str(tmp_path / "token")}
    for environ in ({"HEADRACE_AUTH__TOKEN": TOKEN}, by_file):
        config = load(None, environ, {"listen.address": "0.0.0.0:7654"})
        assert config.auth.token == TOKEN


def test_a_later_layer_replaces_a_token_however_it_was_given(toml, tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    file = toml(f'[auth]\ntoken_file = "{tmp_path / "token"}"')
    config = load(file, {"HEADRACE_AUTH__TOKEN": "another-token-than-that"}, {})
    assert config.auth.token == "another-token-than-that"
    assert config.auth.token_file == ""
    back = load(
        file, {"HEADRACE_AUTH__TOKEN": "x" * 20}, {"auth.token_file": f"{tmp_path}/token"}
    )
    assert back.auth.token == TOKEN


def test_two_tokens_in_one_layer_are_one_too_many():
    error = flaw_of(flags={"auth.token": TOKEN, "auth.token_file": "x"})
    assert str(error) == (
        "auth.token (from a flag): auth.token_file is also set. Set only one of them"
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"short", "the token in the file has 5 characters, must have 16 to 1024"),
        (b"a" * 5000, "is larger than"),
        (b"line-one-of-many\nline-two-of-many\n", "printable ASCII"),
        (b"\xff" * 20, "printable ASCII"),
        (b"********", "the token in the file is masked"),
    ],
)
def test_a_token_file_without_a_token_is_refused(tmp_path, content, said):
    path = tmp_path / "token"
    path.write_bytes(content)
    error = flaw_of(flags={"auth.token_file": str(path)})
    assert error.key == "auth.token_file"
    assert said in str(error)


def test_a_token_file_that_is_not_there_is_named():
    error = str(flaw_of(flags={"auth.token_file": "/nowhere/token"}))
    assert error.startswith("auth.token_file (from a flag): '/nowhere/token' cannot be read")


def test_no_message_and_no_output_repeats_a_token():
    for token in ("hush", "hush\nhush-hush-hush", "hush" * 1000):
        assert "hush" not in str(flaw_of(environ={"HEADRACE_AUTH__TOKEN": token}))
    config = load(None, {"HEADRACE_AUTH__TOKEN": TOKEN}, {})
    assert TOKEN not in effective(config)
    assert TOKEN not in repr(config)
    assert 'token = "********"' in effective(config)


def test_the_effective_config_reads_back_as_itself(toml, tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    flags = {
        "data.path": 'C:\\"quoted" é',
        "listen.address": "[::]:7000",
        "listen.http": "",
        "listen.advertise": "node-1.example:7000",
        "seal.age": "90s",
        "limits.body_size": "1MB",
        "auth.token_file": str(tmp_path / "token"),
    }
    config = load(None, {}, flags)
    text = effective(config)
    assert text.startswith("# ")
    assert TOKEN not in text
    assert load(toml(text), {}, {}) == config
    assert load(toml(effective(Config())), {}, {}) == Config()


def test_a_masked_token_is_not_taken_for_a_token(toml):
    config = load(None, {"HEADRACE_AUTH__TOKEN": TOKEN}, {})
    file = toml(effective(config))
    assert "is masked. Set the token itself" in str(flaw_of(file))
    assert load(file, {"HEADRACE_AUTH__TOKEN": TOKEN}, {}) == config


def test_the_effective_config_has_every_setting():
    table = tomllib.loads(effective(Config()))
    found = [f"{section}.{name}" for section, content in table.items() for name in content]
    assert found == list(SETTINGS)


def tried(attempt: Callable[[], object]) -> object:
    """Return what `attempt` returns, or the BadConfig that it raises; let all else through."""
    try:
        return attempt()
    except BadConfig as error:
        return error


@given(st.sampled_from(sorted(SETTINGS)), st.text(max_size=40))
def test_no_text_raises_anything_else(key, text):
    result = tried(lambda: load(None, {}, {key: text}))
    assert isinstance(result, Config) or str(result).isprintable()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=5,
    )
)
def test_every_kind_refuses_what_it_is_not(raw):
    for setting in SETTINGS.values():
        value = tried(lambda kind=setting.kind: kind.read(raw))
        if isinstance(value, BadConfig):
            assert value.key == ""
        elif not isinstance(setting.kind, Secret):
            written = tomllib.loads(f"x = {setting.kind.toml(value)}")["x"]
            assert setting.kind.read(written) == value


def test_defaults_are_within_their_own_limits():
    for setting in SETTINGS.values():
        raw = tomllib.loads(f"x = {setting.kind.toml(setting.default)}")["x"]
        assert setting.kind.read(raw) == setting.default
    assert Config().limits.body_size == 64 * 1024 * KIB


def test_the_page_lists_every_setting_as_the_code_has_it():
    rows = re.findall(
        r"^\| `(\w+\.\w+)` \| `(.+?)` \| (.+?) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE
    )
    assert rows == [
        (key, setting.kind.toml(setting.default), setting.kind.range(), setting.meaning)
        for key, setting in SETTINGS.items()
    ]
