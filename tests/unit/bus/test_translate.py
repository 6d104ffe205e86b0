"""Foreign errors become ours, from one table."""

from __future__ import annotations

import ssl

import pika.exceptions as foreign
import pytest

from tdn.bus.connection import translate
from tdn.errors import BrokerUnavailable, Refused, TdnError, TrustError

_NAME = "tdn:entity:alice:" + "0" * 64
_SAID = f"ACCESS_REFUSED - access to exchange 'tdn.requests' in vhost 'tdn' refused for user '{_NAME}'"


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (403, _SAID, Refused),
        (403, _SAID.replace("alice", "backend"), Refused),
        (403, f"{_SAID}, backend rabbit_auth_backend_http returned an error: timeout", BrokerUnavailable),
        (403, f"{_SAID}, backend rabbit_auth_backend_h", BrokerUnavailable),
        (404, "NOT_FOUND - no queue", BrokerUnavailable),
    ],
)
def test_a_guard_that_does_not_answer_has_not_refused(code: int, text: str, kind: type[TdnError]) -> None:
    """T22: what the broker could not ask about is tried again; what was refused is final."""
    assert type(translate(foreign.ChannelClosedByBroker(code, text))) is kind


def test_a_broker_of_another_network() -> None:
    """Credentials of another network, or an address of another broker: which file to look at, not OpenSSL's name for it."""
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    error.verify_message = "self-signed certificate in certificate chain"
    ours = translate(foreign.AMQPConnectionError(error))
    assert isinstance(ours, TrustError)
    assert ours.message.startswith("the broker's certificate does not hold: self-signed certificate in certificate chain; are trust.pem and")
