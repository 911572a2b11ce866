"""A driver of the demo's pipeline, in its own process: `python -m … FILE`.

It starts Spark, reports `warm`, and follows the commands on its standard input:

    go           load rows into the table, round after round
    die          kill itself with SIGKILL between the files of a round and their commit
    meet A B     between the files of a round and their commit: create file A, wait for file B
    end          exit once all rows are in the table

It reports events as one JSON object per line.
"""

import json
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path

from headrace.spark import session
from headrace.spark.pipeline.definition import load
from headrace.spark.pipeline.pipeline import Pipeline, opened

PAUSE_S = 0.2  # between polls for new rows
MEET_S = 60.0


class Wishes:
    """Commands from standard input."""

    def __init__(self) -> None:
        self._words: queue.Queue[str] = queue.Queue()
        self.at_commit: list[str] = []  # to do before the next commit
        self.is_ending = False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            self._words.put(line.strip())
        self._words.put("end")  # the parent is gone

    def await_go(self) -> None:
        """Wait for the command `go`."""
        while (word := self._words.get()) != "go":
            self._take(word)

    def look(self) -> None:
        """Process the commands received so far."""
        while not self._words.empty():
            self._take(self._words.get())

    def _take(self, word: str) -> None:
        if word == "end":
            self.is_ending = True
        elif word:
            self.at_commit = word.split()

    def on_step(self, step: str) -> None:
        """Execute the pending command between files and commit."""
        if step != "after files":
            return
        self.look()
        wish, self.at_commit = self.at_commit, []
        match wish:
            case ["die"]:
                say("dying")
                os.kill(os.getpid(), signal.SIGKILL)
            case ["meet", ours, theirs]:
                Path(ours).touch()
                deadline = time.monotonic() + MEET_S
                while not Path(theirs).exists() and time.monotonic() < deadline:
                    time.sleep(0.01)
                say("met")
            case _:
                return


def say(event: str, **more: object) -> None:
    """Print one event."""
    sys.stdout.write(json.dumps({"event": event, **more}) + "\n")
    sys.stdout.flush()


def run(pipeline: Pipeline, wishes: Wishes) -> None:
    """Load rows into the table until `end` was received and no rows are left."""
    pipeline.on_step = wishes.on_step
    while True:
        before = pipeline.lost
        done = pipeline.round()
        if done is not None:
            say("round", version=done.version, rows=done.row_count, lag=done.lag)
        elif pipeline.lost > before:
            say("lost")
        elif wishes.is_ending:
            return
        else:
            time.sleep(PAUSE_S)
        wishes.look()


def main(file: str) -> None:
    """Run a driver."""
    wishes = Wishes()
    spark = session("headrace-demo", "local[1]", spark__driver__memory="1g")
    say("warm")
    wishes.await_go()
    with opened(spark, load(Path(file))) as pipeline:
        run(pipeline, wishes)
    say("done")


if __name__ == "__main__":
    main(sys.argv[1])
