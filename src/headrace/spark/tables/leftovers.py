"""Finds data files of ours that a table does not name: leftovers of rounds that were lost.

A file is named after the number of the pipeline's newest commit as it was written, and can
enter the table only with the next one. So a file of an older number that is in no version of
the table, seen after that number was, is garbage for ever, however young it is. Names of
earlier releases have no number: such a file is garbage once a commit was made after it was
seen, and only of a table that has one pipeline, since the name has no pipeline, either.
"""

from collections.abc import Iterable

from headrace.errors import BadRequest, Unavailable
from headrace.spark.stores.seam import StoredFile, Upload
from headrace.spark.stores.store import store_of
from headrace.spark.tables.data_files import live_files
from headrace.spark.tables.table_log import named_files
from headrace.spark.tables.table_record import Record, Where, at, look, pipelines_of, table_at
from headrace.spark.worker.files import OURS

_TRIES_MAX = 20


def orphans_of(where: Where, pipeline: str | None = None) -> list[StoredFile]:
    """Return the files of a pipeline, or of all, that no version of the table names."""
    location = at(where)
    store = store_of(location)
    # The files first: one that is committed meanwhile is named when the log is read. They are
    # compared without their directories, since a log may have absolute paths.
    found = [each for each in store.list() if _is_ours(each.name, pipeline)]
    named = named_files(store) | {one.name for one in live_files(table_at(location))}
    known = {_base_name(name) for name in named}
    left = (each for each in found if _base_name(each.name) not in known)
    return sorted(left, key=lambda one: one.name)


def removable(record: Record) -> list[StoredFile]:
    """Return the leftovers that can never enter the table.

    A driver may be about to commit files of the present number. An empty commit takes the
    number away: a live driver then loses its round, and nothing else.
    """
    source, seen = record.source, set[str]()  # without a number, before a commit
    for _ in range(_TRIES_MAX):
        # The number first: a file of an older one that is listed later was never committed.
        record = look(record.location, source)
        found = orphans_of(record.location, source.pipeline)
        if pipelines_of(record.location) != [source.pipeline]:
            found = [each for each in found if _number(each) is not None]
        unnumbered = {each.name for each in found if _number(each) is None}
        if unnumbered <= seen and record.number not in map(_number, found):
            return [each for each in found if _is_older(each, record.number)]
        if record.touch():
            seen |= unnumbered
    raise Unavailable(
        f"lost {_TRIES_MAX} commits to the table at {record.path} to other writers",
        hint="Retry; nothing was removed",
    )


def remove(record: Record, found: Iterable[StoredFile]) -> None:
    """Remove leftovers, and what was begun for older commits and not finished."""
    record.store.remove([each.name for each in found])
    uploads = record.store.uploads
    try:
        begun = list(uploads.list())
    except BadRequest:
        return  # a lifecycle rule of the bucket has to
    for each in begun:
        number = _number(each)
        is_ours = _is_ours(each.name, record.source.pipeline)
        if is_ours and number is not None and number < record.number:
            uploads.abort(each)


def _is_ours(name: str, pipeline: str | None) -> bool:
    match = OURS.fullmatch(name)
    if match is None:
        return False
    return pipeline is None or match["pipeline"] in (None, pipeline)


def _is_older(file: StoredFile, number: int) -> bool:
    own = _number(file)
    return own is None or own < number


def _number(file: StoredFile | Upload) -> int | None:
    """Return the number in a name; None: an earlier release gave it."""
    match = OURS.fullmatch(file.name)
    return None if match is None or match["base"] is None else int(match["base"])


def _base_name(name: str) -> str:
    return name.rpartition("/")[2]
