"""The definition of a pipeline, as read from its TOML file.

name = "orders"                      # of the pipeline; recorded in the table
topic = "shop/orders"
address = "127.0.0.1:7654"           # or path = "./data"
table = "./tables/orders"
sql = "select * from source"         # or transform = "clean.py", with transform(df)
lineage = true                       # keep _hr_partition and _hr_offset
batch_rows = 1_000_000               # at most, in one commit
batch_size = "1GiB"
min_partitions = 0                   # at least so many tasks a round; 0 for one per core
interval = "1s"                      # between polls for new rows
freshness = "5s"                     # instead: rows should be in the table within this time
file_size = "128MiB"                 # small files are compacted up to it; "0" disables that
tail = "rows"                        # "sealed": only rows that are in sealed segments

[store]                              # of a table on an object store, such as s3://bucket/orders
endpoint = "https://minio:9000"      # of an S3 that is not Amazon's
region = "eu-central-1"              # and path_style, allow_http, profile, timeout
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from headrace.errors import BadConfig
from headrace.model.namespace import NAME_SIZE_MAX, is_name
from headrace.model.units import parse_duration, parse_size
from headrace.spark.pipeline.driver_reports import group_of
from headrace.spark.stores.location import Location, location_of

SOURCE: Final = "source"  # the name of the rows in SQL
ROWS: Final = "rows"  # the tail comes as it is appended
SEALED: Final = "sealed"  # only rows of sealed segments come
_URL: Final = re.compile(r"([A-Za-z][\w+.-]+):/+(.*)")  # scheme, and the rest
_PATHS: Final = ("path", "transform", "token_file")

_KINDS: Final[dict[str, type]] = {
    "lineage": bool,
    "batch_rows": int,
    "min_partitions": int,
    "store": dict,
}  # others are strings
_LEAST: Final = {
    "batch_size": "64KiB",  # a smaller commit is mostly overhead
    "interval": "100ms",  # a poll of node and table takes about as long
    "freshness": "1s",  # a round of Spark takes about half as long
    "file_size": "0",
}
_TIMES: Final = ("interval", "freshness")
_SAID: Final[dict[type, str]] = {
    bool: "true or false",
    int: "an integer",
    str: "a string",
    dict: "a table of settings",
}


@dataclass(frozen=True, slots=True)
class Definition:
    """The settings of a pipeline: what it reads, does and writes."""

    name: str
    topic: str
    table: str
    address: str = ""
    path: str = ""
    sql: str = ""
    transform: str = ""  # a Python file
    lineage: bool = True
    batch_rows: int = 1_000_000
    batch_size: str = "1GiB"
    min_partitions: int = 0
    interval: str = "1s"
    freshness: str = ""
    file_size: str = "128MiB"
    tail: str = ROWS
    token_file: str = ""
    store: Mapping[str, object] = field(default_factory=dict)

    @property
    def location(self) -> Location:
        """Where the table is."""
        return location_of(self.table, self.store)

    @property
    def size_max(self) -> int:
        return parse_size(self.batch_size)

    @property
    def file_size_max(self) -> int:
        """The size up to which small files are compacted; 0 disables that."""
        return parse_size(self.file_size)

    @property
    def interval_seconds(self) -> float:
        return parse_duration(self.interval).seconds

    @property
    def freshness_seconds(self) -> float | None:
        """The time within which rows should be in the table, if there is a target."""
        return parse_duration(self.freshness).seconds if self.freshness else None

    @property
    def transform_key(self) -> str:
        """The name of the setting that transforms the rows."""
        return "transform" if self.transform else "sql"

    @property
    def options(self) -> dict[str, str]:
        """The options of the source."""
        found = {"topic": self.topic, "address": self.address, "path": self.path}
        found["tokenFile"] = self.token_file
        found["minPartitions"] = str(self.min_partitions or "")
        return {key: value for key, value in found.items() if value}


def load(path: Path) -> Definition:
    """Read a definition; paths are relative to its directory. Raises BadConfig."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadConfig("", f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfig("", f"{path} is not valid TOML: {error}") from error
    return define(found, path.parent, str(path))


