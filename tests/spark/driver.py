"""A driver that dies: `python driver.py FILE STEP`. It kills itself when it comes to STEP."""

import os
import signal
import sys
from pathlib import Path

from headrace.spark import session
from headrace.spark.pipeline.definition import load
from headrace.spark.pipeline.pipeline import opened


def main(file: str, step: str) -> None:
    def on_step(found: str) -> None:
        if found == step:
            os.kill(os.getpid(), signal.SIGKILL)

    with opened(session("driver", "local[1]"), load(Path(file))) as pipeline:
        pipeline.on_step = on_step
        for _ in pipeline.run(once=True):
            pass


if __name__ == "__main__":
    main(*sys.argv[1:])
