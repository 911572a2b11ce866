"""Does a transform keep a row a row? Its plan says so, before anything is read.

A pipeline runs its transform over one batch after the other, and a batch is whatever had come
by then. An aggregate over it is one of a part, and another one after a restart. So each
operation between the batch and the result must make each of its rows of one row. Operations on
other tables may be any; joined with the batch, they look up. What runs in functions of the
user, such as `mapInPandas`, no plan can tell.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import DataFrame

from headrace.errors import BadConfig
from headrace.spark.pipeline.definition import Definition

# Catalyst's operations of which each row that comes out is made of one that went in.
_ALONE: Final = frozenset(
    {
        "CTERelationDef",
        "CollectMetrics",
        "DeserializeToObject",
        "EventTimeWatermark",
        "Expand",
        "Filter",
        "Generate",
        "LateralJoin",
        "MapElements",
        "MapInArrow",
        "MapInPandas",
        "MapPartitions",
        "PipeOperator",
        "Project",
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sample",
        "SerializeFromObject",
        "Sort",
        "SubqueryAlias",
        "TypedFilter",
        "View",
        "WithCTE",
    }
)
# Joins that give each row of one side by itself, whatever other rows that side has.
_LOOKS_UP_RIGHT: Final = ("INNER", "CROSS", "LEFT OUTER", "LEFT SEMI", "LEFT ANTI")
_LOOKS_UP_LEFT: Final = ("INNER", "CROSS", "RIGHT OUTER")
_NUMBERS: Final = re.compile(r"#\d+L?")  # by which Spark tells columns apart, and no reader
_SHOWN_FIELDS: Final = 10
_SHOWN_MAX: Final = 160
_HINT: Final = (
    "Keep a row a row. Counts, windows and the like are for a streaming query, which "
    "headrace.spark.table_writer brings into a table"
)

# A node of a plan, which is an object of the JVM.
Node = Any


def refuse_mixing(
    frame: DataFrame, definition: Definition, is_batch: Callable[[Node], bool]
) -> None:
    """Raise BadConfig for a transform in which a row depends on other rows of its batch.

    `is_batch` tells whether a leaf of the plan is the batch.
    """
    plan: Any = frame._jdf.queryExecution().analyzed()
    if not _Walk(definition, is_batch).reads(plan):
        raise BadConfig(
            definition.transform_key,
            "its rows do not come from those of the batch, as far as its plan shows: "
            f"{_shown(plan)}",
            hint="Make them of `source`, or of the frame that transform(df) is given, without "
            "collecting it first",
        )


class _Walk:
    def __init__(self, definition: Definition, is_batch: Callable[[Node], bool]) -> None:
        self._definition = definition
        self._is_batch = is_batch
        self._named: dict[int, bool] = {}  # by its id, whether a `with` reads the batch

    def reads(self, node: Node) -> bool:
        """Tell whether something reads the batch. Raise BadConfig if it mixes its rows."""
        name = _name(node)
        for subquery in _each(node.subqueries()):
            if self.reads(subquery):
                raise self._mixed(node, "a subquery reads the batch")
        reading = [self.reads(child) for child in _each(node.children())]
        if name == "CTERelationRef":
            return self._named.get(node.cteId(), False)
        if not reading:
            return self._is_batch(node)
        if any(reading):
            self._refuse(name, node, reading)
        if name == "CTERelationDef":
            self._named[node.id()] = reading[0]
        if name == "WithCTE":
            return reading[-1]  # the definitions come first
        return any(reading)

    def _refuse(self, name: str, node: Node, reading: list[bool]) -> None:
        if name == "Join":
            kind = node.joinType().sql()
            if all(reading):
                raise self._mixed(node, "it joins the batch with itself")
            if kind not in (_LOOKS_UP_RIGHT if reading[0] else _LOOKS_UP_LEFT):
                raise self._mixed(node, f"{kind.lower()} gives rows of the other side")
        elif name == "Union":
            if not all(reading):
                raise self._mixed(node, "rows of another table would come with each batch")
        elif name not in _ALONE:
            raise self._mixed(node)

    def _mixed(self, node: Node, why: str = "") -> BadConfig:
        flaw = "it makes a row depend on other rows of its batch, which is what came by then: "
        where = _where(node)
        return BadConfig(
            self._definition.transform_key,
            f"{flaw}{_shown(node)}{where}{f' ({why})' if why else ''}",
            hint=_HINT,
        )


def _name(node: Node) -> str:
    return str(node.getClass().getSimpleName())


def _each(found: Any) -> list[Node]:  # noqa: ANN401 - a sequence of Scala's
    return [found.apply(place) for place in range(found.size())]


def _shown(node: Node) -> str:
    return _NUMBERS.sub("", str(node.simpleString(_SHOWN_FIELDS)))[:_SHOWN_MAX]


def _where(node: Node) -> str:
    """Say in which line of SQL something is, if Spark knows."""
    line = node.origin().line()
    return f", line {line.get()}" if line.isDefined() else ""
