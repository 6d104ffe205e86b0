"""Telling watchers of changes as they happen (T29, T35): what this node's own records changed, signed, sealed, to each watcher alone.

Only a convenience. What is told is in the log; whoever misses it, because a node died between deciding and telling, asks from its version
on. So nothing is confirmed here, and nothing is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from tdn.bus.connection import Channel
from tdn.errors import TdnError
from tdn.protocol import names
from tdn.replica.replica import Applied
from tdn.rules import principals, watches
from tdn.rules.sight import COLLECTION
from tdn.rules.watches import Told
from tdn.store.search import Reader
from tdn.trust import sealing, signing, statements
from tdn.trust.credentials import Credentials

logger = logging.getLogger(__name__)

#: Notifications that are sent whole after one batch of records. To further watchers goes an empty message, which costs no signature and
#: says that there is something to ask for.
_WHOLE_AT_ONCE = 32


class Telling:
    """Sends what applied records tell, while there is a channel to send it on."""

    def __init__(self, node: Credentials, network: str, reader: Reader, clock: Callable[[], datetime]) -> None:
        self._node = node
        self._network = network
        self._reader = reader
        self._clock = clock
        self.channel: Channel | None = None

    def on_applied(self, applied: Applied) -> None:
        told = [
            change
            for record, outcome in applied
            for change in watches.told_by(outcome.writes)
            # The node that appended a record tells of it; the others stay silent.
            if signing.split(record.raw).header.thumbprint == self._node.identity.thumbprint
        ]
        if self.channel is None:
            return
        for change in told[:_WHOLE_AT_ONCE]:
            self._try(change, whole=True)
        # To the others one message each, however much there is.
        for change in {(change.subject, change.watcher): change for change in told[_WHOLE_AT_ONCE:]}.values():
            self._try(change, whole=False)

    def _try(self, change: Told, *, whole: bool) -> None:
        try:
            if self.channel is not None:
                self._tell(self.channel, change, whole=whole)
        except TdnError as error:
            logger.info("a watcher was not told: %s", error)

    def _tell(self, channel: Channel, change: Told, *, whole: bool) -> None:
        fact = self._reader.get("topic", change.subject) or {}
        topic = fact["gathering"]["notifications"] if fact.get("kind") == COLLECTION else change.subject
        body = b""
        if whole:
            token = statements.sign("notification", change.payload(self._network), self._node, self._clock())
            body = sealing.seal(token, principals.current(self._reader, f"entity:{change.watcher}").public_key)
        channel.publish(
            names.NOTIFICATIONS, names.notification_key(topic, change.watcher), body, correlation=names.watching(change.subject)
        )
