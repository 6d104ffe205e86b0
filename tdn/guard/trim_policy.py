"""The policy by which the log is trimmed: it stands for the seconds in which the broker drops its oldest segments, and never longer.

`tdn log trim` sets it and removes it. One that is killed in between leaves it in force, and it would go on dropping with every segment that is
written, at some time what no archive has. So each guard looks every few seconds, and removes one that has stood longer than a trim lets it.
"""

from __future__ import annotations

import asyncio
import logging
import re

from tdn.errors import BrokerUnavailable
from tdn.guard.management import Management
from tdn.protocol import names

logger = logging.getLogger(__name__)

POLICY = "tdn-log-trim"
#: How long a trim lets it stand, waiting for the broker, which drops at once what it may.
DROP_SECONDS = 5.0
#: Between two looks of a guard: longer than a trim takes, so that what both see is nobody's any more. Within two of them the spare segments of a trim,
#: 256 MB, would have to be written before anything goes that must stay: 13 MB a second, several times what nodes can append.
LOOK_SECONDS = 10.0


async def put(management: Management, allowed_bytes: int) -> None:
    """Let the broker drop the log's oldest segments beyond so many bytes."""
    await management.set_policy(POLICY, f"^{re.escape(names.LOG)}$", {"max-length-bytes": allowed_bytes})


async def remove(management: Management) -> bool:
    return await management.delete_policy(POLICY)


async def stands(management: Management) -> bool:
    return await management.has_policy(POLICY)


async def watch(management: Management, *, look_seconds: float = LOOK_SECONDS) -> None:
    """Remove it whenever two looks in a row see it. A slow trim that loses it so drops less than it could, and the next one more."""
    seen = False
    while True:
        try:
            if seen and await remove(management):
                logger.warning(
                    "removed the policy %s, which a `tdn log trim` that was killed had left in force; run that again", POLICY
                )
                seen = False
            else:
                seen = await stands(management)
        except BrokerUnavailable as error:
            # What was seen stays seen: a broker that was away still has it.
            logger.debug("could not look for %s: %s", POLICY, error)
        await asyncio.sleep(look_seconds)
