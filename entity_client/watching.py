"""Following a topic's subtree or a collection (T29, T35): every change that we may see, once, in the order of its version.

Nodes send notifications as they happen, but a sent one is only a hint: what counts is the version. The next one is taken as it is, one that
was seen before is passed over, and a gap is closed by asking. So is silence, now and then, because the last notification can be the lost one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from entity_client.objects import Change, read_change
from entity_client.session import Session
from tdn.errors import Absent, BrokerUnavailable, LoginRefused, NoNodeAnswered, Refused, TdnError, TrustError, UsageError
from tdn.protocol.trees import EXPIRED, WITHDRAWN
from tdn.trust import sealing
from tdn.trust.envelope import Envelope
from tdn.trust.statements import by_roots

if TYPE_CHECKING:
    from entity_client.client import EntityClient

logger = logging.getLogger(__name__)

#: How long silence is believed. A node that was killed between deciding and telling delays a change by this much.
_ASK_SECONDS = 5.0
#: How often the network is told that we still follow; it forgets who is silent for a month.
_RENEW_SECONDS = 86_400.0
#: Between two tries while the network is away.
_AGAIN_SECONDS = 0.5
#: How long guards may let nobody in while they catch up with the log.
_GUARDS_SECONDS = 60.0


class Watching:
    """Changes of one thing, as they happen, until it has ended itself. Goes on through lost connections; ends with the error when we may no
    longer follow."""

    def __init__(self, client: EntityClient, session: Session, uuid: str, since: int | None) -> None:
        self._client = client
        self._session = session
        self._uuid = uuid
        #: The version of the last change that was given; None before the network has said where we begin.
        self.version = since
        #: Set when what happens from now on is sure to be told.
        self.ready = asyncio.Event()
        self._renewed = float("-inf")
        self._followed: str | None = None
        #: Whether a node has answered from our version on, so that there is such a version.
        self._answered = False

    def __aiter__(self) -> AsyncGenerator[Change, None]:
        return self._run()

    async def _run(self) -> AsyncGenerator[Change, None]:
        refused_since: float | None = None
        async with self._session.notifications(self._uuid) as arriving:
            while True:
                try:
                    await self._register()
                    async for change in self._asked():
                        yield change
                        if self._is_last(change):
                            return
                    self.ready.set()
                    refused_since = None
                    while self._session.queue == self._followed and time.monotonic() - self._renewed < _RENEW_SECONDS:
                        async with asyncio.timeout(_ASK_SECONDS):
                            sent = self._read(await arriving.get())
                        if sent is None or sent.version > (self.version or 0) + 1:
                            # Told that there is something, or of something later than the next.
                            break
                        if sent.version == (self.version or 0) + 1:
                            self.version = sent.version
                            yield sent
                            if self._is_last(sent):
                                return
                except TimeoutError:
                    continue
                except LoginRefused as error:
                    refused_since = time.monotonic() if refused_since is None else refused_since
                    if not self._session.guards_may_be_late or time.monotonic() >= refused_since + _GUARDS_SECONDS:
                        raise
                    logger.info("following %s is interrupted: %s", self._uuid, error)
                    self._followed = None
                    await asyncio.sleep(_AGAIN_SECONDS)
                except (BrokerUnavailable, NoNodeAnswered) as error:
                    logger.info("following %s is interrupted: %s", self._uuid, error)
                    self._followed = refused_since = None
                    await asyncio.sleep(_AGAIN_SECONDS)
                except UsageError as error:
                    if not self._answered:
                        raise
                    # The node is so far behind that it does not know our version yet; or there is none any more, which the log says.
                    logger.info("following %s is interrupted: %s", self._uuid, error)
                    self._renewed = float("-inf")
                    await asyncio.sleep(_AGAIN_SECONDS)

    def _is_last(self, change: Change) -> bool:
        """What we follow has ended itself: nothing more will come."""
        return change.uuid == self._uuid and change.change in (EXPIRED, WITHDRAWN)

    async def _register(self) -> None:
        """Tell the network that we follow; once a day, and once at the beginning, which says where we are."""
        if time.monotonic() - self._renewed < _RENEW_SECONDS:
            return
        try:
            decided = await self._client.change("watch", {"uuid": self._uuid})
        except Refused as refused:
            # What has ended takes no followers. What it told those that it had, its end too, can still be asked for.
            if self.version is None or not await self._is_known():
                raise refused from None
        else:
            present = decided.version or 0
            if self.version is None:
                self.version = present
            elif self._answered and present < self.version:
                raise Refused(f"{self._uuid} was followed no longer and then anew meanwhile; versions begin at 1 again")
        self._renewed = time.monotonic()

    async def _is_known(self) -> bool:
        """Whether a node has us among those who follow."""
        try:
            await self._ask(follow=False)
        except Absent:
            return False
        return True

    async def _asked(self) -> AsyncGenerator[Change, None]:
        """All that a node knows after our version. It is asked to send what comes later, where it was not yet since we are connected."""
        while True:
            await self._session.ready(self._client.timeout)
            queue = self._session.queue
            reply = await self._ask(follow=queue != self._followed)
            self._followed = queue
            for line in reply.tail.split(b"\n") if reply.tail else []:
                change = self._verified(line)
                if change.version != (self.version or 0) + 1:
                    raise TrustError(f"the node left out a change: version {change.version} came after {self.version}")
                self.version = change.version
                yield change
            if (self.version or 0) >= reply.body["version"]:
                return

    async def _ask(self, *, follow: bool) -> Envelope:
        body = {"uuid": self._uuid, "since": self.version, "follow": follow, "after": self._client.seen}
        (reply,) = await self._client.ask_pages("changes", body)
        if reply.kind != "changed":
            raise TrustError(f"a {reply.kind} is no answer to what was asked")
        self._answered = True
        return reply

    def _read(self, arrived: bytes | TdnError) -> Change | None:
        """A notification that was sent; nothing, when it says only that there is something, or is not to be believed."""
        if isinstance(arrived, TdnError):
            raise arrived if isinstance(arrived, BrokerUnavailable) else BrokerUnavailable(str(arrived))
        if not arrived:
            return None
        with contextlib.suppress(TdnError):
            return self._verified(sealing.unseal(arrived, self._session.credentials.key))
        return None

    def _verified(self, token: bytes) -> Change:
        credentials = self._session.credentials
        change = read_change(token, by_roots(credentials.roots), self._session.network, credentials.identity.name.id)
        if change.subject != self._uuid:
            raise TrustError("the notification is of something else")
        # Whichever node is asked next is to have it too.
        self._client.seen = max(self._client.seen, change.seq)
        return change
