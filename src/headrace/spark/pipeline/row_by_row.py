"""Checks a transform's plan, before anything is read: each output row must come from one row.

A pipeline runs its transform over one batch after another, and a batch is whatever has arrived
by then. An aggregate over it covers an arbitrary part, and a different one after a restart. So
each operation between the batch and the result must make each of its rows from one row.
Operations on other tables are free; joined with the batch, they act as lookups. A plan does not
show what user functions such as `mapInPandas` do; a table function that takes the batch as a
table is refused, since combining rows is its purpose.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import DataFrame

from headrace.errors import BadConfig
from headrace.spark.pipeline.definition import Definition

# Catalyst's operations whose output rows each come from one input row.
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
# Joins in which the result for a row of that side does not depend on the side's other rows.
_LOOKS_UP_RIGHT: Final = ("INNER", "CROSS", "LEFT OUTER", "LEFT SEMI", "LEFT ANTI")
_LOOKS_UP_LEFT: Final = ("INNER", "CROSS", "RIGHT OUTER")
_NUMBERS: Final = re.compile(r"#\d+L?")  # by which Spark tells columns apart; noise to a reader
_ROW_NUMBER: Final = "monotonically_increasing_id"
_SHOWN_FIELDS: Final = 10
_ALL_FIELDS: Final = 2**31 - 1
_SHOWN_MAX: Final = 160
_HINT: Final = (
    "Make each row from a single input row. For counts, windows and the like use a streaming "
    "query, which headrace.spark.table_writer writes to a table"
)

# A node of a plan, which is an object of the JVM.
Node = Any


def refuse_mixing(
    frame: DataFrame, definition: Definition, is_batch: Callable[[Node], bool]
) -> None:
    """Raise BadConfig for a transform in which a row depends on other rows of its batch.

    `is_batch` decides whether a leaf of the plan is the batch.
    """
    plan: Any = frame._jdf.queryExecution().analyzed()
    if not _Walk(definition, is_batch).reads(plan):
        raise BadConfig(
            definition.transform_key,
            "its rows do not come from those of the batch, according to its plan: "
            f"{_shown(plan)}",
            hint="Make them from `source`, or from the frame passed to transform(df), without "
            "collecting it first",
        )


class _Walk:
    def __init__(self, definition: Definition, is_batch: Callable[[Node], bool]) -> None:
        self._definition = definition
        self._is_batch = is_batch
        self._named: dict[int, bool] = {}  # whether the CTE of this id reads the batch

    def reads(self, node: Node) -> bool:
        """Whether a node reads the batch. Raises BadConfig if it mixes the batch's rows."""
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
        if any(_numbers_rows(each) for each in _suspects(node)):
            raise self._mixed(node, f"{_ROW_NUMBER}() numbers the rows of a batch")
        if name == "LateralJoin":
            for taking in filter(None, map(_table_function, _each(node.subqueries()))):
                raise self._mixed(node, f"{taking} takes the rows of a batch as a table")
        elif name == "Join":
            kind = node.joinType().sql()
            if all(reading):
                raise self._mixed(node, "it joins the batch with itself")
            if kind not in (_LOOKS_UP_RIGHT if reading[0] else _LOOKS_UP_LEFT):
                raise self._mixed(node, f"{kind.lower()} adds rows of the other side")
        elif name == "Union":
            if not all(reading):
                raise self._mixed(node, "rows of another table would be added to each batch")
        elif name not in _ALONE:
            raise self._mixed(node)

    def _mixed(self, node: Node, why: str = "") -> BadConfig:
        flaw = (
            "it makes a row depend on other rows of its batch, and batches have no fixed size: "
        )
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


def _suspects(node: Node) -> list[Node]:
    """Return the expressions of a node if its text mentions row numbers at all."""
    is_named = _ROW_NUMBER in str(node.simpleString(_ALL_FIELDS))
    return _each(node.expressions()) if is_named else []


def _numbers_rows(expression: Node) -> bool:
    is_one = _name(expression) == "MonotonicallyIncreasingID"
    return is_one or any(map(_numbers_rows, _each(expression.children())))


def _table_function(node: Node) -> str | None:
    """Return the user's table function that takes the other side of a lateral join as a table.

    Nested lateral joins are skipped: they have their own other side.
    """
    if _name(node) == "Generate" and _name(node.generator()) == "PythonUDTF":
        found = node.generator()
        return str(found.name()) if "true" in str(found.tableArguments()) else None
    if _name(node) == "LateralJoin":
        return None
    return next(filter(None, map(_table_function, _each(node.children()))), None)


def _shown(node: Node) -> str:
    return _NUMBERS.sub("", str(node.simpleString(_SHOWN_FIELDS)))[:_SHOWN_MAX]


def _where(node: Node) -> str:
    """Return the line of SQL of a node, if Spark knows it."""
    line = node.origin().line()
    return f", line {line.get()}" if line.isDefined() else ""