def define(found: dict[str, Any], root: Path, source: str = "") -> Definition:
    """Check a definition and return it."""
    known = {each.name: each for each in fields(Definition)}
    for key, value in found.items():
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f"Did you mean {near[0]}?" if near else f"Valid settings: {', '.join(known)}"
            raise BadConfig(
                key, "is not a valid setting of a pipeline", source=source, hint=hint
            )
        wanted = _KINDS.get(key, str)
        if type(value) is not wanted:
            flaw = f"must be {_SAID[wanted]}, got {value!r}"
            raise BadConfig(key, flaw, source=source)
    for key in ("name", "topic", "table"):
        if not found.get(key):
            raise BadConfig(key, "is required", source=source, hint=f'Add {key} = "…"')
    if all(found.get(key) for key in _TIMES):
        flaw = "cannot be combined with interval"
        hint = "Remove interval: the driver chooses when to look, so that rows are in time"
        raise BadConfig("freshness", flaw, source=source, hint=hint)
    _refuse_urls(found, source)
    rooted = {**_rooted(found, root), "table": _table(found, root, source)}
    made = Definition(**rooted)
    _check(made, source)
    return made


def _table(found: dict[str, Any], root: Path, source: str) -> str:
    """Return the table's URL or absolute path. Raises BadConfig if it is neither."""
    given = found["table"]
    text = given if _URL.fullmatch(given) else str(root / given)
    try:
        return location_of(text, found.get("store")).url
    except BadConfig as error:
        key = "table" if error.key == "location" else f"store.{error.key}"
        flaw = Exception.__str__(error).removeprefix(f"{error.key}: ")
        raise BadConfig(key, flaw, source=source, hint=error.hint) from None


def refuse_missing(definition: Definition) -> None:
    """Check that the transform's file exists. Only a run of the pipeline needs it."""
    if definition.transform and not Path(definition.transform).is_file():
        raise BadConfig(
            "transform",
            f"{definition.transform} does not exist or is not a file",
            hint="Give a Python file with transform(df), relative to the pipeline's directory",
        )


def _refuse_urls(found: dict[str, Any], source: str) -> None:
    """Refuse URLs: each would become a subdirectory of that name next to the file."""
    for key in _PATHS:
        url = _URL.fullmatch(found.get(key, ""))
        if url is not None:
            path = f"/{url[2]}" if url[1] == "file" else f"./{key}"
            flaw = f"{found[key]!r} is a URL, but a local path is required"
            raise BadConfig(key, flaw, source=source, hint=f'Give a path: {key} = "{path}"')


def _rooted(found: dict[str, Any], root: Path) -> dict[str, Any]:
    paths = {key: str((root / found[key]).absolute()) for key in _PATHS if found.get(key)}
    return {**found, **paths}


def _check(made: Definition, source: str) -> None:
    if not is_name(group_of(made.name)) or not is_name(made.name):
        most = NAME_SIZE_MAX - len(group_of(""))
        hint = f"Use letters, digits, dots, dashes and underscores, at most {most}"
        raise BadConfig("name", f"{made.name!r} is not a valid name", source=source, hint=hint)
    if bool(made.address) == bool(made.path):
        raise BadConfig("address", "set either address or path", source=source)
    if made.sql and made.transform:
        flaw = "cannot be combined with transform"
        raise BadConfig("sql", flaw, source=source, hint="Set only one of them")
    _check_tail(made, source)
    if made.batch_rows <= 0:
        raise BadConfig("batch_rows", f"must be above 0, got {made.batch_rows}", source=source)
    if made.min_partitions < 0:
        flaw = f"must not be negative, got {made.min_partitions}"
        raise BadConfig("min_partitions", flaw, source=source)
    for key, least in _LEAST.items():
        said = getattr(made, key)
        if key == "freshness" and not said:
            continue
        try:
            is_enough = _amount(key, said) >= _amount(key, least)
        except BadConfig as error:
            flaw = Exception.__str__(error)
            raise BadConfig(key, flaw, source=source, hint=error.hint) from None
        if not is_enough:
            hint = f'Set {key} = "{least}" or more'
            raise BadConfig(
                key, f"must be at least {least}, got {said!r}", source=source, hint=hint
            )


def _check_tail(made: Definition, source: str) -> None:
    if made.tail not in (ROWS, SEALED):
        flaw = f"must be {ROWS!r} or {SEALED!r}, got {made.tail!r}"
        raise BadConfig("tail", flaw, source=source)
    if made.tail == SEALED and (made.sql or made.transform):
        key = made.transform_key
        hint = f'Remove {key}, or set tail = "{ROWS}"'
        raise BadConfig("tail", f"cannot be {SEALED!r} with {key}", source=source, hint=hint)


def _amount(key: str, said: str) -> int:
    return parse_duration(said).us if key in _TIMES else parse_size(said)
