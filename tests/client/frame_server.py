"""A tiny node: speaks frames over a real socket, and answers as a test tells it."""

import asyncio
from contextlib import asynccontextmanager

from headrace.wire.frames import FrameReader, decode_message, encode_frame
from headrace.wire.greeting import VERSION, Accepted, ErrorReply, Hello, TokenProof, Welcome
from headrace.wire.token_proof import client_mac, matches, node_mac

NODE_NONCE = b"n" * 16


class TinyNode:
    """Greets by itself; everything else goes to `on_request`."""

    def __init__(self, on_request=None, token=None, in_flight_max=64, version=VERSION):
        self.cluster = b"c" * 16
        self.on_request = on_request or (lambda peer, frame, message: None)
        self.token = token
        self.in_flight_max = in_flight_max
        self.version = version
        self.knows_token = True
        self.peers = []
        self.heard = []  # messages, in order


class Peer(asyncio.BufferedProtocol):
    def __init__(self, node):
        self.node = node
        self.reader = FrameReader()
        node.peers.append(self)

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, sizehint):
        return self.reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes):
        for frame in self.reader.received(nbytes):
            self._take(frame)

    def say(self, message, request_id, body=()):
        for piece in encode_frame(message, request_id, body):
            self.transport.write(piece)

    def _take(self, frame):
        node, message = self.node, decode_message(frame)
        node.heard.append(message)
        if isinstance(message, Hello):
            self.hello = message
            self.say(
                Welcome(
                    version=node.version,
                    release="tiny",
                    cluster=node.cluster,
                    nonce=NODE_NONCE,
                    needs_proof=node.token is not None,
                    body_size_max=1024 * 1024,
                    in_flight_max=node.in_flight_max,
                ),
                frame.id,
            )
        elif isinstance(message, TokenProof):
            self._judge(frame, message)
        else:
            node.on_request(self, frame, message)

    def _judge(self, frame, message):
        node, nonce = self.node, self.hello.nonce
        if not matches(
            message.mac, client_mac(node.token, nonce, NODE_NONCE, version=node.version)
        ):
            failed = ErrorReply("Unauthorized", "the token is not this node's", "", (), None)
            self.say(failed, frame.id)
            return
        known = node.token if node.knows_token else b"something else"
        self.say(Accepted(node_mac(known, nonce, NODE_NONCE, version=node.version)), frame.id)


@asynccontextmanager
async def listening(node, port=0):
    """Listen on a free port; gives the address."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Peer(node), "127.0.0.1", port)
    try:
        host, bound = server.sockets[0].getsockname()
        yield f"{host}:{bound}"
    finally:
        server.close()
        for peer in node.peers:
            peer.transport.abort()
