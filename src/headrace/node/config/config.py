"""Loads a node's config: defaults < TOML file < environment < flags, validated as a whole.

`Config` holds values only. During loading, the origin of each value is tracked, so that an
error names the setting, its source and the flaw; `trace` returns the origins, too.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

from headrace.errors import BadConfig
from headrace.node.config.setting_kinds import TOKEN_SIZE_MAX, Secret, shown
from headrace.node.config.setting_rules import flaws
from headrace.node.config.settings import SETTINGS, Config, Setting

_WORD: Final = r"""(?:[A-Za-z0-9_-]+|"[^"\\]*"|'[^']*')"""
_NAME: Final = rf"{_WORD}(?:\s*\.\s*{_WORD})*"
_SECTION = re.compile(rf"\s*\[\[?\s*({_NAME})\s*\]\]?")
_KEY = re.compile(rf"\s*({_NAME})\s*=")
_PART = re.compile(_WORD)
_OVER_LINES: Final = ('"""', "'''")


def lines_of(text: str) -> Mapping[str, int]:
    """Return the line (from 1) of each section and dotted key, where it can be determined."""
    found: dict[str, int] = {}
    if any(mark in text for mark in _OVER_LINES):
        return found
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        header, key = _SECTION.match(line), _KEY.match(line)
        if header is not None:
            section = _dotted(header.group(1))
            found.setdefault(section, number)
        elif key is not None:
            name = _dotted(key.group(1))
            found.setdefault(f"{section}.{name}" if section else name, number)
    return found


def _dotted(name: str) -> str:
    return ".".join(part.strip("\"'") for part in _PART.findall(name))


FILE_SIZE_MAX: Final = 1024 * 1024  # guards against a device or a log file given as the config
VARIABLE_PREFIX: Final = "HEADRACE_"
VARIABLE_JOINT: Final = "__"  # between section and name; a variable without it is ignored

_TOKEN, _TOKEN_FILE = "auth.token", "auth.token_file"
_HEADER = """\
# The effective config of this node: defaults, file, environment and flags combined.
# Written at each start, for information only. Secrets are masked.
"""

_Made = TypeVar("_Made")


class Layer(StrEnum):
    """The sources of values; each layer overrides the ones before it."""

    DEFAULT = "default"
    FILE = "file"
    VARIABLE = "variable"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class SettingOrigin:
    """The exact source of a value: a file and line, a variable, a flag."""

    layer: Layer
    where: str


@dataclass(frozen=True, slots=True)
class Traced:
    """A config with the origin of each of its settings, by key."""

    config: Config
    origins: Mapping[str, SettingOrigin]


@dataclass(frozen=True, slots=True)
class _Given:
    """A raw value: text, or a parsed TOML value."""

    raw: object
    origin: SettingOrigin

    @property
    def source(self) -> str:
        return self.origin.where


_DEFAULT: Final = SettingOrigin(Layer.DEFAULT, "the default")
_FLAG: Final = SettingOrigin(Layer.FLAG, "a flag")


@dataclass(slots=True)
class _Layers:
    """The values given so far, by key; later layers override earlier ones."""

    given: dict[str, _Given] = field(default_factory=dict)

    def add(self, layer: Mapping[str, _Given]) -> None:
        _check_known(layer)
        if all(key in layer and layer[key].raw for key in (_TOKEN, _TOKEN_FILE)):
            raise BadConfig(
                _TOKEN,
                f"{_TOKEN_FILE} is also set",
                source=layer[_TOKEN].source,
                hint="Set only one of them",
            )
        # Both set the same secret: a later layer overrides it in either form.
        if _TOKEN in layer or _TOKEN_FILE in layer:
            self.given.pop(_TOKEN, None)
            self.given.pop(_TOKEN_FILE, None)
        self.given.update(layer)

    def origin(self, key: str) -> SettingOrigin:
        return self.given[key].origin if key in self.given else _DEFAULT

    def source(self, key: str) -> str:
        return self.origin(key).where

    def value(self, setting: Setting) -> object:
        given = self.given.get(setting.key)
        if given is None:
            return setting.default
        try:
            return setting.kind.read(given.raw)
        except BadConfig as error:
            raise _named(setting.key, error, given.source) from None


def load(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, str]) -> Config:
    """Load the config of a node. Raises BadConfig for the first error found.

    `flags` are dotted keys, such as `seal.size`. Environment variables that do not begin with
    `HEADRACE_`, or have no section, are ignored.
    """
    return trace(file, environ, flags).config


def trace(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, str]) -> Traced:
    """Load a config with the origin of each setting. See `load`."""
    layers = _Layers()
    if file is not None:
        layers.add(_from_file(file))
    layers.add(_from_environment(environ))
    layers.add({key: _Given(text, _FLAG) for key, text in flags.items()})
    values = {key: layers.value(setting) for key, setting in SETTINGS.items()}
    if values[_TOKEN_FILE]:
        values[_TOKEN] = _read_token(str(values[_TOKEN_FILE]), layers.source(_TOKEN_FILE))
    config = _assembled(values)
    for flaw in flaws(config):
        source = layers.source(flaw.key)
        raise BadConfig(flaw.key, flaw.text, source=source, hint=flaw.hint)
    return Traced(config, {key: layers.origin(key) for key in SETTINGS})


def effective(config: Config) -> str:
    """Return all settings as TOML. `load` accepts it again, except for masked secrets."""
    lines = [_HEADER]
    section = ""
    for setting in SETTINGS.values():
        if setting.section != section:
            section = setting.section
            lines.append(f"\n[{section}]\n" if len(lines) > 1 else f"[{section}]\n")
        lines.append(f"{setting.name} = {toml_of(config, setting)}\n")
    return "".join(lines)


