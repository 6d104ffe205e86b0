"""A node's own read-only endpoint: questions over HTTPS with mutual TLS, answered without a broker by the same signed, sealed messages.

It is for the time when no broker can be reached: it changes nothing, makes nothing, and asks nobody. Every answer says up to which moment this node
has the whole log. Nobody gets in without a certificate of the network's roots, and a question counts only over a connection of the key that signed it;
the rest (lists, policy, rates, revoked keys) is as over the broker, by the same code. Whoever is slow or sends too much is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache, partial
from typing import Any

from aiohttp import web
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from tdn.errors import BrokerUnavailable, TdnError, TrustError
from tdn.machine import cannot_listen
from tdn.node.answering import MAX_QUESTION_BYTES, Answering
from tdn.node.limits import EndpointSettings
from tdn.node.observed import Observed
from tdn.node.questions import Answer
from tdn.observe import trail
from tdn.protocol import framing
from tdn.protocol.names import Name, Role
from tdn.protocol.rates import Rate
from tdn.trust import envelope
from tdn.trust.certificates import name_of
from tdn.trust.credentials import Credentials
from tdn.trust.envelope import Envelope

logger = logging.getLogger(__name__)

#: How long a client may take for the TLS handshake; until its request has begun, counted from the first packet; for the body; and to
#: read the answer. A slow one costs a connection for so long, and no more.
_HANDSHAKE_SECONDS = 5.0
_REQUEST_SECONDS = 10.0
_BODY_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
#: Connections at once, and questions at once of one certificate.
_MOST_CONNECTIONS = 512
_AT_ONCE = 32


def cannot_serve(credentials: Credentials, host: str) -> str | None:
    """Why a certificate is no good for a server at this host; None when it is."""
    leaf = x509.load_der_x509_certificate(credentials.identity.chain[0])
    try:
        usages = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return "its certificate names no host"
    if ExtendedKeyUsageOID.SERVER_AUTH not in usages:
        return "its certificate is not for servers (no serverAuth in its extended key usage)"
    hosts = {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}
    return (
        None
        if host in hosts
        else f"its certificate does not name the host {host} (it names {', '.join(sorted(hosts)) or 'none'})"
    )


class Endpoint:
    """`routes` are others that a node offers at the same place; `peer_name` says who asks there."""

    def __init__(
        self,
        settings: EndpointSettings,
        answering: Answering,
        credentials: Credentials,
        clock: Callable[[], datetime],
        *,
        counts: Counter[str],
        strangers: Rate,
        questions_per_second: float,
        questions_burst: int,
        observed: Observed,
        routes: Sequence[web.RouteDef] = (),
    ) -> None:
        #: Counts and tells what became of each question.
        self._observed = observed
        self._settings = settings
        self._answering = answering
        self._credentials = credentials
        self._clock = clock
        self._counts = counts
        #: Errors to those who cannot be named, all of them together.
        self._strangers = strangers
        #: Questions of one key, of any kind.
        self._questions = Rate(burst=questions_burst, per_second=questions_per_second, clock=time.monotonic)
        self._at_work: Counter[str] = Counter()
        #: Connections that have not sent the beginning of a request yet.
        self._quiet: set[Any] = set()
        self._routes = [web.post("/ask", self._ask), *routes]
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        app = web.Application(client_max_size=MAX_QUESTION_BYTES, middlewares=[self._begun])
        app.add_routes(self._routes)
        runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=3.0, lingering_time=1.0, auto_decompress=False
        )
        await runner.setup()
        server = runner.server
        if server is None:
            raise RuntimeError("the endpoint was not set up")
        self._runner = runner
        settings = self._settings
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: self._accept(server),
                settings.host,
                settings.port,
                ssl=self._tls(),
                ssl_handshake_timeout=_HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=2.0,
            )
        except OSError as error:
            await self.close()
            raise cannot_listen(error, settings.host, settings.port, "[endpoint] in node.toml") from error
        public = settings.public
        logger.info("read-only endpoint at %s:%d, known as %s:%d", settings.host, settings.port, public.host, public.port)

    async def close(self) -> None:
        """Take nothing new, finish what is in work."""
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def _tls(self) -> ssl.SSLContext:
        folder = self._credentials.folder
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "trust.pem"))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(str(folder / "cert.pem"), str(folder / "key.pem"))
        return context

    # --- connections ---

    def _accept(self, server: web.Server) -> asyncio.BaseProtocol:
        """A connection that must begin a request soon; or, when there are too many, one that ends at once."""
        if len(server.connections) >= _MOST_CONNECTIONS:
            return _Closed()
        protocol = server()
        self._quiet.add(protocol)
        asyncio.get_running_loop().call_later(_REQUEST_SECONDS, self._end_if_quiet, protocol)
        return protocol

    def _end_if_quiet(self, protocol: Any) -> None:
        if protocol in self._quiet:
            self._quiet.discard(protocol)
            protocol.force_close()

    @web.middleware
    async def _begun(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self._quiet.discard(request.protocol)
        response: web.StreamResponse = await handler(request)
        return response

    # --- questions ---

    async def _ask(self, request: web.Request) -> web.StreamResponse:
        name = peer_name(request)
        if name is None or name.role not in (Role.ENTITY, Role.OPERATOR):
            return self._no(403)
        key = str(name)
        if self._at_work[key] >= _AT_ONCE or not self._questions.take(key):
            return self._no(429)
        self._at_work[key] += 1
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                message = await request.read()
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await self._observed.follow("endpoint", partial(self._answer, request, name, message))
        except TimeoutError:
            request.protocol.force_close()
            return self._no(408)
        except web.HTTPRequestEntityTooLarge:
            return self._no(413)
        finally:
            self._at_work[key] -= 1
            if not self._at_work[key]:
                del self._at_work[key]

    async def _answer(self, request: web.Request, name: Name, message: bytes) -> web.StreamResponse:
        now = self._clock()
        answering = self._answering
        try:
            question, sealed = await answering.read(message)
            if question.signer.name != name:
                # Whoever else has the bytes, as one who saw them go by at a node that was taken over, gets nothing for them.
                raise TrustError("the question was signed with another key than that of the connection")
            as_of = answering.as_of()
            if question.kind in envelope.READS and as_of is not None:
                answering.admit(question, sealed=sealed, now=now)
        except TdnError as error:
            return self._turn_away(error)
        self._counts[f"endpoint {question.kind}"] += 1
        try:
            if question.kind not in envelope.READS:
                raise BrokerUnavailable(
                    f"{question.kind} needs the broker, and this is a node's read-only endpoint: nothing was changed; try again when a broker is back"
                )
            if as_of is None:
                raise BrokerUnavailable("this node has not read the log yet")
            await answering.catch_up_with(question)
            answers = await answering.answers(question, now)
        except TdnError as error:
            answers = [Answer("error", error.as_object())]
        return await self._send(request, question, answers, as_of)

    async def _send(
        self, request: web.Request, question: Envelope, answers: list[Answer], as_of: datetime | None
    ) -> web.StreamResponse:
        """Page by page, with others in between: signing and sealing a long answer takes a while."""
        response = web.StreamResponse(headers={"Content-Type": framing.CONTENT_TYPE})
        response.force_close()
        # A client that went away is nobody's fault, and needs nothing more.
        with contextlib.suppress(ConnectionError):
            await response.prepare(request)
            for answer in answers:
                sealed = self._answering.reply(question, answer, with_chain=answer.kind == "error", as_of=as_of)
                await response.write(framing.frame(sealed))
                await asyncio.sleep(0)
            await response.write_eof()
        return response

    def _turn_away(self, error: TdnError) -> web.Response:
        """What nobody can be named for, is for somebody else, or was here before. The sender holds the connection, so it is told, in the open."""
        self._counts["turned away"] += 1
        trail.ended(trail.TURNED_AWAY, error.word)
        logger.info("turned away at the endpoint: %r", str(error))
        if not self._strangers.take(""):
            return self._no(429)
        raw = self._answering.write("error", error.as_object(), audience="tdn:sender", with_chain=True)
        response = web.Response(status=403, body=framing.frame(raw), content_type=framing.CONTENT_TYPE)
        response.force_close()
        return response

    def _no(self, status: int) -> web.Response:
        response = web.Response(status=status)
        response.force_close()
        return response


def peer_name(request: web.Request) -> Name | None:
    """Whose certificate the connection was made with: TLS has followed it to the roots, and seen that its key is there."""
    transport = request.transport
    tls = transport.get_extra_info("ssl_object") if transport is not None else None
    certificate = tls.getpeercert(binary_form=True) if tls is not None else None
    return _name_in(certificate) if certificate else None


@lru_cache(maxsize=1024)
def _name_in(certificate: bytes) -> Name | None:
    """The name in a certificate, bound to its own key."""
    try:
        return name_of(x509.load_der_x509_certificate(certificate))
    except (TrustError, ValueError):
        return None


class _Closed(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
