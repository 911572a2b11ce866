"""Refuses a store that cannot keep two writers apart, before anything is written there."""

import secrets

from headrace.errors import BadRequest, HeadraceError
from headrace.spark.stores.location import Location
from headrace.spark.stores.seam import OWN, FileStore
from headrace.spark.stores.store import store_of


def flaw_of(location: Location) -> str:
    """Return why this process cannot write tables at a location; empty if it can."""
    try:
        refuse_unsafe(store_of(location), secrets.token_hex(8))
    except HeadraceError as error:
        return str(error)
    return ""


def refuse_unsafe(store: FileStore, token: str) -> None:
    """Try whether a name can be taken only once. Raises BadRequest if it can be twice.

    `token` keeps apart the tries that run at the same time. On a path this also tries whether a
    file and its directory can be synced.
    """
    name = f"{OWN}/probe-{token}"
    store.remove([name])
    try:
        is_first = store.put_new(name, b"first")
        is_second = store.put_new(name, b"second")
        found = store.tail(name, len(b"second"))
    finally:
        store.remove([name])
    if not is_first or is_second or found != b"first":
        raise BadRequest(
            f"{store.url}: this store replaces a file that is there, though it was asked not "
            "to: two writers could lose each other's commits",
            hint="Use a store that supports conditional writes (If-None-Match), as S3 does",
        )
