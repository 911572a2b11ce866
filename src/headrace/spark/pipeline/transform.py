"""Loads what a pipeline does with its rows: SQL, or a function of a Python file."""

import runpy
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.errors import BadConfig
from headrace.spark.pipeline.definition import SOURCE, Definition, refuse_missing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Transform = Callable[["DataFrame"], "DataFrame"]


def loaded(definition: Definition) -> Transform:
    """Return the transform. Raises BadConfig if its file does not have one."""
    if definition.transform:
        refuse_missing(definition)
        try:
            found = runpy.run_path(definition.transform).get("transform")
        except SyntaxError as error:
            flaw = f"{definition.transform} has a syntax error: {error}"
            raise BadConfig("transform", flaw, hint="Fix it and rerun") from error
        if not callable(found):
            flaw = f"{definition.transform} does not define transform(df)"
            raise BadConfig("transform", flaw, hint="Define a function transform(df) in it")
        return found  # type: ignore[no-any-return]
    if not definition.sql:
        return lambda frame: frame

    def by_sql(frame: "DataFrame") -> "DataFrame":
        frame.createOrReplaceTempView(SOURCE)
        return frame.sparkSession.sql(definition.sql)

    return by_sql
