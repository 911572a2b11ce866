"""Why a pipeline does not go on with a table: each has a name."""

from headrace.errors import BadRequest


class TableForeign(BadRequest):
    """A table that is not this pipeline's."""


class RecordLost(BadRequest):
    """The table names the pipeline, and says nothing about how far it is."""


class TableStrange(BadRequest):
    """A table that is not what its files alone say, or that demands what is not kept."""


class TableAhead(BadRequest):
    """The table has rows that the log does not have."""

    hint = (
        "The log was put back from an old copy, or it is another one. Put a newer one back, or "
        "begin anew with the rows that it has: headrace pipeline reset FILE --truncate"
    )


class TableRestored(BadRequest):
    """Somebody has put back an older state of the table, which records a newer one."""


class CommitRefused(BadRequest):
    """The table takes no commit of ours, though nobody was faster."""


class FileGone(BadRequest):
    """A file that was to be committed is not there as it was written."""
