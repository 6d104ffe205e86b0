"""The broker's questions, answered over HTTPS from what the guard knows at that moment; every denial, and what entities were allowed, is noted.

Only the broker may ask: the TLS client certificate must be a broker's. What the guard is not sure of, and whatever fails here, is a no. How it comes to know,
and what follows when a right ends, are others' business (`service`, `enforcing`).
"""

from __future__ import annotations

import hmac
import logging
import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from aiohttp import web

from tdn import machine
from tdn.errors import TdnError
from tdn.guard import decisions
from tdn.guard.audit import Audit, Entry
from tdn.guard.decisions import Decision, Knowledge
from tdn.guard.memory import Remembered
from tdn.guard.settings import GuardSettings
from tdn.protocol import names
from tdn.protocol.names import MANAGEMENT_USER, Name, Role
from tdn.protocol.times import parse_time
from tdn.rules import principals
from tdn.rules.apply import read_genesis
from tdn.rules.state import State
from tdn.trust import envelope
from tdn.trust.certificates import decode_chain, roots_from_ders
from tdn.trust.credentials import Credentials

logger = logging.getLogger(__name__)


class Answering:
    def __init__(
        self,
        credentials: Credentials,
        settings: GuardSettings,
        state: State,
        memory: Remembered,
        audit: Audit,
        *,
        sure: Callable[[], bool],
        decided: Callable[[str, bool, float], None],
        clock: Callable[[], datetime],
    ) -> None:
        self._credentials = credentials
        self._settings = settings
        self._state = state
        self._memory = memory
        self._audit = audit
        #: Whether the view is known to be up to date.
        self._sure = sure
        #: Told of each question: which, whether it was allowed, and the seconds that it took.
        self._decided = decided
        self._clock = clock
        self._genesis = read_genesis(settings.genesis)
        self._enrolled: dict[str, Name] = {}
        self._enrolments_read = -1
        self.counts: Counter[str] = Counter()
        #: Logins that were allowed to ask or answer each other while no node was there.
        self.peers: set[str] = set()

    async def listen(self) -> web.AppRunner:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self._credentials.folder / "trust.pem"))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(str(self._credentials.folder / "cert.pem"), str(self._credentials.folder / "key.pem"))
        app = web.Application(client_max_size=65_536)
        app.router.add_post("/auth/{question}", self._answer)
        runner = web.AppRunner(app, access_log=None, keepalive_timeout=300)
        await runner.setup()
        host, port = self._settings.host, self._settings.port
        try:
            await web.TCPSite(runner, host, port, ssl_context=context).start()
        except OSError as error:
            await runner.cleanup()
            raise machine.cannot_listen(error, host, port, "guard_listen in tdn.toml, or listen in guard.toml") from error
        return runner

    async def _answer(self, request: web.Request) -> web.Response:
        question = request.match_info["question"]
        peer = _peer(request)
        if peer is None or peer.role is not Role.BROKER:
            # Whatever it says, only its own certificate's name is proven.
            self._note("guard", {"username": str(peer or "")}, Decision(False, "only a broker may ask"))
            self.counts["denied"] += 1
            self._decided("guard", False, 0.0)
            return web.Response(text="deny")
        fields = {key: str(value) for key, value in (await request.post()).items()}
        began = time.perf_counter()
        try:
            decision = self._decide(question, fields)
        except Exception:
            # Fail closed: whatever went wrong here, nobody gets in by it.
            logger.exception("a question of the broker could not be answered")
            decision = Decision(False, "the guard failed")
        self.counts["allowed" if decision.allowed else "denied"] += 1
        self._decided(question, decision.allowed, time.perf_counter() - began)
        self._note(question, fields, decision)
        if not decision.allowed:
            logger.info(
                "denied %s %s: %s",
                question,
                {key: value[:120] for key, value in fields.items() if key != "password"},
                decision.because,
            )
            return web.Response(text="deny")
        return web.Response(
            text="allow administrator" if fields.get("username") == MANAGEMENT_USER and question == "user" else "allow"
        )

    def _decide(self, question: str, fields: Mapping[str, str]) -> Decision:
        login = fields.get("username", "")
        if login == MANAGEMENT_USER:
            return self._decide_management(question, fields)
        if "password" in fields:
            return Decision(False, "logins are by certificate; a password means another way in")
        # Looked up only where it matters: publishers ask about other exchanges thousands of times a second.
        know = self.know(nodes_silent=fields.get("name") in names.BETWEEN_ENTITIES and self.nodes_silent())
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
                self.peers.add(login)
            is_exchange = fields.get("resource") == "exchange"
            if decision.allowed and is_exchange and decision.topic is not None and decision.basis is not None:
                # Before the broker hears of it: from then on an open channel holds the right.
                self._memory.remember(login, decision.topic, decision.basis.grants)
            return decision
        if question == "topic":
            return decisions.may_route(
                know, login, vhost, fields.get("name", ""), fields.get("permission", ""), fields.get("routing_key", "")
            )
        return Decision(False, "an unknown question")

    def know(self, *, nodes_silent: bool = False) -> Knowledge:
        reader = self._state
        now = self._clock()
        if reader.get("network", "network") is not None:
            now = max(now, principals.log_time(reader))
        return Knowledge(reader, self._settings.vhost, self._enrolments(), self._sure(), now, nodes_silent)

    def nodes_silent(self) -> bool:
        """Whether no node has ticked for so long that entities may ask each other. Unsure means no."""
        ticks = [parse_time(tick["at"]) for _, tick in self._state.all("tick")]
        silence = timedelta(seconds=self._settings.silence_seconds)
        return self._sure() and all(self._clock() - tick > silence for tick in ticks)

    def _decide_management(self, question: str, fields: Mapping[str, str]) -> Decision:
        """The operator's login at the management API: by password, and with no right to any message."""
        if question == "vhost":
            return Decision(True, "the management API looks at the vhost")
        if question == "resource":
            return decisions.may_manage(fields.get("resource", ""), fields.get("name", ""), fields.get("permission", ""))
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

    def _note(self, question: str, fields: Mapping[str, str], decision: Decision) -> None:
        """Every denial, and what entities were allowed. What nodes and guards do all the time would hide it."""
        login = fields.get("username", "")
        name = Name.parse(login)
        if decision.allowed and (name is None or name.role is not Role.ENTITY):
            return
        action, resource = _described(question, fields)
        grant = None if decision.basis is None else ",".join(decision.basis.grants) or "owner"
        entity = name.id if name is not None and name.role is Role.ENTITY else None
        topic = decision.topic
        self._audit.note(Entry(self._clock(), login, entity, action, resource, topic, decision.allowed, decision.because, grant))


def _described(question: str, fields: Mapping[str, str]) -> tuple[str, str]:
    """What somebody wanted, in an operator's words."""
    if question == "guard":
        return "ask the guard", "the guard's port"
    if question in ("user", "vhost"):
        return ("login", "broker") if question == "user" else ("enter", f"vhost {fields.get('vhost', '')}")
    kind, name, permission = fields.get("resource", ""), fields.get("name", ""), fields.get("permission", "")
    if question == "topic":
        return "route", f"{name} {fields.get('routing_key', '')}"
    if kind == "exchange" and names.is_topic(name) and permission == "write":
        return "publish", f"exchange {name}"
    if kind == "queue" and names.read_feed_queue(name) is not None and permission == "read":
        return "subscribe", f"queue {name}"
    return permission, f"{kind} {name}"


def _peer(request: web.Request) -> Name | None:
    """Who holds the certificate at the other end."""
    certificate = request.get_extra_info("peercert") or {}
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    return Name.parse(uris[0]) if len(uris) == 1 else None
