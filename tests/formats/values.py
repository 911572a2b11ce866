"""The small fixed values whose bytes are pinned."""

from headrace.journal.entry import Entry, seal
from headrace.journal.frame import PREFIX_SIZE, FrameKind, Prefix, entry_frame_size
from headrace.journal.heads import Head, HeadSlot
from headrace.journal.journal_file import FileHeader
from headrace.journal.machine_seam import MachineState
from headrace.journal.superblock import Checkpoint, Superblock
from headrace.model.ids import GroupId, Identity, Op, ReplicaId, View
from headrace.model.proposal import EntryProposal
from headrace.node.doubt.metadata_copy import Base, Copy

IDENTITY = Identity(b"headrace-cluster", GroupId(1), ReplicaId(0), 3, (16, 24, 24))
PARENT = bytes(range(16))
FILE_ID = 0x1122334455667788
POSITION = 8192  # of the entry frame; the mark and the end frame follow it


def entry() -> Entry:
    return seal(
        IDENTITY,
        EntryProposal(
            16,
            b"hello",
            writer=bytes(range(16, 32)),
            version=7,
            namespace=0x0001_000002_000003,
            created=4,
            schema_id=6,
            row_count=1,
        ),
        op=Op(5),
        parent=PARENT,
        view=View(2),
        timestamp=1_700_000_000_000_000,
    )


def entry_prefix() -> Prefix:
    size = entry_frame_size(len(entry().body))
    return Prefix(FrameKind.ENTRY, size, FILE_ID, Op(4), Op(3), Op(5), entry().checksum)


def bare_prefix(kind: FrameKind) -> Prefix:
    return Prefix(kind, PREFIX_SIZE, FILE_ID, Op(5), Op(4), Op(5), entry().checksum)


FILE_HEADER = FileHeader(FILE_ID, IDENTITY.cluster, 1, Op(5), PARENT, 64 * 1024 * 1024)
SUPERBLOCK = Superblock(
    IDENTITY,
    sequence=9,
    view=View(2),
    log_view=View(1),
    commit=Op(300),
    checkpoint=Checkpoint(Op(256), bytes(range(16)), bytes(range(16, 32))),
    previous_op=Op(128),
    suspect=(Op(301), Op(302)),
    clean_head=Op(300),
    peers=((ReplicaId(1), 5), (ReplicaId(2), 70_000)),
)
HEADS = HeadSlot(
    IDENTITY.cluster,
    sequence=9,
    written_at=1_700_000_000_000_000,
    heads={
        GroupId(0): Head(Op(5), bytes(range(16))),
        GroupId(1): Head(Op(300), bytes(range(16, 32))),
    },
)
STATE = MachineState(b"replicated part", b"local part")


def entry_after() -> Entry:
    return seal(
        IDENTITY,
        EntryProposal(1),
        op=Op(6),
        parent=entry().checksum,
        view=View(2),
        timestamp=1_700_000_000_000_001,
    )


COPY = Copy(
    IDENTITY.cluster,
    Base(Op(5), entry().checksum, b"image", entry()),
    past={Op(3): bytes(range(16, 32)), Op(4): PARENT},
    entries=(entry_after(),),
)
