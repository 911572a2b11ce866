"""What a machine refused is told with what to do next."""

import pytest

from headrace.node.requests.outcomes import partition_error
from headrace.partition.machine.results import RefusalCode, refuse


@pytest.mark.parametrize(
    ("refused", "next_step"),
    [
        (refuse(RefusalCode.WRITERS_FULL, max=65_536), "Reuse an existing writer"),
        (refuse(RefusalCode.STAGES_FULL, max=65_536), "Publish or discard"),
        (refuse(RefusalCode.STAGE_MISSING, stage_id="5f"), "check whether its rows exist"),
    ],
)
def test_a_refusal_of_a_transaction_says_the_next_step(refused, next_step):
    assert next_step.lower() in partition_error(refused).hint.lower()
