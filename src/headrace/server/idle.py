"""When a node that was started for others is not needed any more."""

import asyncio

from headrace.server.traffic import Traffic

_LOOKS = 20  # in the time that is waited: so exact is its end


async def until_idle(traffic: Traffic, seconds: float) -> None:
    """Wait until nobody has been connected for so long."""
    clock = asyncio.get_running_loop().time
    came, since = traffic.connections_total, clock()
    while True:
        await asyncio.sleep(seconds / _LOOKS)
        if traffic.connections_open or traffic.connections_total != came:
            came, since = traffic.connections_total, clock()
        elif clock() - since >= seconds:
            return
