"""A group 0 that cannot be brought back as it was: what is whole of it is read, and held."""

from headrace.errors import ApplyFailed, Corrupt, HeadraceError, UnsupportedFormat
from headrace.journal.prefix import read_prefix
from headrace.metadata.machine import MetadataMachine
from headrace.model.ids import Identity, Op
from headrace.node.catalog import MetadataGroup
from headrace.node.identity import METADATA, find_group
from headrace.storage.seam import Directory


def is_holdable(error: HeadraceError) -> bool:
    """Say whether bytes that are bad, or gone, are why group 0 refuses."""
    is_other = isinstance(error, UnsupportedFormat | ApplyFailed)
    return isinstance(error, Corrupt) and not is_other


def hold(
    root: Directory, identity: Identity, machine: MetadataMachine, error: HeadraceError
) -> Op | None:
    """Read what is whole of group 0 after it refused with `error`; return the op reached.

    None: bad bytes are not why it refused, or it has peers that have them. Nothing is written.
    """
    if not is_holdable(error) or not identity.is_solo:
        return None
    directory = find_group(root, METADATA)
    if directory is None:
        machine.restore(None)
        return Op(0)
    return read_prefix(directory, identity, MetadataGroup(machine))
