"""How all tests run: signals as in a terminal, and a rotating sample of each campaign.

A campaign is a parametrized test that asks one question of very many cases, or several tests of
a module that share a name (`of`). A run tries as many of them as the mark says, other ones at
each commit; `--whole` tries all, as `make soak` does.
"""

import os
import signal
import subprocess
import time
from collections import defaultdict
from pathlib import Path

import pytest
from tests.rotation import sample

# A shell starts what runs in its background with interrupts ignored, and children inherit that.
# Tests send interrupts to themselves and to children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A JVM of a test lives for seconds: its best compiler and its parallel collector do not pay.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

DAY_SECONDS = 24 * 60 * 60


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("campaigns")
    group.addoption("--whole", action="store_true", help="try every case of every campaign")
    group.addoption(
        "--rotation", type=int, help="which cases to try; by default the number of commits"
    )


def pytest_configure(config: pytest.Config) -> None:
    # Workers get the options of the process that starts them, so all choose the same cases.
    if config.option.rotation is None:
        config.option.rotation = _commit_count() or int(time.time()) // DAY_SECONDS


def _commit_count() -> int:
    """Return how many commits led here: the same commit always asks the same questions."""
    command = ["git", "rev-list", "--count", "HEAD"]
    try:
        said = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return 0  # an unpacked source archive
    return int(said.stdout)


def pytest_report_header(config: pytest.Config) -> str:
    if config.option.whole:
        return "campaigns: every case"
    return f"campaigns: a sample, which --rotation {config.option.rotation} repeats"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases of campaigns that are not in this run's sample."""
    campaigns = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("campaign")
        if mark is not None:
            own = item.path, item.parent.name, getattr(item, "originalname", "")
            campaigns[mark.kwargs.get("of") or own].append((item, mark.args[0]))
    if config.option.whole:
        return
    left_out = set()
    for cases in campaigns.values():
        kept = sample(len(cases), cases[0][1], config.option.rotation)
        left_out.update(item for place, (item, _) in enumerate(cases) if place not in kept)
    if left_out:
        config.hook.pytest_deselected(items=sorted(left_out, key=lambda item: item.nodeid))
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def rotation(request: pytest.FixtureRequest) -> int:
    """A number that is another one at each commit, for tests that choose seeds by it."""
    return request.config.option.rotation
