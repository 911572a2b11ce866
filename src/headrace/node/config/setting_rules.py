"""Constraints between settings: each rule checks a whole config and names one key."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from headrace.model.namespace import NAMESPACE_BITS
from headrace.model.units import format_size
from headrace.node.config.settings import Config

# Pipeline windows that fit in the ring: one fills while checkpoints of the others are pending.
PIPELINES_PER_RING: Final = 4


@dataclass(frozen=True, slots=True)
class SettingFlaw:
    """A violated rule, and the key of the setting to change."""

    key: str
    text: str
    hint: str = ""


Rule = Callable[[Config], Iterator[SettingFlaw]]


def flaws(config: Config) -> Iterator[SettingFlaw]:
    """Yield every rule that `config` violates, the most severe first."""
    for rule in RULES:
        yield from rule(config)


def _this_release_runs_one_replica(config: Config) -> Iterator[SettingFlaw]:
    if config.cluster.replicas != 1:
        text = f"is {config.cluster.replicas}, but this release runs one replica"
        yield SettingFlaw("cluster.replicas", text, "Leave it at 1")


def _a_namespace_fits_its_field(config: Config) -> Iterator[SettingFlaw]:
    cluster = config.cluster
    bits = cluster.stream_bits + cluster.topic_bits + cluster.partition_bits
    if bits > NAMESPACE_BITS:
        yield SettingFlaw(
            "cluster.partition_bits",
            f"stream_bits + topic_bits + partition_bits is {bits}, more than {NAMESPACE_BITS}",
            "Reduce one of them",
        )


def _the_ring_holds_the_pipeline(config: Config) -> Iterator[SettingFlaw]:
    least = PIPELINES_PER_RING * config.commit.pipeline
    slots = {
        "journal.slots": config.journal.slots,
        "journal.metadata_slots": config.journal.metadata_slots,
    }
    for key, count in slots.items():
        if count < least:
            text = f"{count} is less than {PIPELINES_PER_RING} x commit.pipeline, {least}"
            yield SettingFlaw(key, text, "Increase the slots, or shorten the pipeline")


def _the_largest_body_fits(config: Config) -> Iterator[SettingFlaw]:
    body_size = config.limits.body_size
    sizes = {
        "commit.pipeline_size": config.commit.pipeline_size,
        "seal.size": config.seal.size,
        "limits.in_flight_size": config.limits.in_flight_size,
    }
    for key, size in sizes.items():
        if size < body_size:
            text = (
                f"{format_size(size)} is less than limits.body_size, {format_size(body_size)}"
            )
            yield SettingFlaw(key, text, "Increase it, or reduce limits.body_size")


def _the_queue_holds_a_connection(config: Config) -> Iterator[SettingFlaw]:
    limits = config.limits
    if limits.queue_size < limits.in_flight_size:
        text = (
            f"{format_size(limits.queue_size)} is less than limits.in_flight_size, "
            f"{format_size(limits.in_flight_size)}"
        )
        hint = "Increase it: one connection could fill the node"
        yield SettingFlaw("limits.queue_size", text, hint)


def _a_default_deadline_may_be_named(config: Config) -> Iterator[SettingFlaw]:
    request = config.request
    if request.timeout > request.timeout_max:
        text = f"{request.timeout} is more than request.timeout_max, {request.timeout_max}"
        yield SettingFlaw("request.timeout", text)


def _others_prove_a_token(config: Config) -> Iterator[SettingFlaw]:
    if not (config.listen.address.is_loopback or config.auth.token):
        yield SettingFlaw(
            "listen.address",
            f"{config.listen.address} is reachable from other machines, but no token is set",
            "Set auth.token_file or HEADRACE_AUTH__TOKEN, or listen on 127.0.0.1",
        )


def _an_advertised_address_can_be_reached(config: Config) -> Iterator[SettingFlaw]:
    listen = config.listen
    if listen.advertise is not None and listen.advertise.is_wildcard:
        text = f"{listen.advertise} is a wildcard address: clients cannot connect to it"
        yield SettingFlaw("listen.advertise", text)
    if listen.advertise is None and listen.address.is_wildcard and config.cluster.replicas > 1:
        yield SettingFlaw(
            "listen.advertise",
            f"is required: listen.address is {listen.address}, which peers cannot connect to",
            "Set it to the address at which peers reach this node",
        )


def _two_listeners_have_two_ports(config: Config) -> Iterator[SettingFlaw]:
    address, http = config.listen.address, config.listen.http
    if http == address and address.port:
        yield SettingFlaw("listen.http", f"{http} is also listen.address", "Use another port")


RULES: Final[tuple[Rule, ...]] = (
    _this_release_runs_one_replica,
    _a_namespace_fits_its_field,
    _the_ring_holds_the_pipeline,
    _the_largest_body_fits,
    _the_queue_holds_a_connection,
    _a_default_deadline_may_be_named,
    _others_prove_a_token,
    _an_advertised_address_can_be_reached,
    _two_listeners_have_two_ports,
)
