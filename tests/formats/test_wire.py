"""Golden bytes of frames: what goes over a connection today is what went over it then.

A failure here is a change of the protocol: its page, its version and the changelog change
with it.
"""

import pytest
from tests.formats.test_golden import PAGES

from headrace.errors import Busy
from headrace.model.results import FetchedPiece
from headrace.partition.segments.segment import segment_name
from headrace.wire.error_codes import to_error, to_failed
from headrace.wire.file_messages import FetchFile, FileChunk, FileDigests, GetFileDigests
from headrace.wire.frames import FrameReader, check_body, decode_message, encode_frame
from headrace.wire.lease_messages import FileInfo, Leased, PartitionFiles
from headrace.wire.messages import AppendRequest, FetchReply, Hello, LeaseFiles
from headrace.wire.topic_messages import PartitionInfo

HELLO = """\
48 52 57 31                                      # magic
01 00                                            # kind
00 00                                            # flags
00 00 00 00 00 00 00 00                          # id
00 00 00 00                                      # deadline_ms: none
1c 00 00 00                                      # meta_size
00 00 00 00                                      # body_size
00 00 00 00                                      # body_crc
00 00 00 00                                      # zeros
83 ca 6f 9c                                      # head_crc
95                                               # array of 5
01                                               # version_min
01                                               # version_max
a5 30 2e 31 2e 30                                # release
c4 10 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d  # nonce
0e 0f
c3                                               # needs_crc
"""
APPEND = """\
48 52 57 31                                      # magic
30 00                                            # kind
00 00                                            # flags
05 00 00 00 00 00 00 00                          # id
dc 05 00 00                                      # deadline_ms
24 00 00 00                                      # meta_size
08 00 00 00                                      # body_size
90 17 5b 77                                      # body_crc
00 00 00 00                                      # zeros
8e c3 fd 9c                                      # head_crc
97                                               # array of 7
cf 00 01 00 00 02 00 00 03                       # namespace
07                                               # created
c4 10 77 72 69 74 65 72 20 6f 66 20 73 69 78 74  # writer
65 65
cd 01 2c                                         # version
01                                               # schema_id
02                                               # row_count
c4 00                                            # checksum: none
74 77 6f 20 72 6f 77 73                          # body
"""
FETCHED = """\
48 52 57 31                                      # magic
51 00                                            # kind
00 00                                            # flags
06 00 00 00 00 00 00 00                          # id
00 00 00 00                                      # deadline_ms
1a 00 00 00                                      # meta_size
08 00 00 00                                      # body_size
90 17 5b 77                                      # body_crc
00 00 00 00                                      # zeros
56 24 e6 90                                      # head_crc
94                                               # array of 4
66                                               # next
00                                               # first
ce 00 01 11 70                                   # end
91                                               # 1 piece
97                                               # array of 7
c3                                               # is_entry
64                                               # first
02                                               # row_count
cf 00 06 0a 24 18 1e 40 00                       # timestamp
01                                               # schema_id
08                                               # size
c4 00                                            # checksum: none
74 77 6f 20 72 6f 77 73                          # body
"""
LEASE_FILES = """\
48 52 57 31                                      # magic
58 00                                            # kind
00 00                                            # flags
07 00 00 00 00 00 00 00                          # id
dc 05 00 00                                      # deadline_ms
22 00 00 00                                      # meta_size
00 00 00 00                                      # body_size
00 00 00 00                                      # body_crc
00 00 00 00                                      # zeros
da 7a 4c f5                                      # head_crc
93                                               # array of 3
c4 10 6c 65 61 73 65 20 6f 66 20 73 69 78 74 65  # lease_id
65 6e
cd 27 10                                         # duration_ms
91                                               # 1 partition
92                                               # array of 2
cf 00 01 00 00 02 00 00 03                       # namespace
07                                               # created
"""
LEASED = """\
48 52 57 31                                      # magic
59 00                                            # kind
00 00                                            # flags
07 00 00 00 00 00 00 00                          # id
00 00 00 00                                      # deadline_ms
6f 00 00 00                                      # meta_size
00 00 00 00                                      # body_size
00 00 00 00                                      # body_crc
00 00 00 00                                      # zeros
37 9b 62 81                                      # head_crc
92                                               # array of 2
cd 27 10                                         # duration_ms
91                                               # 1 partition
95                                               # array of 5
28                                               # first
64                                               # sealed_end
66                                               # end
a5 2f 64 61 74 61                                # directory
91                                               # 1 file
96                                               # array of 6
d9 44 30 30 30 31 30 30 30 30 30 32 30 30 30 30  # name
30 33 2d 37 2d 30 30 30 30 30 30 30 30 30 30 30
30 30 30 30 30 30 30 30 30 2d 30 30 30 30 30 30
30 30 30 30 30 30 30 30 30 30 30 31 30 30 2e 70
61 72 71 75 65 74
00                                               # first
64                                               # end
01                                               # version
cd 10 00                                         # size
c4 10 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d  # row_digest
0e 0f
"""
GET_FILE_DIGESTS = """\
48 52 57 31                                      # magic
68 00                                            # kind
00 00                                            # flags
08 00 00 00 00 00 00 00                          # id
dc 05 00 00                                      # deadline_ms
13 00 00 00                                      # meta_size
00 00 00 00                                      # body_size
00 00 00 00                                      # body_crc
00 00 00 00                                      # zeros
c2 a3 4d 64                                      # head_crc
91                                               # array of 1
c4 10 6c 65 61 73 65 20 6f 66 20 73 69 78 74 65  # lease_id
65 6e
"""
FILE_DIGESTS = """\
48 52 57 31                                      # magic
69 00                                            # kind
00 00                                            # flags
08 00 00 00 00 00 00 00                          # id
00 00 00 00                                      # deadline_ms
14 00 00 00                                      # meta_size
00 00 00 00                                      # body_size
00 00 00 00                                      # body_crc
00 00 00 00                                      # zeros
bc 11 9d 98                                      # head_crc
91                                               # array of 1
91                                               # 1 file
c4 10 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d  # digest
0e 0f
"""
FETCH_FILE = """\
48 52 57 31                                      # magic
6a 00                                            # kind
00 00                                            # flags
09 00 00 00 00 00 00 00                          # id
dc 05 00 00                                      # deadline_ms
39 00 00 00                                      # meta_size
00 00 00 00                                      # body_size
00 00 00 00                                      # body_crc
00 00 00 00                                      # zeros
e9 ed 65 6a                                      # head_crc
98                                               # array of 8
c4 10 6c 65 61 73 65 20 6f 66 20 73 69 78 74 65  # lease_id
65 6e
cf 00 01 00 00 02 00 00 03                       # namespace
07                                               # created
00                                               # first
64                                               # end
c4 10 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d  # digest
0e 0f
cd 10 00                                         # position
ce 00 10 00 00                                   # size_max
"""
FILE_CHUNK = """\
48 52 57 31                                      # magic
6b 00                                            # kind
00 00                                            # flags
09 00 00 00 00 00 00 00                          # id
00 00 00 00                                      # deadline_ms
16 00 00 00                                      # meta_size
04 00 00 00                                      # body_size
a5 08 42 42                                      # body_crc
00 00 00 00                                      # zeros
0a 2e 48 cd                                      # head_crc
92                                               # array of 2
cd 10 00                                         # position
c4 10 10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d  # checksum
1e 1f
50 41 52 31                                      # body
"""
FAILED = """\
48 52 57 31                                      # magic
05 00                                            # kind
00 00                                            # flags
00 00 00 00 00 01 00 00                          # id
00 00 00 00                                      # deadline_ms
4e 00 00 00                                      # meta_size
00 00 00 00                                      # body_size
00 00 00 00                                      # body_crc
00 00 00 00                                      # zeros
93 d0 c0 ea                                      # head_crc
95                                               # array of 5
a4 42 75 73 79                                   # code
ba 74 6f 6f 20 6d 61 6e 79 20 72 65 71 75 65 73  # message
74 73 20 61 72 65 20 6f 70 65 6e
b4 43 6f 6d 65 20 61 67 61 69 6e 20 69 6e 20 32  # hint
35 30 20 6d 73
91                                               # 1 field
92                                               # array of 2
a7 5f 62 72 61 6e 63 68                          # its name: _branch
ab 55 6e 61 76 61 69 6c 61 62 6c 65              # its value: Unavailable
cc fa                                            # retry_after_ms
"""

