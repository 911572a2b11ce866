"""A commit that came second is made again, with the same files, while nothing of ours moves.

A round takes seconds, and a commit milliseconds: beside a process that commits all the time, a
round that began anew for each lost race would never win one. After a lost race, what was
committed meanwhile tells what may be done:

    our own number has risen              the table may have these very rows, by another driver
    the table's columns, properties or    the files may not fit it
    protocol are others
    a file that was to go is gone         its rows may be in another file
    nothing of this                       the files and the ends are right as they are

In the first three cases the files are dropped: they are in no commit, and `clean` removes them.
A commit names the version that it makes, so one that was lost never comes into the table later.
What is judged and what is committed to is one handle of the table: a commit that comes between
the two is one more lost race.
"""

import time
from collections.abc import Callable
from typing import Final

from deltalake.exceptions import DeltaError

from headrace.model.backoff import ExponentialBackoff
from headrace.spark.tables.table_record import Record

TRIES_MAX: Final = 40
_PAUSES: Final = ExponentialBackoff(0.01, 0.05, free=5)


def committed(
    record: Record, commit: Callable[[Record], bool], check: Callable[[Record], bool]
) -> bool:
    """Commit, again and again while others alone are faster. False: it was for nothing.

    `check` looks at the table as it is after a lost race. It may raise what stops a pipeline;
    False: the files may not be committed any more.
    """
    for number in range(1, TRIES_MAX + 1):
        if commit(record):
            return True
        # Before the look: behind it each moment costs the race.
        time.sleep(_PAUSES.after(number))
        if not _is_unmoved(record) or not check(record):
            return False
    return False


def _is_unmoved(record: Record) -> bool:
    """Take in what was committed. False: what the record says is not so any more."""
    table, before, shape = record.table, record.table.version(), _shape(record)
    try:
        table.update_incremental()
        number = table.transaction_version(record.source.own)
    except (OSError, DeltaError):
        return False  # the next look names what is wrong
    return number == record.number and _shape(record) == shape and table.version() > before


def _shape(record: Record) -> tuple[object, ...]:
    table, metadata = record.table, record.table.metadata()
    return (
        metadata.id,
        metadata.configuration,
        metadata.partition_columns,
        table.schema().to_json(),
        table.protocol(),
    )
