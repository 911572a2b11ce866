"""How all tests run."""

import signal

# A shell starts what runs in its background with interrupts ignored, and children inherit that.
# Tests send interrupts to themselves and to children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
