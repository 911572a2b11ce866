"""What other libraries need to reach the same place as a store does."""

from typing import Final

from headrace.spark.stores.credentials import KEY_NAME, SECRET_NAME, TOKEN_NAME, access_of
from headrace.spark.stores.location import Location

RETRIES_MAX: Final = 1_000_000  # so that the time decides when a call ends


def storage_options(location: Location) -> dict[str, str]:
    """Return what deltalake needs for the same place. It has secrets: pass it on, no more."""
    retries = {"max_retries": str(RETRIES_MAX), "retry_timeout": f"{location.timeout:g}s"}
    if location.scheme != "s3":
        return {} if location.is_path else retries
    access = access_of(location)
    options = {
        **retries,
        "AWS_REGION": access.region,
        "AWS_ALLOW_HTTP": str(location.allow_http).lower(),
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": str(not location.path_style).lower(),
        "conditional_put": "etag",
    }
    if access.endpoint:
        # Both, since one of the environment would come before one that is given.
        options |= dict.fromkeys(("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"), access.endpoint)
    if access.keys is not None:
        options |= {KEY_NAME: access.keys.id, SECRET_NAME: access.keys.secret}
        if access.keys.token:
            options[TOKEN_NAME] = access.keys.token
    return options
