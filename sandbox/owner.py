"""A server that a run started ends with the run, even where that was killed and could say nothing."""

import asyncio
import logging
import os

from evalkit.owner import OWNER_VARIABLE

log = logging.getLogger(__name__)

_INTERVAL_S = 1.0


async def follow_owner(stop: asyncio.Event) -> None:
    """Set `stop` once the parent isn't the process that the environment names; without a name, wait for ever.

    A process whose parent has ended gets another one, so that an id that was given again can't deceive. Windows has no
    such thing: there the server stays, as before.
    """
    owner = os.environ.get(OWNER_VARIABLE)
    if owner is None or os.name != "posix":
        return
    while str(os.getppid()) == owner:
        await asyncio.sleep(_INTERVAL_S)
    log.warning("the run that this server belongs to has ended; stopping")
    stop.set()
