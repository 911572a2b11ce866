"""Names inside a data directory: single components, joined by '/', the same for both twins."""


def check_name(name: str) -> str:
    """Return `name`; ValueError unless it is one component that stays in its directory."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"not a single path component: {name!r}")
    return name


def joined(directory: str, name: str) -> str:
    """Return the path of `name` in `directory`; the root of a memory disk is '.'."""
    return name if directory == "." else f"{directory.rstrip('/')}/{name}"
