"""Several pieces of work at once that wait for each other, each in a thread of its own."""

import threading


def at_once(works, *barriers):
    """Run them all to their end. If one fails the others wait no more, and it is raised."""
    flaws = []

    def run(work):
        try:
            work()
        except BaseException as error:
            flaws.append(error)
            for barrier in barriers:
                barrier.abort()
            raise

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for each in threads:
        each.start()
    for each in threads:
        each.join(300)
        assert not each.is_alive()
    if flaws:
        raise flaws[0]
