"""`EntityClient`: what an application calls. Locating, creating, advertising, discovering, showing, renewing, withdrawing; trees are in `trees`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from entity_client import peers
from entity_client.discovery import Discovery, Wanted
from entity_client.endpoints import Age
from entity_client.grants import Grants, Judgement, Revocation, read_revocation
from entity_client.messaging import Published, Publisher, Subscription
from entity_client.objects import Decided, LocatedNode, Topic, read_decided, read_topic
from entity_client.patience import Patience
from entity_client.session import Session
from entity_client.trees import Collections, Hierarchy
from tdn.bus.address import NodeAddress, load_connection
from tdn.errors import Absent, BrokerUnavailable, NoNodeAnswered, Refused, TdnError, TrustError, UsageError
from tdn.protocol import jsontext, names, synopsis
from tdn.protocol.access import COLLECTION_LISTS, NO_LISTS, Access, Asker, Lists, access
from tdn.protocol.names import Role, check_id, check_uuid
from tdn.protocol.trees import MAX_FIRST_MEMBERS, Gathering, Hosting
from tdn.queries.times import ANY_TIME, Times
from tdn.trust import credentials as folders
from tdn.trust import envelope, openings, sealed, statements
from tdn.trust.certificates import Identity, decode_chain, encode_chain
from tdn.trust.openings import Opening
from tdn.trust.statements import by_roots

#: After the first node has answered a broadcast, how long the others that are about are waited for. Only one that died within the last
#: seconds, or is very slow, makes anybody wait so long.
GATHER_SECONDS = 1.5
#: For so long after a locate the same nodes are asked without another: it is half of what a quick discovery takes.
_ABOUT_SECONDS = 5.0
#: How long one node may take before another is asked.
_ONE_NODE_SECONDS = 3.0
#: Between two tries when the broker went away.
_AGAIN_SECONDS = 0.3

#: What an owner can countersign, and for how long.
COUNTERSIGNED = ("discover", "register", "include")
LONGEST_COUNTERSIGNATURE = timedelta(days=30)

Descriptor = Mapping[str, Any]
#: Chooses among the nodes that answered, in the order of their answers (T12).
Choice = Callable[[list[LocatedNode]], LocatedNode]


class EntityClient:
    """One entity, connected. Use `connect`, or `async with`."""

    def __init__(self, session: Session, *, timeout: float) -> None:
        self._session = session
        self.timeout = timeout
        self._identify = by_roots(session.credentials.roots)
        #: The latest record of the log that we hold a receipt for, or were told of. Nodes answer us from a view that has it.
        self.seen = 0
        self._chosen: Identity | None = None
        self._recalled: str | None = None
        #: Sealed descriptors that our key was tried on, by their advertisements' digests: what was inside, or that it is not for us.
        self.sealed_before: dict[str, Mapping[str, Any] | None] = {}
        #: Nodes that answered the last locate that was heard to its end, and when that was.
        self._about: list[LocatedNode] = []
        self._about_at = float("-inf")
        self._recall()

    @classmethod
    async def connect(cls, folder: str | Path, *, timeout: float = 10.0) -> EntityClient:
        """Ready a client from a folder of credentials. The network is reached when it is first needed."""
        path = Path(folder)
        return cls(Session(folders.load(path), load_connection(path)), timeout=timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        self._write_down()
        await self._session.close()

    @property
    def identity(self) -> Identity:
        return self._session.credentials.identity

    @property
    def asker(self) -> Asker:
        """Ourselves, as lists and policies name us."""
        return self.identity.asker

    # --- nodes ---

    async def locate(self, *, expect: Iterable[str] = (), gather: float = GATHER_SECONDS) -> AsyncGenerator[LocatedNode, None]:
        """The nodes that answer, as they answer (T12). Ends when all that are about, and all of `expect`, have answered, or after a while."""
        await self._session.ready(self.timeout, to_read=True)
        started = time.perf_counter()
        patience = Patience(self.timeout)
        answers = self._session.ask("locate", {}, None, key=names.nodes_key(), patience=patience)
        seen: set[str] = set()
        expected: set[str] = set(expect)
        async with contextlib.aclosing(answers):
            async for reply in answers:
                if reply.kind != "located" or reply.signer.name.id in seen or reply.body["network"] != self._session.network:
                    continue
                elapsed = time.perf_counter() - started
                if not seen:
                    patience.shorten(max(gather, elapsed * 2))
                seen.add(reply.signer.name.id)
                # The answers name the nodes that are about; when all of them have answered there is nothing to wait for.
                expected |= set(reply.body["peers"])
                endpoint = self._learn(reply)
                yield LocatedNode(
                    reply.signer.name.id,
                    reply.signer.institution,
                    elapsed * 1000,
                    dict(reply.body["policy"]),
                    reply.signer,
                    endpoint,
                    reply.as_of,
                )
                # Without the broker the log says no longer who is about: every endpoint that is known is heard.
                if expected <= seen and reply.as_of is None:
                    break
        if not seen:
            raise NoNodeAnswered("no node answered; is one running? (`tdn status`)")

    def _learn(self, located: envelope.Envelope) -> NodeAddress | None:
        """Where a node says that it answers by itself: remembered for the time without a broker."""
        told = located.body.get("endpoint")
        if told is None:
            return None
        address = NodeAddress(located.signer.name.id, str(told["host"]), int(told["port"]))
        self._session.learn(address)
        return address

    @property
    def ages(self) -> Mapping[str, Age]:
        """The nodes that have answered us without the broker, each with how old its latest answer may be."""
        return self._session.ages

    def nodes_about(self) -> list[LocatedNode]:
        """The nodes that answered a locate a moment ago; none when that is too long ago to ask them without another."""
        return self._about if time.monotonic() - self._about_at < _ABOUT_SECONDS else []

    def remember_nodes(self, located: list[LocatedNode]) -> None:
        """Whoever answered a locate that was heard to its end."""
        self._about, self._about_at = located, time.monotonic()

    def forget_nodes(self) -> None:
        """One that was about did not answer: the next discovery locates anew."""
        self._about_at = float("-inf")

    async def choose(self, choice: Choice | None = None) -> LocatedNode:
        """Locate and choose a node to work with: the first to answer, unless `choice` knows better. Remembered."""
        if choice is None:
            async with contextlib.aclosing(self.locate()) as located:
                serving = (node async for node in located if node.serves(self.asker))
                chosen = await anext(serving, None)
            if chosen is None:
                raise Refused("every node that is there answers others only")
        else:
            chosen = choice([node async for node in self.locate()])
        self._chosen = chosen.identity
        if self._recalled is None:
            self._write_down()
        return chosen

    # --- topics ---

    async def create(
        self,
        descriptor: Descriptor,
        *,
        synopsis_type: str = "string",
        placeholder: str | None = None,
        lifetime: timedelta = timedelta(days=1),
        node: str | None = None,
        lists: Lists = NO_LISTS,
        hierarchy: Lists = NO_LISTS,
        register: Lists = NO_LISTS,
        parent: str | None = None,
        hosting: Hosting | None = None,
        countersigned: str | None = None,
        sealed_for: Iterable[str] | None = None,
        advertise: bool = True,
    ) -> Topic:
        """A new topic: minted and signed by a node (T1 to T6), verified here, then advertised (T7).

        `lists` say who may discover it (T18), `hierarchy` who may see its place, `register` who may register children, if `hosting` takes any
        (T23). A `parent` makes it a child (T24): its lifetime may be cut to the parent's. With `sealed_for`, nobody but ourselves and these
        entities can read what it is about (T9).
        """
        if sealed_for is not None:
            descriptor = await self._seal(descriptor, sealed_for)
        chosen = access(self.identity.name.id, discover=lists, hierarchy=hierarchy, register=register)
        body = self._creation(descriptor, synopsis_type, placeholder, lifetime, chosen)
        if hosting is not None:
            body["hosting"] = hosting.as_object()
        if parent is None:
            if countersigned is not None:
                raise UsageError("a countersignature is for registering below a parent; name the parent")
            return await self._advertised(await self._mint(body, node), advertise=advertise)
        body["parent"] = check_uuid(parent)
        if countersigned is not None:
            body["countersigned"] = countersigned
        return await self._advertised(await self._register(body, node), advertise=advertise)

    async def create_collection(
        self,
        descriptor: Descriptor,
        gathering: Gathering = Gathering(),  # noqa: B008  frozen
        *,
        members: Iterable[str] = (),
        synopsis_type: str = "string",
        placeholder: str | None = None,
        lifetime: timedelta = timedelta(days=1),
        node: str | None = None,
        lists: Mapping[str, Lists] | None = None,
        countersigned: Iterable[str] = (),
        advertise: bool = True,
    ) -> Topic:
        """A new collection (T31, T32), minted, signed and advertised like a topic. `lists` by what they are about: discover, add, owner,
        watch, include. Members that are not our own need their owners' countersignatures."""
        if unknown := sorted((lists or {}).keys() - set(COLLECTION_LISTS)):
            raise UsageError(f"a collection has no lists about {unknown[0]}; there are {', '.join(COLLECTION_LISTS)}")
        chosen = access(self.identity.name.id, **dict(lists or {}))
        body = self._creation(descriptor, synopsis_type, placeholder, lifetime, chosen)
        body["gathering"] = gathering.as_object()
        if first := [check_uuid(member) for member in dict.fromkeys(members)]:
            if len(first) > MAX_FIRST_MEMBERS:
                raise UsageError(
                    f"{len(first)} first members are too many; at most {MAX_FIRST_MEMBERS}, the others are added later"
                )
            body["members"] = first
        return await self._advertised(await self._mint(body, node), advertise=advertise, countersigned=countersigned)

    def _creation(
        self, descriptor: Descriptor, synopsis_type: str, placeholder: str | None, lifetime: timedelta, chosen: Access
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "creator": self.identity.name.id,
            "institution": self.identity.institution,
            "lifetime_seconds": int(lifetime.total_seconds()),
            "descriptor": dict(descriptor),
            "synopsis": {"type": synopsis_type, "placeholder": placeholder or synopsis.DEFAULTS.get(synopsis_type, "")},
        }
        return {**body, "lists": chosen.as_object()} if chosen.restrict else body

    async def _advertised(self, topic: Topic, *, advertise: bool, countersigned: Iterable[str] = ()) -> Topic:
        if not advertise:
            self._keep(topic)
            return topic
        try:
            decided = await self.advertise(topic, countersigned=countersigned)
        except TdnError as error:
            # Nothing is lost: the advertisement can still be advertised, within a day.
            self._keep(topic)
            error.detail["advertisement"] = topic.token
            raise
        return replace(topic, receipt=decided.receipt)

    async def advertise(
        self, topic: Topic | str, *, opening: Opening | None = None, countersigned: Iterable[str] = ()
    ) -> Decided:
        """Make a created topic, or its signed advertisement, known to all. Repeating it is harmless, and gives a receipt again.

        `opening` is what the advertisement hides, as `create` gave it; without it, what was kept when it was created here, or what a
        node tells the owner.
        """
        if isinstance(topic, str):
            # From outside, so not believed before it is verified; a Topic was.
            verified = statements.read_advertisement(topic.strip().encode(), self._identify)
        else:
            verified, opening = topic.advertisement, opening or topic.opening
        opening = opening or await self._opening_of(verified.uuid)
        openings.read(opening, verified.hidden)
        body: dict[str, Any] = {"uuid": verified.uuid, "opening": opening}
        if tokens := list(countersigned):
            body["countersigned"] = tokens
        decided = await self.change("advertise", body, tail=verified.token.encode())
        self._kept_path(verified.uuid).unlink(missing_ok=True)
        return decided

    async def renew(self, uuid: str, lifetime: timedelta) -> Decided:
        """A new lifetime from now on, for a topic of one's own (T39)."""
        return await self.change("renew", {"uuid": check_uuid(uuid), "lifetime_seconds": int(lifetime.total_seconds())})

    async def withdraw(self, uuid: str) -> Decided:
        """The end of a topic of one's own, for ever (T39)."""
        return await self.change("withdraw", {"uuid": check_uuid(uuid)})

    async def show(self, uuid: str) -> Topic:
        """One topic, with its signed present status."""
        reply = await self._ask_chosen("show", {"uuid": check_uuid(uuid), "after": self.seen}, key=names.topics_key)
        topic = self._read_topic(reply)
        if topic.uuid != uuid:
            raise TrustError("the node showed another topic than was asked for")
        return topic

    def discover(
        self,
        query: str | None = None,
        *,
        language: str = "string",
        times: Times = ANY_TIME,
        nodes: Iterable[str] = (),
        limit: int = 100,
        cursor: str | None = None,
    ) -> Discovery:
        """Topics that match, from all nodes or from those named, as they arrive, each once and verified (T13 to T16).

        The language is one of string, regex, sql, xpath and xquery. A query that does not compile is a QueryError at once.
        """
        wanted = Wanted(language, query, times)
        return Discovery(self, self._session, wanted=wanted, nodes=frozenset(nodes), limit=limit, cursor=cursor)

    async def count(
        self, query: str | None = None, *, language: str = "string", times: Times = ANY_TIME, node: str | None = None
    ) -> tuple[str, int]:
        """A node, the one named or the chosen one, and how many topics match there that we may see. Sealed ones only without a query."""
        body = {"limit": 1, "after": self.seen, "count": True, **Wanted(language, query, times).as_body()}
        reply = await self._ask_chosen("discover", body, key=names.topics_key, node_id=node)
        if reply.kind != "discovered" or "total" not in reply.body:
            raise TrustError("the node answered something else than it was asked")
        return reply.signer.name.id, int(reply.body["total"])

    async def lookup(self, principal: str) -> Identity:
        """The current certificate of an entity or a node, followed to our roots."""
        reply = await self._ask_chosen("lookup", {"principal": principal, "after": self.seen}, key=names.topics_key)
        found = self._session.credentials.roots.identify(decode_chain(reply.body["chain"]), at=datetime.now(UTC))
        if found.name.principal != principal:
            raise TrustError("the node gave another principal's certificate")
        return found

    async def peer_queue(self, *, answers: bool) -> str:
        """Have a node make a queue for the time when no node is there (T17): for others' questions, or for answers to our own."""
        reply = await self._ask_chosen("peer", {"answers": answers}, key=names.nodes_key)
        if reply.kind != "peered":
            raise TrustError(f"a {reply.kind} is no answer to what was asked")
        return str(reply.body["session"])

    async def prepare_for_silence(self) -> None:
        """Make sure that we can ask other entities when no node is there. Called after a discovery; takes effect once a day."""
        if self._session.is_away:
            return
        with contextlib.suppress(TdnError):
            await peers.ready_queue(self, self._session, "ask")

    def answering(self) -> peers.Answering:
        """Stay and answer for our own topics while no node is there (T17)."""
        return peers.Answering(self, self._session)

    @property
    def hierarchy(self) -> Hierarchy:
        """Topics below topics: looking at them and following them (T27, T29)."""
        return Hierarchy(self, self._session)

    @property
    def collections(self) -> Collections:
        """Collections: changing them, looking at them and following them (T31 to T36)."""
        return Collections(self, self._session)

    @property
    def grants(self) -> Grants:
        """Who may publish and subscribe: giving, listing, renewing, revoking (T20, T21)."""
        return Grants(self, self._session)

    async def can(self, right: str, uuid: str) -> Judgement:
        """Whether we may `publish`, `subscribe` or `discover`, and why."""
        reply = await self._ask_chosen(
            "may", {"uuid": check_uuid(uuid), "right": right, "after": self.seen}, key=names.topics_key
        )
        if reply.kind != "judged" or (reply.body["uuid"], reply.body["right"]) != (uuid, right):
            raise TrustError("the node answered something else than it was asked")
        body = reply.body
        return Judgement(right, uuid, bool(body["allowed"]), str(body["because"]), tuple(body.get("grants", ())), reply.as_of)

    async def transfer(self, uuid: str, entity: str) -> Decided:
        """Offer a topic of ours to another entity, which has to accept it; to ourselves: take the offer back."""
        return await self.change("transfer", {"uuid": check_uuid(uuid), "to": check_id(entity)})

    async def accept(self, uuid: str, *, keep_grants: bool = False) -> Revocation:
        """Become the owner of a topic that was offered to us. Grants of the owner before lapse, unless they are kept."""
        decided = await self.change("accept", {"uuid": check_uuid(uuid), "keep_grants": keep_grants})
        return read_revocation(decided, self, self._session)

    def publisher(self, uuid: str, *, sign: bool = False, encrypt: bool = False) -> Publisher:
        """For several messages to one topic: `async with client.publisher(uuid) as publisher: await publisher.publish(…)`."""
        return Publisher(self, self._session, uuid, sign=sign, encrypt=encrypt)

    async def publish(
        self, uuid: str, body: bytes | str, *, sign: bool = False, encrypt: bool = False, content_type: str | None = None
    ) -> Published:
        """One message to a topic, confirmed by the broker."""
        async with self.publisher(uuid, sign=sign, encrypt=encrypt) as publisher:
            return await publisher.publish(body, content_type=content_type)

    def subscribe(
        self, uuid: str, *, children: bool = False, depth: int | None = None, signed_only: bool = False
    ) -> Subscription:
        """The messages of a topic, from now on; with `children` of those below it too, to a depth; of a collection, those of its topics (T28)."""
        return Subscription(self, self._session, uuid, children=children, depth=depth, signed_only=signed_only)

    async def unsubscribe(self, uuid: str) -> Revocation:
        """End a subscription. What waits in its queue is gone."""
        return read_revocation(await self.change("unsubscribe", {"uuid": check_uuid(uuid)}), self, self._session)

    def countersign(
        self,
        right: str,
        uuid: str,
        entity: str,
        *,
        collection: str | None = None,
        lifetime: timedelta = timedelta(hours=1),
    ) -> str:
        """Our word, for something that we own, that an entity may do as we might (T27, T33): `discover` its tree, `register` a child below
        it, or `include` it in a collection. To be given to that entity, which sends it along. Nothing goes to the network."""
        if right not in COUNTERSIGNED:
            raise UsageError(f"{right!r} cannot be countersigned; there are {', '.join(COUNTERSIGNED)}")
        if collection is not None and right != "include":
            raise UsageError("a collection is named only for `include`")
        if lifetime > LONGEST_COUNTERSIGNATURE:
            raise UsageError(f"a countersignature counts for {LONGEST_COUNTERSIGNATURE.days} days at most")
        body = {"right": right, "uuid": check_uuid(uuid), "entity": check_id(entity)}
        if collection is not None:
            body["collection"] = check_uuid(collection)
        return envelope.write(
            "countersign",
            body,
            self._session.credentials,
            audience=f"tdn:network:{self._session.network}",
            now=datetime.now(UTC),
            life=lifetime,
        ).decode()

    # --- inside ---

    async def _register(self, body: dict[str, Any], node: str | None) -> Topic:
        """A child topic: its slot is reserved in the log before a node mints it (T25)."""
        chosen = None
        if node is not None:
            await self._session.ready(self.timeout)
            chosen = await self._pick(node, set())
        reply = await self._session.change("register", body, message_id=envelope.new_id(), timeout=self.timeout, node=chosen)
        if reply.kind != "created":
            raise TrustError(f"a {reply.kind} is no answer to a registration")
        topic = self._as_asked(reply, body)
        cut = topic.expires - topic.advertisement.created < timedelta(seconds=body["lifetime_seconds"])
        if topic.hides.parent != body["parent"] or cut != ("cut" in reply.body):
            raise TrustError("the node minted another child than was asked for")
        return replace(topic, cut=cut)

    async def _mint(self, body: dict[str, Any], node: str | None) -> Topic:
        topic = self._as_asked(await self._ask_chosen("create", body, key=names.nodes_key, node_id=node), body)
        if topic.expires - topic.advertisement.created != timedelta(seconds=body["lifetime_seconds"]):
            raise TrustError("the node minted the topic with another lifetime than was asked for")
        return topic

    def _as_asked(self, reply: envelope.Envelope, body: dict[str, Any]) -> Topic:
        """The topic or collection that a node minted, if it is the one that was asked for."""
        topic = self._read_topic(reply)
        advertisement = topic.advertisement
        kind = "collection" if openings.GATHERING in body else "topic"
        wanted = (kind, body["creator"], body["institution"], body["descriptor"], body["synopsis"]["type"])
        given = (
            advertisement.kind,
            advertisement.creator,
            advertisement.institution,
            advertisement.descriptor,
            advertisement.synopsis_type,
        )
        if wanted != given or advertisement.creator_key != self.identity.name.key_hash:
            raise TrustError("the node minted another topic than was asked for")
        hidden = {name: claim.get("value") for name, claim in (topic.opening or {}).items()}
        if hidden != openings.claims_of(body, topic.hides.notifications):
            raise TrustError("the node minted the topic with other lists, limits or members than were asked for")
        return topic

    def _read_topic(self, reply: envelope.Envelope) -> Topic:
        """The topic that a reply carries; with what it hides, where the reply says it."""
        topic = read_topic(reply.tail or b"", self._identify, self._session.network, self._session.credentials.key)
        topic = replace(topic, as_of=reply.as_of) if reply.as_of is not None else topic
        if "opening" not in reply.body:
            return topic
        openings.read(reply.body["opening"], topic.advertisement.hidden)
        return replace(topic, opening=reply.body["opening"])

    async def _seal(self, descriptor: Descriptor, readers: Iterable[str]) -> Descriptor:
        """The descriptor under a key for ourselves and some others, whose certificates the network knows."""
        others = [await self._reader_of(check_id(reader)) for reader in dict.fromkeys(readers)]
        keys = {identity.thumbprint: identity.public_key for identity in (self.identity, *others)}
        return sealed.seal_descriptor(
            descriptor, creator=self.identity.name.id, network=self._session.network, readers=list(keys.values())
        )

    async def _reader_of(self, entity: str) -> Identity:
        try:
            return await self.lookup(f"{Role.ENTITY}:{entity}")
        except Absent as error:
            raise Absent(
                f"the network does not know entity {entity} yet, so nothing can be sealed for it; it must have connected once, as with `entity --as {entity} locate`"
            ) from error

    def _kept_path(self, uuid: str) -> Path:
        return self._session.credentials.folder / "unadvertised" / f"{uuid}.json"

    def _keep(self, topic: Topic) -> None:
        """What a topic hides that is not advertised yet: its signed bytes alone do not say it."""
        path = self._kept_path(topic.uuid)
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            path.write_bytes(jsontext.canonical(dict(topic.opening or {})))

    async def _opening_of(self, uuid: str) -> Opening:
        """What a topic of ours hides: as it was kept here, or as a node tells its owner, where it is advertised already."""
        with contextlib.suppress(OSError):
            kept: Opening = jsontext.parse(self._kept_path(uuid).read_bytes())
            return kept
        with contextlib.suppress(Absent):
            if (told := (await self.show(uuid)).opening) is not None:
                return told
        raise UsageError(
            f"what topic {uuid} hides is not known here; give the JSON line that `entity create --no-advertise --json` printed"
        )

    async def _ask_chosen(
        self, kind: str, body: Mapping[str, Any], *, key: Callable[[str], str], node_id: str | None = None
    ) -> envelope.Envelope:
        """One answer of one node."""
        return (await self.ask_pages(kind, body, key=key, node_id=node_id))[0]

    async def ask_pages(
        self,
        kind: str,
        body: Mapping[str, Any],
        *,
        key: Callable[[str], str] = names.topics_key,
        node_id: str | None = None,
        is_last: Callable[[envelope.Envelope], bool] = lambda reply: True,
        within_seconds: float = _ONE_NODE_SECONDS,
    ) -> list[envelope.Envelope]:
        """Ask one node: the one named, or the chosen one, and another when that stops answering (T12). All its answers, up to the last."""
        deadline = time.perf_counter() + self.timeout
        silent: set[str] = set()
        while (left := deadline - time.perf_counter()) > 0:
            try:
                # First, and with all the time there is: a node's own few seconds are for its answer.
                await self._session.ready(left, to_read=kind in envelope.READS)
                node = await self._pick(node_id, silent)
                patience = Patience(left if node_id else min(left, within_seconds))
                answers = self._session.ask(kind, body, node, key=key(node.name.id), patience=patience)
                pages: list[envelope.Envelope] = []
                async with contextlib.aclosing(answers):
                    async for reply in answers:
                        pages.append(reply)
                        if is_last(reply):
                            return pages
            except BrokerUnavailable:
                # A question has no effect: it is asked again, over a new connection (T22).
                if deadline - time.perf_counter() <= _AGAIN_SECONDS:
                    raise
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            except Refused as error:
                # The node chosen before has another policy now (T11).
                if "declined" not in error.detail or node_id:
                    raise
            except NoNodeAnswered:
                # Every node that is there was silent once, as after a broker's restart: all of them are asked again.
                if not silent or node_id or deadline - time.perf_counter() <= _AGAIN_SECONDS:
                    raise
                silent.clear()
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            silent.add(node.name.id)
            self._chosen = None
        raise NoNodeAnswered(f"node {node_id} did not answer" if node_id else "no node answered; is one running? (`tdn status`)")

    async def _pick(self, node_id: str | None, silent: set[str]) -> Identity:
        chosen = self._chosen
        if chosen is not None and chosen.name.id not in silent and node_id in (None, chosen.name.id):
            return chosen
        wanted = {node_id} if node_id is not None else set()
        async with contextlib.aclosing(self.locate(expect=wanted)) as located:
            async for node in located:
                if node_id is None and node.id not in silent and node.serves(self.asker):
                    self._chosen = node.identity
                    self._write_down()
                    return node.identity
                if node.id == node_id:
                    return node.identity
        if node_id is not None:
            raise NoNodeAnswered(f"node {node_id} did not answer")
        raise NoNodeAnswered("no node answered; is one running? (`tdn status`)")

    async def change(self, kind: str, body: Mapping[str, Any], *, tail: bytes | None = None) -> Decided:
        reply = await self._session.change(kind, body, message_id=envelope.new_id(), tail=tail, timeout=self.timeout)
        if reply.kind != "decided" or reply.tail is None:
            raise TrustError(f"a {reply.kind} is no answer to a change")
        receipt = statements.read(reply.tail, self._identify)
        payload = receipt.payload
        ours = (payload.get("principal"), payload.get("kind"), payload.get("network"))
        if (
            receipt.kind != "receipt"
            or ours != (self.identity.name.principal, kind, self._session.network)
            or (payload.get("uuid"), payload.get("grant")) != (body.get("uuid"), body.get("grant"))
        ):
            raise TrustError("the receipt is for something else than was asked")
        self.seen = max(self.seen, payload["seq"])
        return replace(read_decided(receipt), answer=reply.body)

    def _write_down(self) -> None:
        """The chosen node, for the next time. A choice that `choose` makes again and again is written when the client closes."""
        if self._chosen is None or self._chosen.thumbprint == self._recalled:
            return
        memory = self._session.credentials.folder / "chosen-node.json"
        with contextlib.suppress(OSError):
            memory.write_text(
                json.dumps({"node": self._chosen.name.id, "chain": encode_chain(self._chosen.chain)}) + "\n", "utf-8"
            )
        self._recalled = self._chosen.thumbprint

    def _recall(self) -> None:
        """The node chosen before, if its certificate still holds."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, TdnError):
            memory = json.loads((self._session.credentials.folder / "chosen-node.json").read_text("utf-8"))
            node = self._session.credentials.roots.identify(decode_chain(memory["chain"]), at=datetime.now(UTC))
            if node.name.role is Role.NODE:
                self._chosen = node
                self._recalled = node.thumbprint
                self._session.remember(node)
