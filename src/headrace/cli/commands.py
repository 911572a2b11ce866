"""Every command of `headrace`."""

from typing import Final

from headrace.cli import (
    bench,
    chaos,
    completion,
    config,
    demo,
    doctor,
    group,
    inspect,
    pipeline,
    produce,
    prove,
    read,
    serve,
    sim,
    spark,
    status,
    topic,
)

COMMANDS: Final = (
    bench,
    chaos,
    completion,
    config,
    demo,
    doctor,
    group,
    inspect,
    pipeline,
    produce,
    prove,
    read,
    serve,
    sim,
    spark,
    status,
    topic,
)
