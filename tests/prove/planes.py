"""The planes: the two ways that the bytes of calls go, and which of them a process does use.

What is asked for may not be what there is; a scene that was to be played on rings proves nothing on a socket. So each
scene looks. Reads what is private to clients; imported by all that plays scenes.
"""

from __future__ import annotations

from typing import Final

from mpbroker.process.channel import Channel
from mpbroker.process.line import Line
from mpbroker.process.naming import Transport
from mpbroker.process.proxy import BrokerProxy
from mpbroker.shm.ring import Ring
from mpbroker.shm.stream import RingStream

Planes = tuple[Transport, ...]

BOTH: Final[Planes] = (Transport.RING, Transport.MANAGER)
RING: Final[Planes] = (Transport.RING,)
SOCKET: Final[Planes] = (Transport.MANAGER,)


def plane_of(broker: BrokerProxy) -> Transport | None:
    """How this thread's calls travel. None: it has no connection for them now."""
    channel = _own_channel(broker)
    if channel is None:
        return None
    return Transport.RING if channel.is_ring else Transport.MANAGER


def plane_of_line(line: Line) -> Transport | None:
    """How the bytes of a publisher or consumer travel. None: it has no connection now."""
    if line.channel is None:
        return None
    return Transport.RING if line.channel.is_ring else Transport.MANAGER


def broker_on(broker: BrokerProxy, plane: Transport) -> BrokerProxy:
    """A proxy of the same broker whose calls go that way."""
    return BrokerProxy(broker._address._replace(transport=plane))


def ring_of(broker: BrokerProxy) -> Ring:
    """This thread's ring."""
    channel = _own_channel(broker)
    assert channel is not None, "no connection for calls"
    ring = ring_in(channel)
    assert ring is not None, "no ring"
    return ring


def ring_in(channel: Channel) -> Ring | None:
    """That of a connection, which may have none."""
    stream = channel._stream
    return stream._ring if isinstance(stream, RingStream) else None


def wrong_rings(plane: Transport, rings: int, at_least: int) -> list[str]:
    """What is wrong with how many rings a broker says it has, whose clients have so many connections for calls."""
    if plane is Transport.RING and rings < at_least:
        return [f"the broker has {rings} rings for {at_least} connections"]
    if plane is Transport.MANAGER and rings:
        return [f"the broker has {rings} rings, where sockets were asked for"]
    return []


def _own_channel(broker: BrokerProxy) -> Channel | None:
    session = broker._client._session
    if session is None:
        return None
    found: Channel | None = session._own.__dict__.get("channel")
    return found
