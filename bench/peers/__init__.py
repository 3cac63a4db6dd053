"""The ways to carry messages that workloads compare: one file a peer, all behind the shape of `lane`."""

from bench.peers import (
    base_manager,
    faster_fifo,
    interprocess,
    jetstream,
    manager_queue,
    mp_queue,
    ping_pong,
    valkey_streams,
    zeromq,
)
from bench.peers.lane import Peer

PEERS: tuple[Peer, ...] = (
    interprocess.PEER,
    zeromq.PEER,
    faster_fifo.PEER,
    faster_fifo.CALLED,
    mp_queue.PEER,
    manager_queue.PEER,
    valkey_streams.PEER,
    jetstream.PEER,
    jetstream.PULLED,
    base_manager.PEER,
    ping_pong.EVENTFD,
    ping_pong.ONE_CPU,
    ping_pong.TWO_CPUS,
    ping_pong.SOCKET,
)
