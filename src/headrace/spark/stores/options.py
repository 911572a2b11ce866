"""What deltalake needs to reach a location."""

from headrace.spark.stores.location import Location


def storage_options(_: Location) -> dict[str, str]:
    """Return nothing: a path needs none."""
    return {}
