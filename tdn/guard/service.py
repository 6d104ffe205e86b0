"""A guard's life: follow the log, answer RabbitMQ (`answering`), end at the broker what the log has ended (`enforcing`), say how far it is.

What the guard cannot know it does not allow: it is *sure* while it has
read all of the log and the broker has confirmed a word of it a moment ago; of several brokers, most of them. A guard that was paused or cut off
notices at its next answer. It reads the log through its own broker, or through any other while that one is away: what it ends, it ends at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from base64 import b64encode
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tdn.bus import log
from tdn.bus.connection import CUT_OFF, Broker, Channel, Connection
from tdn.errors import BrokerUnavailable, LogDiverged, NotTaken, TdnError, TrustError, UnknownRules
from tdn.guard import others, trim_policy
from tdn.guard.answering import Answering
from tdn.guard.audit import AUDIT_FILE, Audit, Entry
from tdn.guard.enforcing import Cut, Enforcer
from tdn.guard.management import Management
from tdn.guard.memory import MEMORY_FILE, Remembered
from tdn.guard.observed import Observed
from tdn.guard.others import Others
from tdn.guard.settings import GuardSettings as GuardSettings
from tdn.protocol import names
from tdn.protocol.names import Name, Role
from tdn.protocol.times import format_time, whole_seconds
from tdn.replica.replica import Applied, Replica
from tdn.rules import feeds, principals
from tdn.rules.apply import network_id
from tdn.rules.feeds import Touched
from tdn.rules.state import Outcome
from tdn.store.topics import NOTHING
from tdn.trust import envelope
from tdn.trust.credentials import Credentials

logger = logging.getLogger(__name__)

#: What those are told who asked each other while no node was there.
NODES_ARE_BACK = "a node is there again"

#: A node waits for a guard to apply a revocation. As late as this may it learn of one by its own choice.
_LINGER_SECONDS = 0.01
#: Between two words of a guard to the nodes, and how long the broker's confirmation of one is believed. Nodes take a guard that has been silent
#: for twice as long to allow nothing.
BEAT_SECONDS = 0.5
LEASE_SECONDS = 3.0
#: A guard that could not follow the log for so long at its own broker tries the others.
_OWN_BROKER_SECONDS = 5.0
#: Between two tries of the look after a start, at first and at most.
_LOOK_AGAIN_SECONDS = 1.0
_LOOK_AGAIN_MOST_SECONDS = 30.0
#: While it cannot follow the log it says so, and why, once in so long.
_SAY_AGAIN_SECONDS = 10.0
#: How long another broker may take to say where the log ends. One that hangs does not keep a guard from beginning.
_END_SECONDS = 3.0
#: Between two looks at what ends by this guard's own clock, and two flushes of the audit log.
_CLOCK_SECONDS = 0.5
_FLUSH_SECONDS = 0.1
#: Looks through the broker take no more of the time than one part of so many.
_LOOKING_PART = 20
#: How often it is tried to say what was ended for a record, and of how many that were missed.
_TELL_TRIES = 20
_TOLD_LATE = 1000
#: How long, and how many at once, what was ended for a record is said again.
_AGAIN_SECONDS = 60.0
_AGAIN_MOST = 50
#: Records, and bytes of them, that a word offers of what the log lacks. The rest follows when these are back.
_OFFERED = 500
_OFFERED_BYTES = 256 * 1024


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
        folder = settings.store.parent
        self._audit = Audit(folder / AUDIT_FILE, keep_rows=settings.audit_rows)
        self._memory = Remembered(folder / MEMORY_FILE)
        self._management = Management(settings.management_urls, settings.management_password, settings.vhost, credentials)
        #: Records that have been applied and whose consequences at the broker are still being drawn; and whatever else is being ended.
        self._settling: dict[asyncio.Task[None], int | None] = {}
        #: Records that end something and were applied before all of the log was read; and logins that they end, with the reason.
        self._missed: list[int] = []
        #: What was ended for the last records, and when that was said.
        self._told: OrderedDict[int, tuple[float, dict[str, object]]] = OrderedDict()
        self._missed_logins: dict[str, str] = {}
        self._connection: Connection | None = None
        self._channels: dict[str, Channel] = {}
        #: One for each exchange: what is asked of most brokers does not wait while the channel for words is made anew.
        self._opening: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        #: When the last word was given to the broker, and when the last one that it has confirmed.
        self._said = self._confirmed = float("-inf")
        #: When this process began, in nanoseconds, and the number of its last word: whoever hears a word knows which ones were said before.
        self._began = time.time_ns()
        self._given = 0
        self._news = asyncio.Event()
        self._doubting: asyncio.Task[None] | None = None
        #: Whether it knows whom it has allowed what.
        self._remembers = asyncio.Event()
        if self._memory.complete:
            self._remembers.set()
        self._following = False
        self.observed = Observed(
            replica=self.replica,
            identity=credentials.identity,
            store=settings.store,
            clock=clock,
            connected=lambda: self._connection is not None,
            sure=lambda: self.sure,
            cutting=lambda: self.cutting,
            audit_waiting=lambda: self._audit.waiting,
            traces=settings.traces,
        )
        self._answering = Answering(
            credentials,
            settings,
            self.replica.reader,
            self._memory,
            self._audit,
            sure=lambda: self.sure,
            decided=self.observed.metrics.decided,
            clock=clock,
        )
        # What is ended follows from the log, whether or not somebody could be let in now.
        self._enforcer = Enforcer(
            self.replica.reader,
            self._memory,
            self._management,
            lambda: replace(self._answering.know(), sure=True),
            self._note_cut,
            self._read_to_end,
        )
        #: The look after the last start, or connection, and what it is to be told for.
        self._looking: tuple[asyncio.Task[None], list[int], dict[str, str]] | None = None
        self._others = Others(
            self.id,
            self.replica.reader,
            sure=lambda: self.sure,
            channel=self._new_channel,
            own_broker=self._management.own_broker,
            clear=self._enforcer.clear,
            news=self._news.set,
        )

    @property
    def sure(self) -> bool:
        """Whether the view is known to be up to date, and the others can hear that this guard is there: whom they do not hear, they close behind."""
        return self._following and time.monotonic() - min(self._said, self._confirmed) < LEASE_SECONDS

    def readiness(self) -> dict[str, Any]:
        """Whether it vouches for anybody, and if not, why."""
        told = {"ready": self.sure, "sequence": self.replica.position[0], "lag": self.replica.lag}
        if self.sure:
            return told
        if self._connection is None:
            return {**told, "reason": "it is not connected to the broker"}
        if not self._following:
            return {**told, "reason": "it has not read all of the log"}
        if self._said < self._confirmed:
            return {**told, "reason": f"the broker has taken no word of it for {LEASE_SECONDS:.0f} s"}
        return {**told, "reason": f"the broker has confirmed nothing for {LEASE_SECONDS:.0f} s"}

    @property
    def counts(self) -> Counter[str]:
        """Questions of the broker, allowed and denied."""
        return self._answering.counts

    @property
    def cutting(self) -> int:
        """Ends that are in the log and not known to be carried out at the broker yet."""
        return len(self._settling)

    @property
    def others(self) -> dict[str, int]:
        """How far the other guards are, by their own words."""
        return self._others.applied

    async def run(self, stop: asyncio.Event) -> None:
        runner = await self._answering.listen()
        async with self._management:
            work = [self._follow(), self._beat(), self._watch_clock(), self._flush(), stop.wait()]
            work += [self._keep_looking(), trim_policy.watch(self._management), others.watch(self._others, beat_seconds=BEAT_SECONDS)]
            if self._several:
                work.append(self._ask_majority())
            tasks = [asyncio.create_task(task) for task in work]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                begun = [*tasks, *self._settling, *([self._doubting] if self._doubting is not None else [])]
                for task in begun:
                    task.cancel()
                await asyncio.gather(*begun, return_exceptions=True)
                await runner.cleanup()
                self.replica.close()
                self._audit.close()
                self._memory.close()

    async def _follow(self) -> None:
        """Keep the view up to date. While it is not, entities are refused: what the guard cannot know, it does not allow."""
        prefer = self._settings.own_broker
        told = float("-inf")
        while True:
            began = time.monotonic()
            try:
                connection = self._connection = await Connection.open(
                    self._settings.brokers, self._credentials, vhost=self._settings.vhost, prefer=prefer
                )
                following = asyncio.create_task(self.replica.follow(connection))
                placed = asyncio.create_task(self.replica.placed.wait())
                caught_up = asyncio.create_task(self._catch_up(connection))
                try:
                    await asyncio.wait([following, placed], return_when=asyncio.FIRST_COMPLETED)
                    # Nodes that compare wait to hear how far this store goes.
                    self._news.set()
                    await asyncio.wait([following, caught_up], return_when=asyncio.FIRST_COMPLETED)
                    if caught_up.done():
                        await caught_up
                        self._following = True
                        self._look()
                    await following
                finally:
                    self._following = False
                    self._connection = None
                    self._channels.clear()
                    for task in (following, placed, caught_up):
                        task.cancel()
                    await asyncio.gather(following, placed, caught_up, return_exceptions=True)
                    await connection.close()
            except (LogDiverged, UnknownRules):
                raise
            except TdnError as error:
                # Tried three times a second, for as long as brokers are away.
                if time.monotonic() - told > _SAY_AGAIN_SECONDS:
                    told = time.monotonic()
                    logger.info("guard %s waits for the log: %s", self.id, error)
            # A broker that has just started may let us in and not have its copy of the log yet.
            prefer = self._settings.own_broker if time.monotonic() - began > _OWN_BROKER_SECONDS else None
            await asyncio.sleep(0.3)

    async def _catch_up(self, connection: Connection) -> None:
        """Return when all of the log is read. A broker that was away gives an old end while its copy grows, for seconds where much was missing, and the guard
        beside it would be sure of what was revoked meanwhile. What counts, most brokers have: so the last of the ends that most of them give is the log's, and
        one that hangs is not waited for. Where most do not say, they mostly do not confirm this guard's words either, and it is not sure."""
        await self.replica.caught_up.wait()
        elsewhere = [broker for broker in self._settings.brokers if broker != connection.broker]
        asked = [asyncio.create_task(self._end_at(broker)) for broker in elsewhere]
        ends: list[int] = []
        try:
            for answer in asyncio.as_completed(asked):
                if (end := await answer) is not None:
                    ends.append(end)
                if len(ends) == len(self._settings.brokers) // 2:
                    break
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        await self.replica.read_to(max(ends, default=-1))

    async def _end_at(self, broker: Broker) -> int | None:
        """Where the log ends, by one broker; None where it does not say."""
        with contextlib.suppress(TdnError, TimeoutError):
            async with asyncio.timeout(_END_SECONDS) as limit:
                connection = await Connection.open([broker], self._credentials, vhost=self._settings.vhost)
                # At the same moment, so that nobody waits for the goodbye of one that hangs: that takes longer than this.
                over = asyncio.get_running_loop().call_at(limit.when() or 0.0, connection.give_up, BrokerUnavailable("the broker does not say where the log ends"))
                try:
                    return await log.last_offset(connection)
                finally:
                    over.cancel()
                    connection.abandon()
        return None

    # --- saying how far it is ---

    async def _beat(self) -> None:
        """Twice a second, and whenever there is news. A word that is not confirmed yet puts off the next one by a moment and no more: the other guards
        count beats."""
        under_way: set[asyncio.Task[bool]] = set()
        try:
            while True:
                self._news.clear()
                under_way.add(asyncio.create_task(self._say(self._ended_lately())))
                done, under_way = await asyncio.wait(under_way, timeout=BEAT_SECONDS)
                for word in done:
                    word.result()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(BEAT_SECONDS):
                        await self._news.wait()
        finally:
            for word in under_way:
                word.cancel()

    def _ended_lately(self) -> dict[str, object]:
        """What was said of the last minute's ends, again: a node that takes over from one that died was not there when it was said."""
        while self._told and (
            len(self._told) > _AGAIN_MOST or next(iter(self._told.values()))[0] < time.monotonic() - _AGAIN_SECONDS
        ):
            self._told.popitem(last=False)
        return {"ended": [{"seq": seq, "cut": cut} for seq, (_, cut) in self._told.items()]} if self._told else {}

    @property
    def _done(self) -> int:
        """The record up to which this guard knows the log and has ended at the broker what it ends."""
        unfinished = [seq for seq in self._settling.values() if seq is not None]
        return min([self.replica.position[0], *(seq - 1 for seq in unfinished)])

    async def _say(self, what: Mapping[str, object]) -> bool:
        """A word to the nodes: up to which record this guard is done with the log, and what it has ended for one. Whether the broker has it."""
        try:
            async with asyncio.timeout(LEASE_SECONDS):
                try:
                    await self._give(what)
                except NotTaken:
                    await self._give(what, again=True)
        except TdnError:
            return False
        except TimeoutError:
            self._doubt()
            return False
        return True

    async def _give(self, what: Mapping[str, object], *, again: bool = False) -> None:
        """Give the broker a word; return when it has confirmed it."""
        number = self._given
        try:
            words = await self._channel(names.GUARDS)
            said = time.monotonic()
            number = self._given = self._given + 1
            place = {"applied": self._done, "word": [self._began, number]}
            body = json.dumps({**place, **what, **self._store_word(), **self._others.word()}).encode()
            confirmed = words.publish(names.GUARDS, "", body, login=str(self._credentials.identity.name))
            self._said = said
            await confirmed
        except TdnError as error:
            # Where there is no such exchange nobody hears it. Refused are all words of the last seconds at once, as soon as a broker that hung with a queue
            # for them is declared dead: these are said again and count meanwhile, or all guards would be unsure at the same moment.
            if (again or not isinstance(error, NotTaken)) and number == self._given:
                self._said = float("-inf")
            raise
        if not self._several:
            # From the moment before it was sent: the broker had it no earlier.
            self._confirmed = max(said, self._confirmed)

    def _doubt(self) -> None:
        """A connection that was lost without a word shows it by heartbeats only after half a minute, in which this guard would be sure of nothing."""
        if self._connection is not None and (self._doubting is None or self._doubting.done()):
            self._doubting = asyncio.create_task(self._leave_if_silent(self._connection))

    async def _leave_if_silent(self, connection: Connection) -> None:
        if not await connection.answers():
            connection.give_up(BrokerUnavailable("the broker does not answer on this connection any more"))

    def _store_word(self) -> dict[str, object]:
        """How far this guard's store goes, once it has read the log to its end; and what the log lacks of it. A guard does not append: a node
        that compares puts it back."""
        if not self.replica.placed.is_set():
            return {}
        seq, head = self.replica.position
        found = self.replica.found
        missing: list[str] = []
        size = 0
        for one in self.replica.records.after(found, _OFFERED) if found < seq else ():
            size += len(one.raw)
            if missing and size > _OFFERED_BYTES:
                break
            missing.append(b64encode(one.raw).decode())
        return {"store": {"seq": seq, "head": head, "log": found, "records": missing}}

    @property
    def _several(self) -> bool:
        return len(self._settings.brokers) > 1

    async def _ask_majority(self) -> None:
        """Of several brokers, most must confirm that this guard is with them: one that was cut off from the others with its guard would
        confirm whatever it is told, for as long as it takes it to notice."""
        while True:
            with contextlib.suppress(TdnError, TimeoutError):
                async with asyncio.timeout(LEASE_SECONDS):
                    channel = await self._channel(names.MAJORITY)
                    asked = time.monotonic()
                    await channel.publish(names.MAJORITY, "", b"", persistent=True)
                self._confirmed = asked
            await asyncio.sleep(BEAT_SECONDS)

    async def _channel(self, exchange: str) -> Channel:
        """The channel for what is said on one exchange: before the first node has made that, the broker closes the channel."""
        async with self._opening[exchange]:
            channel = self._channels.get(exchange)
            if channel is None or channel.closed.done():
                channel = self._channels[exchange] = await self._new_channel(confirms=True)
            return channel

    async def _new_channel(self, *, confirms: bool = False) -> Channel:
        if self._connection is None:
            raise BrokerUnavailable("not connected")
        return await self._connection.channel(confirms=confirms)

    # --- ending what has ended ---

    def _on_applied(self, applied: Applied) -> None:
        self.observed.on_applied(applied, tell=self._following)
        for record, outcome in applied:
            if outcome.status != "accepted":
                continue
            touched, logins = feeds.losses(outcome.writes), [(login, CUT_OFF) for login in outcome.cut]
            if not (touched or logins or outcome.kind in envelope.ENDS_RIGHTS):
                continue
            if self._following:
                self._settle(touched, logins, record.seq, outcome)
            else:
                # It comes late, and may be one of very many: the broker is held against the log as a whole once all of it is read.
                self._missed.append(record.seq)
                if len(self._missed) > 2 * _TOLD_LATE:
                    # A long log has millions. The first says how far this guard is; of the others no node waits for any but the last.
                    del self._missed[1:-_TOLD_LATE]
                self._missed_logins |= dict(logins)
        if self._answering.peers and not self._answering.nodes_silent():
            # A node is back. The broker remembers what it allowed on an open channel, so those who asked each other connect anew.
            self._settle(Touched(), [(login, NODES_ARE_BACK) for login in self._answering.peers])
            self._answering.peers.clear()
        self._news.set()

    def _settle(
        self, touched: Touched, logins: Sequence[tuple[str, str]], seq: int | None = None, outcome: Outcome | None = None
    ) -> None:
        self._begin(self._settle_one(touched, logins, seq, outcome), seq)

    def _begin(self, work: Coroutine[Any, Any, None], seq: int | None) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._settling[task] = seq
        task.add_done_callback(self._settled)
        return task

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._settling.pop(task, None)
        self._news.set()
        if not task.cancelled() and task.exception() is not None:
            logger.error("something could not be ended at the broker", exc_info=task.exception())

    async def _settle_one(
        self, touched: Touched, logins: Sequence[tuple[str, str]], seq: int | None, outcome: Outcome | None
    ) -> None:
        began = time.monotonic()
        # Whom it does not remember it cannot find: then all that was open before it is closed first.
        await self._remembers.wait()
        cut = await self._enforcer.settle(touched, logins)
        self.observed.settled(outcome, seq, cut, began)
        if seq is not None:
            await self._tell(seq, cut)

    async def _tell(self, seq: int, cut: Cut) -> None:
        """Say what was ended for a record, until the broker has it or no node waits for it any more."""
        self._told[seq] = time.monotonic(), cut.as_object()
        for _ in range(_TELL_TRIES):
            if await self._say({"seq": seq, "cut": cut.as_object()}):
                return
            await asyncio.sleep(BEAT_SECONDS)

    async def _watch_clock(self) -> None:
        """What ends by this guard's own clock, before log time gets there: topics, grants, certificates."""
        reader = self.replica.reader
        looked = ""
        while True:
            await asyncio.sleep(_CLOCK_SECONDS)
            if not self._following or reader.get("network", "network") is None:
                # Nothing ends before there is a network: the first node has just made an empty log.
                continue
            moment = format_time(whole_seconds(self._clock()))
            looked = looked or str(principals.network(reader)["time"])
            touched = Touched()
            for key, _ in list(reader.scan("ends", after=f"{looked} ~", up_to=f"{moment} ~", limit=10_000)):
                _, space, name = key.split(" ", 2)
                if space == "topic":
                    # A tree's grants speak of the topics in it too.
                    touched.topics.add(name)
                    touched.trees.add(name)
                elif space == "grant" and (grant := reader.get("grant", name)) is not None:
                    (touched.trees if grant["tree"] else touched.topics).add(grant["topic"])
                elif space == "certificate" and name.startswith(f"{Role.ENTITY}:"):
                    touched.entities.add(name.partition(" ")[0].partition(":")[2])
            looked = max(looked, moment)
            if touched:
                self._settle(touched, [])

    def _look(self) -> None:
        """All of the log is read, at a start or after the broker was away: end what ended meanwhile."""
        missed, self._missed = self._missed, []
        logins, self._missed_logins = self._missed_logins, {}
        if self._looking is not None and not self._looking[0].done():
            # One that could not end is not left beside the next.
            before, earlier, out = self._looking
            before.cancel()
            missed, logins = [*earlier, *missed], {**out, **logins}
        self._looking = self._begin(self._look_at_all(missed, logins), min(missed, default=None)), missed, logins

    async def _look_at_all(self, missed: Sequence[int], logins: Mapping[str, str]) -> None:
        """Hold the broker against the log. Not knowing whom it allowed what, a guard first closes all that was open before it."""
        pause = _LOOK_AGAIN_SECONDS
        while True:
            try:
                if not self._memory.complete:
                    await self._enforcer.close_all()
                    self._memory.completed()
                    self._remembers.set()
                cut = await self._enforcer.settle_all(logins)
                break
            except BrokerUnavailable as error:
                logger.info("guard %s has not looked through the broker yet: %s", self.id, error)
            except Exception:
                logger.exception("guard %s could not look through the broker", self.id)
            # Each time whoever is out is closed once more, and noted.
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LOOK_AGAIN_MOST_SECONDS)
        self.observed.metrics.cut(len(cut.logins), cut.queues, cut.bindings)
        if cut:
            logger.info("guard %s ended what ended while it was away: %s", self.id, cut.as_object())
        for seq in missed[-_TOLD_LATE:]:
            await self._tell(seq, cut)

    async def _read_to_end(self) -> None:
        if self._connection is None:
            raise BrokerUnavailable("not connected")
        await self.replica.read_to_end(self._connection)

    async def _keep_looking(self) -> None:
        """Hold the broker against the log again and again, for what a node left that was behind, or died at its work."""
        pause = self._settings.look_seconds
        while True:
            await asyncio.sleep(pause)
            if not self.sure:
                continue
            began = time.monotonic()
            try:
                cut = await self._enforcer.look_through(at_once=False)
            except BrokerUnavailable as error:
                logger.info("guard %s could not look through all of the broker: %s", self.id, error)
                continue
            except Exception:
                logger.exception("guard %s could not look through the broker", self.id)
                continue
            finally:
                pause = max(self._settings.look_seconds, _LOOKING_PART * (time.monotonic() - began))
            self.observed.metrics.cut(0, cut.queues, cut.bindings)
            if cut:
                logger.info("guard %s ended what was left at the broker: %s", self.id, cut.as_object())

    # --- the audit log ---

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_SECONDS)
            self._audit.flush()

    def _note_cut(self, who: str, resource: str, topic: str | None, why: str) -> None:
        name = Name.parse(who)
        entity = name.id if name is not None else who
        self._audit.note(Entry(self._clock(), who, entity, "cut", resource, topic, False, why))
