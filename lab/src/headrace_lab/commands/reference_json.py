"""Generates docs/cli-json.md from the structs that commands print with --json.

python -m headrace_lab.commands.reference_json > docs/cli-json.md
"""

import inspect
import re
import sys
from collections.abc import Iterator
from typing import Final

import msgspec
import msgspec.inspect as kinds

from headrace.cli.commands.config import ShownConfig, Validated
from headrace.cli.commands.group import GroupDeleted, GroupList, GroupReset
from headrace.cli.commands.inspect import FileShape
from headrace.cli.commands.metadata import AdoptedShape, ForgottenShape
from headrace.cli.commands.pipeline import (
    PipelineChecked,
    PipelineCleaned,
    PipelineRan,
)
from headrace.cli.commands.produce import Produced
from headrace.cli.commands.prove import ProofAnswer
from headrace.cli.commands.spark import SparkChecked
from headrace.cli.commands.topic import TopicCreated, TopicDeleted
from headrace.cli.demo.transcript import Demo
from headrace.cli.pipelines.pipeline_reset import PipelineReset
from headrace.cli.pipelines.pipeline_status import PipelineList, PipelineStatus
from headrace.cli.pipelines.pipeline_stop import PipelineStopped
from headrace.cli.status.status_figures import Picture
from headrace.cli.topics.topic_lines import TopicDescribed, TopicList
from headrace.doctor.examine import Examination
from headrace.doctor.salvage.salvage_report import Account
from headrace_lab.commands.chaos import ChaosMutants, ChaosShape
from headrace_lab.commands.sim import MutantShape, SimShape

# What each command prints. A second shape is that of the option which is named.
SHAPES: Final[dict[str, type[msgspec.Struct]]] = {
    "chaos spark": ChaosShape,
    "chaos spark --mutants": ChaosMutants,
    "config show": ShownConfig,
    "config validate": Validated,
    "demo": Demo,
    "doctor": Examination,
    "doctor --salvage": Account,
    "group delete": GroupDeleted,
    "group describe": GroupList,
    "group list": GroupList,
    "group reset": GroupReset,
    "inspect carry": FileShape,
    "inspect journal": FileShape,
    "inspect segment": FileShape,
    "inspect snapshot": FileShape,
    "inspect superblock": FileShape,
    "metadata adopt": AdoptedShape,
    "metadata forget": ForgottenShape,
    "pipeline check": PipelineChecked,
    "pipeline clean": PipelineCleaned,
    "pipeline reset": PipelineReset,
    "pipeline run": PipelineRan,
    "pipeline status": PipelineStatus,
    "pipeline status --data": PipelineList,
    "pipeline stop": PipelineStopped,
    "produce": Produced,
    "prove": ProofAnswer,
    "sim": SimShape,
    "sim --mutants": MutantShape,
    "spark check": SparkChecked,
    "status": Picture,
    "topic alter": TopicDescribed,
    "topic create": TopicCreated,
    "topic delete": TopicDeleted,
    "topic describe": TopicDescribed,
    "topic list": TopicList,
}

# Commands whose --json is not one struct, and what it is.
OTHERS: Final = {
    "bench": "an object with `bench` and `cases`: of each case `name`, `ours`, `unit`, "
    "`reference`, `reference_value`, `ratio` and `spread`, and of `partitions` also `figures`",
    "read": "one object for each row, on a line of its own: a field for each column",
}

_HEAD: Final = """\
# What --json prints

With `--json` a command prints one JSON object to standard output, and nothing else. Fields keep
their names and meanings; new ones may be added. Times are ISO 8601 in UTC, sizes are bytes,
durations are seconds. A failure is told on standard error and by the exit code, as without
`--json`. Commands and options are in [cli](cli.md); this page is made by
`python -m headrace_lab.commands.reference_json`.
"""

_WORDS: Final[dict[type[kinds.Type], str]] = {
    kinds.BoolType: "true or false",
    kinds.EnumType: "text",
    kinds.FloatType: "number",
    kinds.IntType: "integer",
    kinds.NoneType: "null",
    kinds.StrType: "text",
}


def page() -> str:
    """Return the whole page."""
    lines = [f"| `{words}` | {_link(shape)} |" for words, shape in SHAPES.items()]
    lines += [f"| `{words}` | {what} |" for words, what in OTHERS.items()]
    parts = [_HEAD, "| command | prints |\n| --- | --- |", *sorted(lines), ""]
    for shape in _all_shapes():
        parts += _section(shape)
    return "\n".join(parts).rstrip() + "\n"


def _all_shapes() -> list[type]:
    """Return every struct that is printed, alone or within another, by name."""
    found: dict[str, type] = {}
    waiting: list[type] = list(SHAPES.values())
    while waiting:
        shape = waiting.pop()
        if found.setdefault(shape.__name__, shape) is not shape:
            raise AssertionError(f"two structs are named {shape.__name__}")
        for field in _fields(shape):
            waiting += [each for each in _structs(field.type) if each.__name__ not in found]
    return [found[name] for name in sorted(found)]


def _section(shape: type) -> list[str]:
    meanings = _meanings(shape)
    rows = [
        f"| `{each.encode_name}` | {_word(each.type)} | {meanings.get(each.name, '')} |"
        for each in _fields(shape)
    ]
    head = "| field | value | |\n| --- | --- | --- |"
    return [f"## {shape.__name__}", "", inspect.getdoc(shape) or "", "", head, *rows, ""]


def _fields(shape: type) -> tuple[kinds.Field, ...]:
    info = kinds.type_info(shape)
    assert isinstance(info, kinds.StructType)
    return info.fields


def _meanings(shape: type) -> dict[str, str]:
    """Return what the comments beside the fields say."""
    found = re.findall(r"^ +(\w+): .*?  # (.+)$", inspect.getsource(shape), re.MULTILINE)
    return dict(found)


def _structs(kind: kinds.Type) -> Iterator[type]:
    match kind:
        case kinds.StructType():
            yield kind.cls
        case kinds.ListType() | kinds.VarTupleType():
            yield from _structs(kind.item_type)
        case kinds.DictType():
            yield from _structs(kind.value_type)
        case kinds.UnionType():
            for each in kind.types:
                yield from _structs(each)
        case _:
            pass  # a plain value


def _word(kind: kinds.Type) -> str:
    match kind:
        case kinds.StructType():
            return _link(kind.cls)
        case kinds.ListType() | kinds.VarTupleType():
            return f"list of {_word(kind.item_type)}"
        case kinds.DictType():
            return f"object: {_word(kind.value_type)} by name"
        case kinds.UnionType():
            return ", ".join(map(_word, kind.types))
        case _:
            return _WORDS[type(kind)]


def _link(shape: type) -> str:
    return f"[{shape.__name__}](#{shape.__name__.lower()})"


if __name__ == "__main__":
    sys.stdout.write(page())
