"""Credentials of an S3, looked up where a store is opened and kept nowhere else.

They come from the profile that the location names, else from the environment, else from the
profile of AWS_PROFILE or the default one. If there are none, the libraries ask for the role of
the machine or the container.
"""

import configparser
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from headrace.errors import BadConfig
from headrace.spark.stores.location import Location, refuse_bad_endpoint

KEY_NAME: Final = "AWS_ACCESS_KEY_ID"
SECRET_NAME: Final = "AWS_SECRET_ACCESS_KEY"
TOKEN_NAME: Final = "AWS_SESSION_TOKEN"
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_REGION_USUAL: Final = "us-east-1"
# With any of these in the environment, libraries get credentials of a role without the machine.
_ROLES: Final = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_METADATA_ENDPOINT",
)
_IN_PROFILE: Final = ("access_key_id", "secret_access_key", "session_token")
_MACHINE: Final = ("169.254.169.254", 80)  # where a machine of a cloud asks for its role
_MACHINE_SECONDS: Final = 2.0
# Ways of a profile to get credentials that need another program or service.
_ELSEWHERE: Final = ("role_arn", "sso_session", "sso_start_url", "credential_process")
_GIVE: Final = (
    f"Set {KEY_NAME} and {SECRET_NAME}, name a profile of ~/.aws/credentials, or run on a "
    "machine that has a role"
)


@dataclass(frozen=True, slots=True, repr=False)
class AccessKeys:
    """One set of credentials. It cannot be shown or pickled."""

    id: str
    secret: str
    token: str  # of credentials that expire; else empty

    def __repr__(self) -> str:
        return "AccessKeys(...)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("credentials do not leave their process")


@dataclass(frozen=True, slots=True)
class S3Access:
    """What a location needs to be reached, from wherever it is said."""

    endpoint: str  # with the bucket in its host, if requests have it there; empty: Amazon's
    region: str
    keys: AccessKeys | None  # None: of the role


def access_of(location: Location) -> S3Access:
    """Look up how to reach the S3 of a location. Raises BadConfig without any credentials."""
    profile = _Profile(location)
    keys = _keys(location, profile)
    if keys is None and not _environment(_ROLES):
        _refuse_no_role()
    endpoint = (location.endpoint or _environment(_ENDPOINTS)).rstrip("/")
    if endpoint:
        refuse_bad_endpoint(endpoint, allow_http=location.allow_http)
        if not location.path_style:
            scheme, _, host = endpoint.partition("://")
            endpoint = f"{scheme}://{location.bucket}.{host}"
    region = location.region or _environment(_REGIONS) or profile.region or _REGION_USUAL
    return S3Access(endpoint, region, keys)


def _keys(location: Location, profile: "_Profile") -> AccessKeys | None:
    if not location.profile and (os.environ.get(KEY_NAME) or os.environ.get(SECRET_NAME)):
        missing = [name for name in (KEY_NAME, SECRET_NAME) if not os.environ.get(name)]
        if missing:
            raise BadConfig(missing[0], "not set, but its counterpart is", hint=_GIVE)
        token = os.environ.get(TOKEN_NAME, "")
        return AccessKeys(os.environ[KEY_NAME], os.environ[SECRET_NAME], token)
    return profile.keys()


def _environment(names: tuple[str, ...]) -> str:
    return next((found for name in names if (found := os.environ.get(name))), "")


def _refuse_no_role() -> None:
    """Raise BadConfig if there is no machine to ask for a role, which libraries do for long."""
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        raise no_credentials()
    try:
        socket.create_connection(_MACHINE, _MACHINE_SECONDS).close()
    except OSError:
        raise no_credentials() from None


def no_credentials() -> BadConfig:
    """Return the error of a process that has no credentials at all."""
    return BadConfig(
        "credentials",
        "there are none: not in the environment, not in a profile, and the machine has no role",
        hint=_GIVE,
    )


class _Profile:
    """A profile of the shared credentials file, and its settings in the configuration file."""

    def __init__(self, location: Location) -> None:
        self._named = location.profile or os.environ.get("AWS_PROFILE", "")
        name = self._named or "default"
        home = Path.home() / ".aws"
        self._path = Path(
            os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials"
        ).expanduser()
        config = Path(os.environ.get("AWS_CONFIG_FILE") or home / "config").expanduser()
        self._found = _section(self._path, name)
        section = name if name == "default" else f"profile {name}"
        self._settings = _section(config, section)
        self.region = self._settings.get("region", "") or self._found.get("region", "")

    def keys(self) -> AccessKeys | None:
        """Return its credentials. None: it was not asked for, and has none."""
        both = self._settings | self._found
        found = {name: both.get(f"aws_{name}", "") for name in _IN_PROFILE}
        if found["access_key_id"] and found["secret_access_key"]:
            if os.environ.get(TOKEN_NAME) and not found["session_token"]:
                # Libraries would send it along.
                raise BadConfig(
                    TOKEN_NAME, "set, but it does not belong to the profile that is used",
                    hint="Unset it, or use the credentials of the environment",
                )  # fmt: skip
            return AccessKeys(*found.values())
        if not self._named and not any(found.values()):
            return None
        name = self._named or "default"
        elsewhere = [each for each in _ELSEWHERE if both.get(each)]
        if elsewhere:
            raise BadConfig(
                "profile", f"{name!r} gets its credentials by {elsewhere[0]}, which is not "
                "supported",
                hint=f"Run: eval \"$(aws configure export-credentials --profile {name} "
                "--format env)\"",
            )  # fmt: skip
        raise BadConfig("profile", f"{name!r} has no credentials in {self._path}", hint=_GIVE)


def _section(path: Path, name: str) -> dict[str, str]:
    """Return a section of a file; empty if either is not there."""
    parser = configparser.RawConfigParser(default_section="", strict=False)
    flaw = ""
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        flaw = error.strerror or "it cannot be read"
    except (configparser.Error, UnicodeError):
        flaw = "it is not an INI file"  # what the library says quotes the file
    if flaw:
        raise BadConfig("profile", f"{path}: {flaw}", hint="Fix the file, or its permissions")
    return dict(parser[name]) if parser.has_section(name) else {}
