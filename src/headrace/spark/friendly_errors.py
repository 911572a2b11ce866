"""Turns Spark's exceptions into one-sentence errors that name the cause.

Spark wraps the exception of a worker in text of its own and puts the traceback first. The error
raised here keeps Spark's exception as its cause.
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

# Our own error in a worker's output: its module, its name, its sentence.
_OURS: Final = re.compile(r"(?<![\w.])headrace(?:\.\w+)*\.([A-Z]\w+): (.+)$", re.MULTILINE)
_ABORTED: Final = re.compile(r"Job aborted .*$", re.MULTILINE)
_AGAIN: Final = "Nothing was committed. Fix the cause, then restart the pipeline or query"
_WORKER: Final = "An exception was thrown from the Python worker"
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+.*$")
_LOOK: Final = "`headrace spark check --master URL` shows what each executor has"
# What Spark says of a Python that is not as the driver's, and what to say instead.
_OF_PYTHON: Final = (
    (
        re.compile(r'Cannot run program "([^"]+)"'),
        "there is no Python at {}, where Spark starts one. Set PYSPARK_PYTHON to its path on "
        "executors; for the source and the sink it must be a path on the driver, too",
    ),
    (
        re.compile(r"ModuleNotFoundError: No module named '(headrace|pyarrow)'"),
        "Python on executors has no {}. Install it there; headrace.spark.session sends "
        "headrace itself. " + _LOOK,
    ),
    (
        re.compile(r"\[PYTHON_VERSION_MISMATCH\] (.+?)(?:$|\n)"),
        "{} Set PYSPARK_PYTHON to a Python of the driver's version. " + _LOOK,
    ),
)


class RoundFailed(Unavailable):
    """A round failed in Spark. None of it was committed."""

    is_of_rows = False  # a row, or what the transform does with it, may be at fault


class SparkGone(Unavailable):
    """Spark's JVM does not respond."""


@contextmanager
def told_in_words(
    kind: type[Unavailable] = RoundFailed, next_step: str = _AGAIN
) -> Iterator[None]:
    """Re-raise Spark's exceptions as `kind`, with the sentence that names the cause.

    Raises SparkGone if the JVM no longer responds.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:  # the second: a worker died
        sentence = sentence_of(str(error))
        is_ours = any(  # it has its own hint
            each.search(str(error)) for each in (_OURS, *(one for one, _ in _OF_PYTHON))
        )
        found = kind(sentence, hint="" if is_ours else next_step)
        if isinstance(found, RoundFailed):
            # A worker that died, perhaps out of memory, is not retried again and again.
            found.is_of_rows = not is_ours and _ABORTED.search(sentence) is None
        raise found from error
    except (Py4JError, ConnectionError) as error:
        if not _is_of_spark(error):
            raise
        hint = f"Find out why its process ended. {next_step}"
        raise SparkGone(
            f"Spark's JVM does not respond: {first_line(error)}", hint=hint
        ) from error


@contextmanager
def transform_told(definition: Definition, what: str = "transform(df)") -> Iterator[None]:
    """Report a transform that does not fit the rows, or fails, as an error of its setting."""
    try:
        yield
    except PySparkException as error:
        hint = "Fix it, then run `headrace pipeline check` to see the columns"
        raise BadConfig(definition.transform_key, sentence_of(str(error)), hint=hint) from error
    except HeadraceError:
        raise
    except Exception as error:  # the user's own code raises what it likes
        if _is_of_spark(error):
            raise
        raise BadConfig(
            definition.transform_key,
            f"{what} raised {type(error).__name__}: {first_line(error)}",
            hint=f"Fix {definition.transform or definition.transform_key}",
        ) from error


def _is_of_spark(error: Exception) -> bool:
    """Whether an error came from the link between Python and the JVM, not from user code."""
    if isinstance(error, Py4JError):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    return isinstance(error, ConnectionError) and module.startswith("py4j.")


def checked_frame(definition: Definition, found: DataFrame) -> DataFrame:
    """Return the result of a transform. Raises BadConfig unless it is a DataFrame."""
    if not isinstance(found, DataFrame):
        raise BadConfig(
            definition.transform_key,
            f"expected a DataFrame, but it returned {found!r:.100}",
            hint=f"Return a DataFrame from transform(df) in {definition.transform}",
        )
    return found


def sentence_of(text: str) -> str:
    """Return the sentence that matters in Spark's message."""
    ours = _OURS.search(text)
    if ours is not None:
        return _STATE.sub("", f"{ours[1]}: {ours[2]}")
    for pattern, sentence in _OF_PYTHON:
        found = pattern.search(text)
        if found is not None:
            return sentence.format(found[1])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "Spark gives no reason"
    is_of_a_task = any(_WORKER in line for line in lines)  # then its trace, then the error
    aborted = _ABORTED.search(text)
    if aborted is not None and not is_of_a_task:
        lines = [aborted[0]]
    said = _STATE.sub("", lines[-1 if is_of_a_task else 0]).rstrip(".")
    return f"a task failed with {said}" if is_of_a_task else f"Spark reports: {said}"
