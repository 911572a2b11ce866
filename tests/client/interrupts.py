"""Ctrl-C, as it comes to a call that waits."""

import os
import signal
import threading
from contextlib import contextmanager

import pytest


@contextmanager
def interrupted(*after):
    """Expect the interrupt, which comes so many seconds from now; more may follow it."""
    # A shell starts what runs in its background with interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timers = [threading.Timer(each, os.kill, (os.getpid(), signal.SIGINT)) for each in after]
    for timer in timers:
        timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        for timer in timers:
            timer.join()
        signal.signal(signal.SIGINT, before)
