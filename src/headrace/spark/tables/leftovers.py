"""Finds data files of ours that a table does not name: leftovers of rounds that were lost.

A file is named after the number of the pipeline's newest commit as it was written, and can
enter the table only with the next one. So once the table has a higher number, the file is
garbage, however young it is. Files from before names had numbers count as of number 0.
"""

from collections.abc import Iterable

from headrace.errors import BadRequest, Unavailable
from headrace.spark.stores.seam import StoredFile
from headrace.spark.stores.store import store_of
from headrace.spark.tables.table_log import named_files
from headrace.spark.tables.table_record import Record, Where, at, look
from headrace.spark.worker.files import OURS

_TRIES_MAX = 20


def orphans_of(where: Where, pipeline: str | None = None) -> list[StoredFile]:
    """Return the files of a pipeline, or of all, that no entry and no checkpoint names."""
    store = store_of(at(where))
    # The files first: one that is committed meanwhile is named when the log is read.
    found = [each for each in store.list() if _is_ours(each.name, pipeline)]
    named = named_files(store)
    return sorted((each for each in found if each.name not in named), key=lambda one: one.name)


def removable(record: Record) -> list[StoredFile]:
    """Return the leftovers that can never enter the table.

    A driver may be about to commit files of the present number. An empty commit takes the
    number away: a live driver then loses its round, and nothing else.
    """
    source = record.source
    found = orphans_of(record.location, source.pipeline)
    for _ in range(_TRIES_MAX):
        if all(_base(each.name) < record.number for each in found):
            return found
        record.touch()
        record = look(record.location, source)
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
        if _is_ours(each.name, record.source.pipeline) and _base(each.name) < record.number:
            uploads.abort(each)


def _is_ours(name: str, pipeline: str | None) -> bool:
    match = OURS.fullmatch(name)
    if match is None:
        return False
    return pipeline is None or match["pipeline"] in (None, pipeline)


def _base(name: str) -> int:
    match = OURS.fullmatch(name)
    return int(match["base"] or 0) if match else 0
