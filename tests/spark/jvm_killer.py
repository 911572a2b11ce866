"""A driver whose JVM dies: `python jvm_killer.py FILE STEP`. It says how that is told."""

import os
import signal
import sys
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.spark import session
from headrace.spark.pipeline.definition import load
from headrace.spark.pipeline.pipeline import opened


def main(file: str, step: str) -> None:
    spark = session("driver", "local[1]")
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()

    def on_step(found: str) -> None:
        if found == step:
            os.kill(jvm, signal.SIGKILL)

    with opened(spark, load(Path(file))) as pipeline:
        pipeline.on_step = on_step
        try:
            pipeline.round()  # killed after its files, it ends without Spark
            pipeline.topic_source.topic.append([{"id": 5, "name": "n5"}])
            pipeline.round()
        except HeadraceError as error:
            cause = "there is a cause" if error.__cause__ is not None else "there is none"
            sys.stdout.write(f"{type(error).__name__}\n{error}\n{cause}\n")
    sys.stdout.flush()
    os._exit(0)  # nothing that Spark does at its end works without a JVM


if __name__ == "__main__":
    main(*sys.argv[1:])
