"""A driver of the demo's pipeline, in a process of its own: `python -m … FILE`.

It starts Spark, says `warm`, and does what the words on its standard input say:

    go           bring rows into the table, round after round
    die          kill itself, with SIGKILL, between the files of a round and its commit
    meet A B     between the files of a round and its commit: make the file A, await the file B
    end          end once all rows are in the table

It says what happens, one JSON object a line.
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

PAUSE_S = 0.2  # between looks for new rows
MEET_S = 60.0


class Wishes:
    """What the words on standard input ask for."""

    def __init__(self) -> None:
        self._words: queue.Queue[str] = queue.Queue()
        self.at_commit: list[str] = []  # what is to be done before the next commit
        self.is_ending = False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            self._words.put(line.strip())
        self._words.put("end")  # nobody is there any more

    def await_go(self) -> None:
        """Wait for the word `go`."""
        while (word := self._words.get()) != "go":
            self._take(word)

    def look(self) -> None:
        """Take the words that have come."""
        while not self._words.empty():
            self._take(self._words.get())

    def _take(self, word: str) -> None:
        if word == "end":
            self.is_ending = True
        elif word:
            self.at_commit = word.split()

    def on_step(self, step: str) -> None:
        """Do what was asked for, between files and commit."""
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
    """Print one line."""
    sys.stdout.write(json.dumps({"event": event, **more}) + "\n")
    sys.stdout.flush()


def run(pipeline: Pipeline, wishes: Wishes) -> None:
    """Bring rows into the table until there is nothing left to do."""
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
    """Be a driver."""
    wishes = Wishes()
    spark = session("headrace-demo", "local[1]", spark__driver__memory="1g")
    say("warm")
    wishes.await_go()
    with opened(spark, load(Path(file))) as pipeline:
        run(pipeline, wishes)
    say("done")


if __name__ == "__main__":
    main(sys.argv[1])
