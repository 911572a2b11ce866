"""What Spark raises while a pipeline runs, in one sentence of whoever knew what was wrong.

Spark wraps what a worker raised in words of its own, and shows a trace first. The error that it
is turned into here keeps Spark's as its cause.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from headrace.errors import BadConfig, HeadraceError, Unavailable, first_line
from headrace.spark.pipeline.definition import Definition

# Our own error in what a worker said: its module, its name, its sentence.
_OURS: Final = re.compile(r"(?<![\w.])headrace(?:\.\w+)*\.([A-Z]\w+): (.+)$", re.MULTILINE)
_ABORTED: Final = re.compile(r"Job aborted .*$", re.MULTILINE)
_AGAIN: Final = "Nothing was committed: mend it, and start the pipeline, or the query, again"
_WORKER: Final = "An exception was thrown from the Python worker"
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+.*$")


class RoundFailed(Unavailable):
    """A round ended within Spark. Nothing of it was committed."""

    is_of_rows = False  # the rows may be at fault, or what the transform makes of them


class SparkGone(Unavailable):
    """The JVM that Spark runs in does not answer."""


@contextmanager
def told_in_words(
    kind: type[Unavailable] = RoundFailed, next_step: str = _AGAIN
) -> Iterator[None]:
    """Turn what Spark raises into `kind`, with the sentence that says why.

    SparkGone: Spark says nothing any more.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:  # the second: a worker died
        sentence = sentence_of(str(error))
        is_ours = _OURS.search(str(error)) is not None  # which says itself what to do
        found = kind(sentence, hint="" if is_ours else next_step)
        if isinstance(found, RoundFailed):
            # A worker that died, maybe for want of memory, is not tried to death.
            found.is_of_rows = not is_ours and _ABORTED.search(sentence) is None
        raise found from error
    except (Py4JError, ConnectionError) as error:
        if not _is_of_spark(error):
            raise
        hint = f"Look why its process ended. {next_step}"
        raise SparkGone(f"Spark's JVM is gone: {first_line(error)}", hint=hint) from error


@contextmanager
def transform_told(definition: Definition, what: str = "transform(df)") -> Iterator[None]:
    """Have a transform that does not fit the rows, or fails, told as the setting that it is."""
    try:
        yield
    except PySparkException as error:
        hint = "`headrace pipeline check` shows the columns once it fits"
        raise BadConfig(definition.transform_key, sentence_of(str(error)), hint=hint) from error
    except HeadraceError:
        raise
    except Exception as error:  # the user's own code raises what it likes
        if _is_of_spark(error):
            raise
        raise BadConfig(
            definition.transform_key,
            f"{what} raised {type(error).__name__}: {first_line(error)}",
            hint=f"Mend {definition.transform or definition.transform_key}",
        ) from error


def _is_of_spark(error: Exception) -> bool:
    """Tell whether an error came up between Python and the JVM, and not in code of a user."""
    if isinstance(error, Py4JError):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    return isinstance(error, ConnectionError) and module.startswith("py4j.")


def checked_frame(definition: Definition, found: DataFrame) -> DataFrame:
    """Return what a transform made. BadConfig: that is no DataFrame."""
    if not isinstance(found, DataFrame):
        raise BadConfig(
            definition.transform_key,
            f"it returned {found!r:.100}, and no DataFrame",
            hint=f"Have transform(df) of {definition.transform} return its rows",
        )
    return found


def sentence_of(text: str) -> str:
    """Return the sentence that matters in what Spark says."""
    ours = _OURS.search(text)
    if ours is not None:
        return _STATE.sub("", f"{ours[1]}: {ours[2]}")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "Spark gives no reason"
    is_of_a_task = any(_WORKER in line for line in lines)  # then its trace, then the error
    aborted = _ABORTED.search(text)
    if aborted is not None and not is_of_a_task:
        lines = [aborted[0]]
    said = _STATE.sub("", lines[-1 if is_of_a_task else 0]).rstrip(".")
    return f"a task ended with {said}" if is_of_a_task else f"Spark says: {said}"
