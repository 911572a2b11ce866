"""Opens the store of a location."""

from headrace.errors import Unavailable
from headrace.spark.stores.location import Location
from headrace.spark.stores.path_store import PathStore
from headrace.spark.stores.seam import FileStore


def store_of(location: Location) -> FileStore:
    """Return the store of a location. Raises BadConfig if its credentials are incomplete.

    It may hold credentials, so it stays in the process that opened it.
    """
    if location.is_path:
        return PathStore(location.url)
    try:
        from headrace.spark.stores.object_store import ObjectStore
    except ImportError:
        raise Unavailable(
            f"{location.url} needs the package obstore, which is not installed here",
            hint="Install it on this machine: pip install 'obstore>=0.12,<0.13'",
        ) from None
    return ObjectStore(location)
