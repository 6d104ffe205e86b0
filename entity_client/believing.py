"""Which replies are believed: those that were sealed to us, and signed by a node for us, now. It does not matter which way they came."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from tdn.errors import TdnError, TrustError
from tdn.protocol.names import Role
from tdn.trust import envelope, sealing, signing
from tdn.trust.certificates import Identity
from tdn.trust.credentials import Credentials
from tdn.trust.envelope import Envelope
from tdn.trust.replay import MAX_QUESTION_LIFE

logger = logging.getLogger(__name__)


class Believing:
    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        #: Nodes whose certificate was verified, by its thumbprint.
        self._nodes: dict[str, Identity] = {}

    def remember(self, node: Identity) -> None:
        """A node that was verified before."""
        self._nodes[node.thumbprint] = node

    def believed(self, message: bytes, *message_ids: str) -> Envelope | None:
        """An answer to one of some messages of ours, if it is one and is believed. Anybody could have sent what is not; it is passed over."""
        try:
            reply = self.read(message)
        except TdnError as error:
            logger.warning("a reply was not believed: %s", error)
            return None
        return reply if reply.answers in message_ids or (reply.answers is None and reply.kind == "error") else None

    def read(self, message: bytes) -> Envelope:
        """A reply that was sealed to us and signed by a node for us, now. Only an error to an unnamed sender comes unsealed."""
        now = datetime.now(UTC)
        sealed = sealing.is_sealed(message)
        raw = sealing.unseal(message, self._credentials.key) if sealed else message
        reply = envelope.authenticate(raw, self._identify)
        audience = self._credentials.identity.name.principal if sealed else "tdn:sender"
        if not sealed and reply.kind != "error":
            raise TrustError("a reply that is not sealed")
        envelope.require_addressed(reply, audiences=frozenset({audience}), now=now, longest=MAX_QUESTION_LIFE)
        return reply

    def _identify(self, header: signing.Header) -> Identity:
        known = self._nodes.get(header.thumbprint)
        if known is None:
            if not header.chain:
                raise TrustError("a reply from a node that was not located")
            known = self._credentials.roots.identify(header.chain, at=datetime.now(UTC))
            if known.name.role is not Role.NODE:
                raise TrustError(f"a reply signed by {known.name.principal}, which is not a node")
            self._nodes[header.thumbprint] = known
        return known
