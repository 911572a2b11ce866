"""A change whose answer was lost is never said not to have happened."""

import asyncio

import pytest
from tests.client.memory_log import MemoryChannel

from headrace.client.connect.retry import Caller
from headrace.errors import ConnectionLost, NotReady, Unknown
from headrace.model.results import PublishResult
from headrace.wire.messages import PublishRequest

PUBLISH = PublishRequest(1, 1, b"w" * 16, 1, ())


class Failing(MemoryChannel):
    """Answers each try with the next of its errors, and the last for ever."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    async def call(self, *_: object, **__: object) -> object:
        raise self.errors.pop(0) if len(self.errors) > 1 else self.errors[0]


@pytest.mark.parametrize(
    ("errors", "ends"),
    [
        ([Unknown("the answer was lost"), ConnectionLost("nobody answers")], Unknown),
        ([NotReady("later"), Unknown("lost"), NotReady("later")], Unknown),
        ([ConnectionLost("nobody answers")], ConnectionLost),
    ],
)
def test_an_unknown_try_is_remembered_when_the_next_finds_nobody(errors, ends):
    async def run():
        with pytest.raises(ends) as caught:
            await Caller(Failing(*errors), 0.2).get(PUBLISH, PublishResult)
        return caught.value

    said = asyncio.run(run())
    assert ("may have taken effect" in str(said)) == (ends is Unknown)
