"""Retries a commit that lost a race, with the same files, while that is still correct.

A round takes seconds and a commit milliseconds: next to a process that commits all the time, a
round that started over after each lost race would never win one. After a lost race, what was
committed meanwhile decides:

    our own number has risen              another driver may have committed these very rows
    the table's columns, properties or    the files may not fit it
    protocol have changed
    a file to be removed is missing       its rows may be in another file
    none of these                         the files and the ends are still right

In the first three cases the files are dropped: they are uncommitted, and `clean` removes them.
A commit names the version that it creates, so a lost one never reaches the table later. Check
and commit use the same handle of the table: a commit in between is one more lost race.
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
    """Commit, retrying while only other writers are faster. False: the round is lost.

    `check` inspects the table after a lost race. It may raise an error that stops the pipeline,
    or return False if the files may no longer be committed.
    """
    for number in range(1, TRIES_MAX + 1):
        if commit(record):
            return True
        # Before the check: after it each moment risks the race.
        time.sleep(_PAUSES.after(number))
        if not _is_unmoved(record) or not check(record):
            return False
    return False


def _is_unmoved(record: Record) -> bool:
    """Load the new commits. False: the record is no longer valid."""
    table, before, shape = record.table, record.table.version(), _shape(record)
    try:
        table.update_incremental()
        number = table.transaction_version(record.source.own)
    except (OSError, DeltaError):
        return False  # the next look raises the error
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