A_FILE = FileInfo(
    segment_name(0x0001_000002_000003, 7, 0, 100), 0, 100, 1, 4096, bytes(range(16))
)
BUSY = to_failed(Busy("too many requests are open", 250))
GOLDEN = {
    "hello": (HELLO, Hello(1, 1, "0.1.0", bytes(range(16))), 0, b"", 0),
    "append": (
        APPEND,
        AppendRequest(0x0001_000002_000003, 7, b"writer of sixtee", 300, 1, 2, b""),
        5,
        b"two rows",
        1500,
    ),
    "fetched": (
        FETCHED,
        FetchReply(102, 0, 70_000, (FetchedPiece(True, 100, 2, 1_700_000_000_000_000, 1, 8),)),
        6,
        b"two rows",
        0,
    ),
    "lease files": (
        LEASE_FILES,
        LeaseFiles(b"lease of sixteen", 10_000, (PartitionInfo(0x0001_000002_000003, 7),)),
        7,
        b"",
        1500,
    ),
    "leased": (
        LEASED,
        Leased(10_000, (PartitionFiles(40, 100, 102, "/data", (A_FILE,)),)),
        7,
        b"",
        0,
    ),
    "get file digests": (
        GET_FILE_DIGESTS,
        GetFileDigests(b"lease of sixteen"),
        8,
        b"",
        1500,
    ),
    "file digests": (FILE_DIGESTS, FileDigests((bytes(range(16)),)), 8, b"", 0),
    "fetch file": (
        FETCH_FILE,
        FetchFile(
            b"lease of sixteen",
            0x0001_000002_000003,
            7,
            0,
            100,
            bytes(range(16)),
            4096,
            1 << 20,
        ),
        9,
        b"",
        1500,
    ),
    "file chunk": (FILE_CHUNK, FileChunk(4096, bytes(range(16, 32))), 9, b"PAR1", 0),
    "failed": (FAILED, BUSY, 2**40, b"", 0),
}
PAGE = (PAGES.parent / "protocol.md").read_text()


def from_hex(text: str) -> bytes:
    return bytes.fromhex("".join(line.partition("#")[0] for line in text.splitlines()))


@pytest.mark.parametrize("name", GOLDEN)
def test_frame(name):
    text, message, request_id, body, deadline_ms = GOLDEN[name]
    data = from_hex(text)
    assert b"".join(encode_frame(message, request_id, (body,), deadline_ms)) == data
    reader = FrameReader()
    reader.get_buffer(-1)[: len(data)] = data
    (frame,) = reader.received(len(data))
    assert decode_message(frame) == message
    check_body(frame)
    assert (frame.id, frame.body, frame.deadline_ms) == (request_id, body, deadline_ms)


def test_the_error_in_an_answer():
    error = to_error(BUSY)
    assert isinstance(error, Busy)
    assert str(error) == "too many requests are open. Come again in 250 ms"


@pytest.mark.parametrize("name", GOLDEN)
def test_its_page_shows_the_same_bytes(name):
    assert f"```text\n{GOLDEN[name][0]}```" in PAGE
