"""Starts Spark's JVM for a short run: a quick compiler, and an archive of loaded classes.

Most of the seconds that Spark takes to start are Java loading, checking and compiling classes.
The first short run leaves an archive of those it loaded in the cache directory, named after
the Java and the pyspark that it fits; Java maps it from then on, and ignores it if it does not
fit after all. The quick compiler makes slower code, so this is not for long runs.
"""

import os
import shutil
import subprocess
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of a short run. With SQL the quick compiler saves 7 s of processor time at the start, and
# takes 14 to 30 % more per row; a copy is no slower.
ROWS_MAX: Final = 4_000_000
_QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"  # of classes that cannot be archived
_EXIT_SECONDS: Final = 120.0  # for Java to write the archive at its end


def cache() -> Path:
    """Return the directory for what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


@dataclass(slots=True)
class QuickStart:
    """The quick start of one process."""

    path: Path | None = None  # of the archive; None: there is no place for one
    making: Path | None = field(default=None)  # the archive that this process's Java writes

    def options(self, java: str) -> str:
        """Return the options of a JVM for a short run."""
        import pyspark

        try:
            found = Path(java).resolve()
            key = f"{found}:{found.stat().st_mtime_ns}:{pyspark.__file__}"
            name = f"classes-{pyspark.__version__}-{zlib.crc32(key.encode()):08x}.jsa"
            self.path = cache() / name
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                return f"{_QUICK} {_QUIET} -Xshare:auto -XX:SharedArchiveFile={self.path}"
        except OSError:
            return _QUICK
        if " " in str(self.path):
            return _QUICK  # Java's options are separated by spaces
        _remove_leftovers(self.path)
        self.making = self.path.with_name(f"{name}.{os.getpid()}")
        return f"{_QUICK} {_QUIET} -XX:ArchiveClassesAtExit={self.making}"

    def finish(self, spark: "SparkSession") -> bool:
        """End Spark and keep the archive, if this process makes one. Whether it has."""
        if self.making is None:
            return False
        assert self.path is not None
        try:
            _end(spark)
            if not self.making.exists():
                self.making.touch()  # this Java makes none: it is not tried again
            self.making.rename(self.path)
        except (OSError, subprocess.TimeoutExpired):
            return False
        finally:
            with suppress(OSError):
                self.making.unlink(missing_ok=True)
            self.making = None
        return True


def java_command(home: str | None) -> str:
    """Return the path of the `java` of a home; None: the one on PATH."""
    if home is not None:
        return str(Path(home, "bin", "java"))
    return shutil.which("java") or "java"


def _end(spark: "SparkSession") -> None:
    """Stop Spark and its JVM, and wait until it has ended."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    spark.stop()
    assert gateway is not None
    process: subprocess.Popen[bytes] = gateway.proc
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    assert process.stdin is not None
    process.stdin.close()  # Spark's JVM ends with its input
    process.wait(_EXIT_SECONDS)


def _remove_leftovers(path: Path) -> None:
    """Remove what runs that were killed have left of an archive."""
    for one in path.parent.glob(f"{path.name}.*"):
        pid = one.suffix.removeprefix(".")
        if pid.isdecimal() and not Path("/proc", pid).exists():
            one.unlink(missing_ok=True)