def toml_of(config: Config, setting: Setting) -> str:
    """Return the value of a setting as TOML; a secret is masked."""
    value = setting.of(config)
    if setting.key == _TOKEN and config.auth.token_file:
        value = ""  # it is in the file
    return setting.kind.toml(value)


def _assembled(values: Mapping[str, object]) -> Config:
    sections = {}
    for section in fields(Config):
        assert callable(section.default_factory)
        own = {s.name: values[s.key] for s in SETTINGS.values() if s.section == section.name}
        sections[section.name] = _make(section.default_factory, own)
    return _make(Config, sections)


def _make(cls: Callable[..., _Made], values: Mapping[str, object]) -> _Made:
    """Build a section. `SETTINGS` comes from its fields, so each value has the right type."""
    return cls(**values)


def _from_file(path: Path) -> dict[str, _Given]:
    table, lines = _read_toml(path)

    def origin(key: str) -> SettingOrigin:
        line = lines.get(key) or lines.get(key.partition(".")[0])
        return SettingOrigin(Layer.FILE, f"{path}:{line}" if line else str(path))

    found = {}
    for section, content in table.items():
        if isinstance(content, dict):
            if not content:
                _check_section(section, origin(section).where)
            for name, raw in content.items():
                key = f"{section}.{name}"
                found[key] = _Given(raw, origin(key))
        else:
            raise _unknown(section, origin(section).where)
    return found


def _read_toml(path: Path) -> tuple[dict[str, object], Mapping[str, int]]:
    """Parse a config file; return its content and the line of each key."""
    data = _read(path, FILE_SIZE_MAX, "", "the config file")
    try:
        text = data.decode()
        return tomllib.loads(text), lines_of(text)
    except UnicodeDecodeError:
        raise BadConfig("", f"{path} is not UTF-8") from None
    except RecursionError:
        raise BadConfig("", f"{path} is nested too deeply") from None
    except ValueError as error:  # also a number with more digits than Python parses
        raise BadConfig("", f"{path} is not valid TOML: {shown(str(error))[1:-1]}") from None


def _from_environment(environ: Mapping[str, str]) -> dict[str, _Given]:
    variables = {setting.variable: key for key, setting in SETTINGS.items()}
    found = {}
    for name, text in sorted(environ.items()):
        rest = name.removeprefix(VARIABLE_PREFIX)
        if rest == name or VARIABLE_JOINT not in rest:
            continue
        if name not in variables:
            raise BadConfig(
                shown(name)[1:-1],
                "unknown setting",
                source="the environment",
                hint=_nearest(name.upper(), variables),
            )
        found[variables[name]] = _Given(text, SettingOrigin(Layer.VARIABLE, name))
    return found


def _check_known(layer: Mapping[str, _Given]) -> None:
    for key, given in layer.items():
        if key not in SETTINGS:
            raise _unknown(key, given.source)


def _check_section(section: str, source: str) -> None:
    if section not in _sections():
        raise _unknown(section, source)


def _unknown(key: str, source: str) -> BadConfig:
    said = shown(key)[1:-1]
    if key in _sections():
        return BadConfig(said, "is a section, not a setting", source=source)
    if key in SETTINGS:
        hint = f"Move it to its section, [{key.partition('.')[0]}]"
        return BadConfig(said, "is outside its section", source=source, hint=hint)
    hint = _nearest(key.lower(), SETTINGS) or _moved(key)
    return BadConfig(said, "unknown setting", source=source, hint=hint)


def _nearest(name: str, known: Mapping[str, object]) -> str:
    near = get_close_matches(name[:100], known, n=1, cutoff=0.7)
    return f"Did you mean {near[0]}?" if near else ""


def _moved(key: str) -> str:
    """Suggest settings of that name in other sections, or list the sections."""
    name = key.rpartition(".")[2]
    others = [setting.key for setting in SETTINGS.values() if setting.name == name]
    if others:
        return f"Did you mean {' or '.join(others)}?"
    return f"The sections are {', '.join(_sections())}"


def _sections() -> Iterator[str]:
    return (section.name for section in fields(Config))


def _read_token(name: str, source: str) -> str:
    # Two bytes more than the longest token, for a line ending.
    data = _read(Path(name), TOKEN_SIZE_MAX + 2, _TOKEN_FILE, "the token file", source)
    try:
        token = Secret().read(data.decode("ascii").removesuffix("\n").removesuffix("\r"))
    except UnicodeDecodeError:
        flaw = "the token in the file has characters other than printable ASCII"
        raise BadConfig(_TOKEN_FILE, flaw, source=source) from None
    except BadConfig as error:
        raise _named(_TOKEN_FILE, error, source, "the token in the file ") from None
    if not token:
        raise BadConfig(_TOKEN_FILE, f"{shown(name)} is empty", source=source)
    return token


def _read(path: Path, size_max: int, key: str, what: str, source: str = "") -> bytes:
    try:
        with path.open("rb") as stream:
            data = stream.read(size_max + 1)
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        reason = error.strerror if isinstance(error, OSError) else str(error)
        flaw = f"{shown(str(path))} cannot be read: {reason}"
        raise BadConfig(key, flaw, source=source) from None
    if len(data) > size_max:
        flaw = f"{shown(str(path))}: {what} is larger than {size_max} bytes"
        raise BadConfig(key, flaw, source=source)
    return data


def _named(key: str, error: BadConfig, source: str, before: str = "") -> BadConfig:
    """Return the error of a kind, with the name of the setting."""
    flaw = before + str(error.args[0])
    return BadConfig(key, flaw, source=source, hint=error.hint)
