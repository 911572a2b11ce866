"""Opens the store of a location."""

from headrace.spark.stores.location import Location
from headrace.spark.stores.path_store import PathStore
from headrace.spark.stores.seam import FileStore


def store_of(location: Location) -> FileStore:
    """Return the store of a location. Raises BadConfig if its credentials are incomplete.

    It may hold credentials, so it stays in the process that opened it.
    """
    if location.is_path:
        return PathStore(location.url)
    # Only where it is needed: it is not there on every executor.
    from headrace.spark.stores.object_store import ObjectStore

    return ObjectStore(location)
