"""A guard's life: follow the log, answer RabbitMQ over HTTPS, cut off what the log has ended.

Only the broker may ask: the TLS client certificate must be a broker's. The management API of the broker, which knows no client
certificates as logins, is used with a password that this guard alone accepts, for this one purpose.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import ssl
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

from aiohttp import BasicAuth, ClientError, ClientSession, ClientTimeout, TCPConnector, web

from tdn.bus.connection import CUT_OFF, Broker, Connection, tls_context
from tdn.errors import LogDiverged, TdnError, TrustError, UnknownRules
from tdn.guard import decisions
from tdn.guard.decisions import Decision, Knowledge
from tdn.protocol import names
from tdn.protocol.names import Name, Role
from tdn.protocol.times import parse_time
from tdn.replica.replica import Applied, Replica
from tdn.rules.apply import network_id, read_genesis
from tdn.store.topics import NOTHING
from tdn.trust import envelope
from tdn.trust.certificates import decode_chain, roots_from_ders
from tdn.trust.credentials import Credentials

logger = logging.getLogger(__name__)

#: Login of the management API. Not a principal's name, so it can never be a certificate's.
MANAGEMENT_USER = "tdn-management"


#: What those are told who asked each other while no node was there.
NODES_ARE_BACK = "a node is there again"

#: Nobody waits for a guard to apply one record; a tenth of a second is how late it may learn of a revocation by its own choice.
_LINGER_SECONDS = 0.1
#: How many logins are cut off at once, how often each is tried, and how long after the first look the second is taken.
_CUTS_AT_ONCE = 8
_CUT_TRIES = 20
_SECOND_LOOK_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class GuardSettings:
    brokers: Sequence[Broker]
    vhost: str
    genesis: bytes
    store: Path
    enrolments: Path
    host: str
    port: int
    #: `https://127.0.0.1:15671`, and the password that only this guard and the operator know.
    management_url: str
    management_password: str
    #: No tick of any node for so long means that none is there.
    silence_seconds: float = 20.0


class Guard:
    def __init__(
        self, credentials: Credentials, settings: GuardSettings, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        if credentials.identity.name.role is not Role.GUARD:
            raise TrustError(f"{credentials.identity.name.principal} is not a guard")
        self.id = credentials.identity.name.id
        self._credentials = credentials
        self._settings = settings
        self._clock = clock
        self.replica = Replica(
            settings.store, network_id(settings.genesis), self._on_applied, stores=NOTHING, linger_seconds=_LINGER_SECONDS
        )
        self._genesis = read_genesis(settings.genesis)
        self.sure = False
        self.counts: Counter[str] = Counter()
        self._to_cut: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        #: Logins that were allowed to ask or answer each other while no node was there.
        self._peers: set[str] = set()
        self._unfinished = 0
        self._enrolled: dict[str, Name] = {}
        self._enrolments_read = -1

    async def run(self, stop: asyncio.Event) -> None:
        runner = await self._listen()
        tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._cut()), asyncio.create_task(stop.wait())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await runner.cleanup()
            self.replica.close()

    async def _follow(self) -> None:
        """Keep the view up to date. While it is not, entities are refused: what the guard cannot know, it does not allow."""
        while True:
            try:
                connection = await Connection.open(self._settings.brokers, self._credentials, vhost=self._settings.vhost)
                following = asyncio.create_task(self.replica.follow(connection))
                caught_up = asyncio.create_task(self.replica.caught_up.wait())
                try:
                    await asyncio.wait([following, caught_up], return_when=asyncio.FIRST_COMPLETED)
                    self.sure = self.replica.caught_up.is_set()
                    await following
                finally:
                    self.sure = False
                    for task in (following, caught_up):
                        task.cancel()
                    await asyncio.gather(following, caught_up, return_exceptions=True)
                    await connection.close()
            except (LogDiverged, UnknownRules):
                raise
            except TdnError as error:
                logger.info("guard %s waits for the log: %s", self.id, error)
            await asyncio.sleep(0.3)

    # --- answering the broker ---

    async def _listen(self) -> web.AppRunner:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self._credentials.folder / "trust.pem"))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(str(self._credentials.folder / "cert.pem"), str(self._credentials.folder / "key.pem"))
        app = web.Application(client_max_size=65_536)
        app.router.add_post("/auth/{question}", self._answer)
        runner = web.AppRunner(app, access_log=None, keepalive_timeout=300)
        await runner.setup()
        await web.TCPSite(runner, self._settings.host, self._settings.port, ssl_context=context).start()
        return runner

    async def _answer(self, request: web.Request) -> web.Response:
        question = request.match_info["question"]
        fields = {key: str(value) for key, value in (await request.post()).items()}
        try:
            decision = self._decide(request, question, fields)
        except Exception:
            # Fail closed: whatever went wrong here, nobody gets in by it.
            logger.exception("a question of the broker could not be answered")
            decision = Decision(False, "the guard failed")
        self.counts["allowed" if decision.allowed else "denied"] += 1
        if not decision.allowed:
            logger.info(
                "denied %s %s: %s",
                question,
                {key: value[:120] for key, value in fields.items() if key != "password"},
                decision.because,
            )
        if not decision.allowed:
            return web.Response(text="deny")
        return web.Response(
            text="allow administrator" if fields.get("username") == MANAGEMENT_USER and question == "user" else "allow"
        )

    def _decide(self, request: web.Request, question: str, fields: Mapping[str, str]) -> Decision:
        if not _is_broker(request):
            return Decision(False, "only a broker may ask")
        login = fields.get("username", "")
        if login == MANAGEMENT_USER:
            return self._decide_management(question, fields)
        if "password" in fields:
            return Decision(False, "logins are by certificate; a password means another way in")
        # Looked up only where it matters: publishers ask about other exchanges thousands of times a second.
        silent = fields.get("name") in names.BETWEEN_ENTITIES and self._nodes_silent()
        know = Knowledge(self.replica.reader, self._settings.vhost, self._enrolments(), self.sure, silent)
        vhost = fields.get("vhost", "")
        if question == "user":
            return decisions.may_log_in(know, login)
        if question == "vhost":
            return decisions.may_enter(know, login, vhost)
        if question == "resource":
            decision = decisions.may_use(
                know, login, vhost, fields.get("resource", ""), fields.get("name", ""), fields.get("permission", "")
            )
            who = Name.parse(login)
            if decision.allowed and who is not None and who.role is Role.ENTITY and fields.get("name") in names.BETWEEN_ENTITIES:
                self._peers.add(login)
            return decision
        if question == "topic":
            return decisions.may_route(
                know, login, vhost, fields.get("name", ""), fields.get("permission", ""), fields.get("routing_key", "")
            )
        return Decision(False, "an unknown question")

    def _nodes_silent(self) -> bool:
        """Whether no node has ticked for so long that entities may ask each other. Unsure means no."""
        ticks = [parse_time(tick["at"]) for _, tick in self.replica.reader.all("tick")]
        silence = timedelta(seconds=self._settings.silence_seconds)
        return self.sure and all(self._clock() - tick > silence for tick in ticks)

    def _decide_management(self, question: str, fields: Mapping[str, str]) -> Decision:
        """The operator's login at the management API: by password, and with no right to any message."""
        if question == "vhost":
            return Decision(True, "the management API looks at the vhost")
        given = fields.get("password", "").encode()
        right = question == "user" and hmac.compare_digest(given, self._settings.management_password.encode())
        return Decision(right, "the management password" if right else "not the management password")

    def _enrolments(self) -> Mapping[str, Name]:
        """Logins by the operator's signed statements at hand, and the operator's own; read again when the folder has changed."""
        folder = self._settings.enrolments
        stamp = folder.stat().st_mtime_ns if folder.is_dir() else 0
        if stamp != self._enrolments_read:
            self._enrolments_read = stamp
            operator = self._genesis.signer
            roots = roots_from_ders(decode_chain(self._genesis.body["roots"]))
            self._enrolled = {str(operator.name): operator.name}
            for path in sorted(folder.glob("*.jws")):
                try:
                    statement = envelope.authenticate(path.read_bytes().strip(), lambda header: operator)
                    identity = roots.identify(decode_chain(statement.body["chain"]), at=self._clock())
                except (TdnError, OSError, KeyError) as error:
                    logger.warning("enrolment %s is not usable: %s", path.name, error)
                    continue
                if statement.kind == "enrol":
                    self._enrolled[str(identity.name)] = identity.name
        return self._enrolled

    # --- cutting off ---

    def _on_applied(self, applied: Applied) -> None:
        for _, outcome in applied:
            for login in outcome.cut:
                self._end(login, CUT_OFF)
        if self._peers and not self._nodes_silent():
            # A node is back. The broker remembers what it allowed on an open channel, so those who asked each other connect anew.
            for login in self._peers:
                self._end(login, NODES_ARE_BACK)
            self._peers.clear()

    def _end(self, login: str, reason: str) -> None:
        self._unfinished += 1
        self._to_cut.put_nowait((login, reason))

    @property
    def cutting(self) -> int:
        """Logins that the log has ended and whose connections are not known to be closed yet."""
        return self._unfinished

    async def _cut(self) -> None:
        """End the open connections of every login that the log has ended, several at a time."""
        async with (
            ClientSession(
                connector=TCPConnector(ssl=tls_context(self._credentials), limit=_CUTS_AT_ONCE),
                auth=BasicAuth(MANAGEMENT_USER, self._settings.management_password),
                timeout=ClientTimeout(total=10),
            ) as session,
            asyncio.TaskGroup() as cuts,
        ):
            while True:
                cuts.create_task(self._cut_one(session, *await self._to_cut.get()))

    async def _cut_one(self, session: ClientSession, login: str, reason: str) -> None:
        """Close, and look once more: a login that was under way at the first look shows up by the second."""
        url = f"{self._settings.management_url}/api/connections/username/{quote(login, safe='')}"
        looks = 0
        try:
            for _ in range(_CUT_TRIES):
                try:
                    async with session.delete(url, headers={"X-Reason": reason}) as response:
                        response.raise_for_status()
                    looks += 1
                except (ClientError, TimeoutError, OSError) as error:
                    # A broker that does not answer is starting or stopping, and then holds no old connection either.
                    logger.warning("could not cut off %s: %s", login, error)
                if looks == 2:
                    return
                await asyncio.sleep(_SECOND_LOOK_SECONDS)
            logger.error("gave up cutting off %s", login)
        finally:
            self._unfinished -= 1


def _is_broker(request: web.Request) -> bool:
    certificate = request.get_extra_info("peercert") or {}
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    name = Name.parse(uris[0]) if len(uris) == 1 else None
    return name is not None and name.role is Role.BROKER
