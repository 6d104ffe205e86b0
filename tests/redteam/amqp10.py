"""As much of AMQP 1.0 as an attacker needs, by hand. RabbitMQ 4 speaks it on the port of AMQP 0-9-1; 3.x does so with a plugin only.

Two hundred lines rather than a library, because a library's client would not send what it ought not to.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.redteam.target import Party, Target

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
SASL_MECHANISMS, SASL_INIT, SASL_OUTCOME = 0x40, 0x41, 0x44
_SOURCE, _TARGET = 0x28, 0x29
_DURABLE_HEADER, _ANNOTATIONS, _PROPERTIES, _DATA, _VALUE = 0x70, 0x72, 0x73, 0x75, 0x77
ACCEPTED = 0x24

_AMQP, _SASL = 0, 1
_CREDIT = 100


class NotSpoken(Exception):
    """The broker speaks no AMQP 1.0."""


class Ended(Exception):
    """The broker ended the link, the session or the connection; with its words."""


class Symbol(str):
    __slots__ = ()


class Binary(bytes):
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Described:
    code: int
    value: Any


# --- values ---


def encode(value: Any) -> bytes:
    if value is None:
        return b"\x40"
    if isinstance(value, bool):
        return b"\x41" if value else b"\x42"
    if isinstance(value, Described):
        return b"\x00\x53" + bytes([value.code]) + encode(value.value)
    if isinstance(value, Symbol):
        return b"\xa3" + bytes([len(value)]) + value.encode()
    if isinstance(value, str):
        return b"\xb1" + struct.pack(">I", len(value.encode())) + value.encode()
    if isinstance(value, bytes):
        return b"\xb0" + struct.pack(">I", len(value)) + value
    if isinstance(value, int):
        return b"\x70" + struct.pack(">I", value)
    if isinstance(value, Wide):
        return b"\x80" + struct.pack(">Q", value.number)
    if isinstance(value, Byte):
        return b"\x50" + bytes([value.number])
    if isinstance(value, Short):
        return b"\x60" + struct.pack(">H", value.number)
    if isinstance(value, dict):
        return _compound(0xD1, [part for pair in value.items() for part in pair])
    return _compound(0xD0, value)


@dataclass(frozen=True, slots=True)
class Wide:
    number: int


@dataclass(frozen=True, slots=True)
class Short:
    number: int


@dataclass(frozen=True, slots=True)
class Byte:
    number: int


def _compound(code: int, parts: Sequence[Any]) -> bytes:
    content = b"".join(map(encode, parts))
    return bytes([code]) + struct.pack(">II", len(content) + 4, len(parts)) + content


_FIXED = {
    0x50: "B",
    0x51: "b",
    0x52: "B",
    0x53: "B",
    0x54: "b",
    0x55: "b",
    0x60: ">H",
    0x61: ">h",
    0x70: ">I",
    0x71: ">i",
    0x72: ">f",
}
_FIXED |= {0x73: ">I", 0x80: ">Q", 0x81: ">q", 0x82: ">d", 0x83: ">q"}
_CONSTANT: dict[int, Any] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0, 0x45: []}


def decode(raw: bytes, at: int = 0) -> tuple[Any, int]:
    """A value, and where the next one begins."""
    code = raw[at]
    at += 1
    if code == 0:
        descriptor, at = decode(raw, at)
        value, at = decode(raw, at)
        return Described(descriptor, value), at
    return _decode_as(code, raw, at)


def _decode_as(code: int, raw: bytes, at: int) -> tuple[Any, int]:
    if code in _CONSTANT:
        return _CONSTANT[code], at
    if code in _FIXED:
        size = struct.calcsize(_FIXED[code])
        return struct.unpack_from(_FIXED[code], raw, at)[0], at + size
    if code == 0x56:
        return raw[at] == 1, at + 1
    if code == 0x98:
        return raw[at : at + 16].hex(), at + 16
    wide = code & 0xF0 in (0xB0, 0xD0, 0xF0)
    size = struct.unpack_from(">I", raw, at)[0] if wide else raw[at]
    at += 4 if wide else 1
    content = raw[at : at + size]
    if code in (0xA0, 0xB0):
        return content, at + size
    if code in (0xA1, 0xB1, 0xA3, 0xB3):
        return content.decode(errors="replace"), at + size
    return _elements(code, content, wide), at + size


def _elements(code: int, content: bytes, wide: bool) -> Any:
    count = struct.unpack_from(">I", content)[0] if wide else content[0]
    at = 4 if wide else 1
    if code in (0xE0, 0xF0):
        inner = content[at]
        at += 1
    found = []
    for _ in range(count):
        value, at = _decode_as(inner, content, at) if code in (0xE0, 0xF0) else decode(content, at)
        found.append(value)
    return dict(zip(found[::2], found[1::2], strict=True)) if code in (0xC1, 0xD1) else found


# --- a connection with one session ---


@dataclass
class Peer:
    """Logged in as a party, with one session. Everything that it is sent is kept."""

    target: Target
    party: Party
    #: Another mechanism and response than the party's own; none at all goes past the login.
    login: tuple[str, bytes] | None = None
    anonymous: bool = False
    heard: list[bytes] = field(default_factory=list)
    _answers: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._handle = 0
        self._deliveries = 0
        plain = socket.create_connection((self.target.host, self.target.port), timeout=5)
        self._socket: ssl.SSLSocket = self.party.context().wrap_socket(plain, server_hostname=self.target.host)
        if not self.anonymous:
            self._log_in()
        self._protocol(0)
        self._send(_AMQP, 0, OPEN, ["red team", f"vhost:{self.target.vhost}", 1_000_000, Short(10)])
        self._expect(OPEN)
        self._send(_AMQP, 0, BEGIN, [None, 0, 1000, 1000])
        # Where the broker begins to count its transfers.
        self._incoming = self._expect(BEGIN)[1]

    def _log_in(self) -> None:
        self._protocol(3)
        self._expect(SASL_MECHANISMS)
        own = ("EXTERNAL", b"")
        if self.party.password is not None:
            own = ("PLAIN", f"\0{self.party.login}\0{self.party.password}".encode())
        mechanism, response = self.login or own
        self._send(_SASL, 0, SASL_INIT, [Symbol(mechanism), response])
        outcome = self._expect(SASL_OUTCOME)
        if outcome[0] != 0:
            raise Ended(f"login refused: {outcome}")

    def sender(self, address: str | None) -> int:
        """A link on which we send; to nobody in particular without an address."""
        return self._attach(sends=True, address=address)

    def receiver(self, address: str) -> int:
        """A link on which we receive, with credit."""
        return self._attach(sends=False, address=address)

    def pair(self) -> tuple[int, int]:
        """The two links to RabbitMQ's own node for managing it over AMQP."""
        paired = {Symbol("paired"): True}
        return (
            self._attach(sends=True, address="/management", name="pair", properties=paired, settled=True),
            self._attach(sends=False, address="/management", name="pair", properties=paired),
        )

    def send(
        self,
        handle: int,
        body: Any,
        *,
        to: str | None = None,
        subject: str | None = None,
        reply_to: str | None = None,
        user_id: str | None = None,
        annotations: dict[str, Any] | None = None,
        settled: bool = False,
    ) -> Any:
        """One message; gives its outcome, once the broker has said it. Of a settled one nothing is said."""
        properties = [Wide(self._deliveries), Binary(user_id.encode()) if user_id else None, to, subject, reply_to]
        sections = [Described(_DURABLE_HEADER, [True])]
        if annotations:
            sections.append(Described(_ANNOTATIONS, {Symbol(key): value for key, value in annotations.items()}))
        sections += [Described(_PROPERTIES, properties), Described(_DATA if isinstance(body, bytes) else _VALUE, body)]
        tag = struct.pack(">I", self._deliveries)
        self._send(
            _AMQP,
            0,
            TRANSFER,
            [handle, self._deliveries, tag, 0, settled, False],
            b"".join(map(encode, sections)),
        )
        self._deliveries += 1
        return None if settled else self._expect(DISPOSITION)[4]

    def ask(self, pair: tuple[int, int], method: str, path: str, body: Any = None) -> tuple[str, Any]:
        """A request to the management node: its status and what it says."""
        self._answers.clear()
        self.send(pair[0], body, to=path, subject=method, reply_to="$me", settled=True)
        while not self._answers:
            self._expect(TRANSFER)
        sections = _sections(self._answers.pop())
        return sections[_PROPERTIES][3], sections.get(_VALUE)

    def listen(self, seconds: float) -> None:
        """Take what comes."""
        self._socket.settimeout(seconds)
        try:
            while True:
                self._note(*self._receive())
        except (TimeoutError, Ended, OSError):
            pass

    def close(self) -> None:
        self._socket.close()

    # --- inside ---

    def _attach(self, *, sends: bool, address: str | None, name: str = "", properties: Any = None, settled: bool = False) -> int:
        handle, self._handle = self._handle, self._handle + 1
        source = Described(_SOURCE, ["me" if sends else address])
        target = Described(_TARGET, [address if sends else "me"])
        mode = Byte(1 if settled else 0)
        fields = [name or f"link {handle}", handle, not sends, mode, Byte(0), source, target, None, None, 0 if sends else None]
        self._send(_AMQP, 0, ATTACH, [*fields, None, None, None, properties])
        attached = self._expect(ATTACH)
        if sends:
            # Credit; or, for a link that is attached only to be ended, the reason.
            self._expect(FLOW)
        else:
            self._send(_AMQP, 0, FLOW, [self._incoming, 1000, 0, 1000, handle, attached[9], _CREDIT])
        return handle

    def _protocol(self, number: int) -> None:
        header = b"AMQP" + bytes([number, 1, 0, 0])
        self._socket.sendall(header)
        answer = self._exactly(8)
        if answer != header:
            raise NotSpoken(f"the broker answered {answer!r}")

    def _send(self, kind: int, channel: int, code: int, fields: list[Any], payload: bytes = b"") -> None:
        body = encode(Described(code, fields)) + payload
        self._socket.sendall(struct.pack(">IBBH", len(body) + 8, 2, kind, channel) + body)

    def _expect(self, code: int) -> list[Any]:
        """The next performative of a kind. Messages that come meanwhile are kept; an end is an error."""
        self._socket.settimeout(5)
        while True:
            received, payload = self._receive()
            self._note(received, payload)
            if received.code == code:
                return [*received.value, *[None] * 16]

    def _note(self, received: Described, payload: bytes) -> None:
        if received.code == TRANSFER:
            self.heard.append(payload)
            self._answers.append(payload)
        if received.code in (DETACH, END, CLOSE):
            raise Ended(str([part for part in received.value if isinstance(part, Described)]))

    def _receive(self) -> tuple[Described, bytes]:
        while True:
            size, offset, _, _ = struct.unpack(">IBBH", self._exactly(8))
            body = self._exactly(size - 8)[offset * 4 - 8 :]
            if body:
                received, at = decode(body)
                return received, body[at:]

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = self._socket.recv(size - len(found))
            if not more:
                raise Ended("the broker closed the connection")
            found += more
        return found


def _sections(message: bytes) -> dict[int, Any]:
    found: dict[int, Any] = {}
    at = 0
    while at < len(message):
        section, at = decode(message, at)
        found[section.code] = [*section.value, *[None] * 13] if section.code == _PROPERTIES else section.value
    return found
