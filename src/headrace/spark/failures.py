"""What Spark raises while a pipeline runs, in one sentence of whoever knew what was wrong.

Spark wraps what a worker raised in words of its own, and shows a trace first. The error that it
is turned into here keeps Spark's as its cause.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from headrace.errors import BadConfig, Unavailable
from headrace.spark.definition import Definition

# Our own error in what a worker said: its module, its name, its sentence.
_OURS: Final = re.compile(r"(?<![\w.])headrace(?:\.\w+)*\.([A-Z]\w+): (.+)$", re.MULTILINE)
_ABORTED: Final = re.compile(r"Job aborted .*$", re.MULTILINE)
_AGAIN: Final = "Nothing was committed: mend it, and run the pipeline again"
_WORKER: Final = "An exception was thrown from the Python worker"
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+.*$")


class RoundFailed(Unavailable):
    """A round ended within Spark. Nothing of it was committed."""


@contextmanager
def told_in_words() -> Iterator[None]:
    """Turn what Spark raises into RoundFailed, with the sentence that says why."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:  # the second: a worker died
        sentence = sentence_of(str(error))
        is_ours = _OURS.search(str(error)) is not None  # which says itself what to do
        raise RoundFailed(sentence, hint="" if is_ours else _AGAIN) from error


@contextmanager
def transform_told(definition: Definition) -> Iterator[None]:
    """Have a transform that does not fit the rows told as the setting that it is."""
    try:
        yield
    except PySparkException as error:
        hint = "`headrace pipeline check` shows the columns once it fits"
        raise BadConfig(definition.transform_key, sentence_of(str(error)), hint=hint) from error


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
