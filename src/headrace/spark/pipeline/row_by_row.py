"""Does a transform keep a row a row? Its plan says so, before anything is read.

A pipeline runs its transform over one batch after the other, and a batch is whatever had come
by then. An aggregate over it is one of a part, and another one after a restart. So each
operation between the batch and the result must make each of its rows of one row. Operations on
other tables may be any; joined with the batch, they look up. What runs in functions of the
user, such as `mapInPandas`, no plan can tell; a table function that is given the batch as a
table is refused, since that is what it is for.
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
_ROW_NUMBER: Final = "monotonically_increasing_id"
_SHOWN_FIELDS: Final = 10
_ALL_FIELDS: Final = 2**31 - 1
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
        if any(_numbers_rows(each) for each in _suspects(node)):
            raise self._mixed(node, f"{_ROW_NUMBER}() numbers the rows of a batch")
        if name == "LateralJoin":
            for taking in filter(None, map(_table_function, _each(node.subqueries()))):
                raise self._mixed(node, f"{taking} is given the rows of a batch as a table")
        elif name == "Join":
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


def _suspects(node: Node) -> list[Node]:
    """Return the expressions of a node, if its text speaks of row numbers at all."""
    is_named = _ROW_NUMBER in str(node.simpleString(_ALL_FIELDS))
    return _each(node.expressions()) if is_named else []


def _numbers_rows(expression: Node) -> bool:
    is_one = _name(expression) == "MonotonicallyIncreasingID"
    return is_one or any(map(_numbers_rows, _each(expression.children())))


def _table_function(node: Node) -> str | None:
    """Return the user's table function that takes the other side of a lateral join as a table.

    A lateral join further below has another side of its own.
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
    """Say in which line of SQL something is, if Spark knows."""
    line = node.origin().line()
    return f", line {line.get()}" if line.isDefined() else ""
