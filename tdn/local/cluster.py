"""The private brokers of a home, one or several that are one: started together, stopped.

Promises: `start` returns when all of them serve and each has its copy of what is replicated; brokers that run are not touched by it. One that
joins is first a *newcomer*: it starts after those that hold the data, and counts as a member once the log and the shared queues are
copied to it, so that a start that was interrupted can be made again. One epmd and one cookie serve all, and end with the last.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from tdn.errors import BrokerUnavailable, UsageError
from tdn.local.broker import Broker, BrokerPorts, BrokerTls, PrivateBroker, find_rabbitmq
from tdn.local.container import ContainerBroker, docker_runs
from tdn.local.home import MOST_BROKERS, Home, Place
from tdn.local.processes import DetachedProcess
from tdn.protocol.names import MANAGEMENT_USER, Role

#: One broker is up in 4 to 8 s; three on two cores in some 20. After a crash they wait for each other's data besides.
_ONE_SECONDS = 60.0
_SEVERAL_SECONDS = 150.0
#: How long one that ran on without the others may take to go on by itself once they have begun: some ten, on two cores. Told to while it does, it goes on.
_RESUMES_SECONDS = 20.0

#: In a further broker's folder once it is a member.
_MEMBER = "member"


class Cluster:
    def __init__(self, home: Home, say: Callable[[str], None]) -> None:
        self._home = home
        self._say = say

    # --- which there are ---

    def present(self) -> list[Place]:
        """The brokers that have been made in this home."""
        return [place for place in self._home.places() if self._home.credentials(Role.BROKER, place.broker).is_dir()]

    def broker(self, place: Place) -> Broker:
        folder = self._home.credentials(Role.BROKER, place.broker)
        tls = BrokerTls(root=folder / "trust.pem", chain=folder / "cert.pem", key=folder / "key.pem")
        own = BrokerPorts(place.amqps, place.management, place.dist, place.epmd)
        guard_url = f"https://127.0.0.1:{place.guard_port}"
        places = self._home.places()
        if len(places) > 1:
            return PrivateBroker(
                folder / "rabbitmq",
                own,
                tls,
                guard_url,
                nodename=place.nodename,
                peers=[each.nodename for each in places],
                shared=self._shared,
            )
        kind = ContainerBroker if in_a_container() else PrivateBroker
        return kind(folder / "rabbitmq", own, tls, guard_url, nodename=place.nodename)

    def alive(self) -> list[Place]:
        return [place for place in self.present() if self.broker(place).alive()]

    def status(self) -> list[dict[str, Any]]:
        """A broker that runs and is not ready is starting, or has stopped serving because most of the others are away."""
        entries = []
        for place in self.present():
            broker = self.broker(place)
            alive = broker.alive()
            ready = alive and _listens(place.amqps)
            entries.append({"role": str(Role.BROKER), "id": place.broker, "pid": broker.pid, "alive": alive, "ready": ready})
        return entries

    def has_data(self) -> bool:
        """Whether a broker has run here."""
        data = self._shared / "data"
        return data.is_dir() and any(data.iterdir())

    def ports_to_be_free(self) -> list[int]:
        """Those of brokers that do not run, and epmd's unless ours runs."""
        absent = [place for place in self._home.places() if place not in self.alive()]
        ports = [port for place in absent for port in (place.amqps, place.management, place.dist)]
        return ports if not absent or self._epmd.alive() else [*ports, absent[0].epmd]

    # --- up and down ---

    def start(self) -> None:
        """Start the brokers that do not run."""
        places = self._home.places()
        if len(places) == 1:
            broker = self.broker(places[0])
            if not broker.alive():
                self._say("starting a private RabbitMQ with mutual TLS")
                self._configure(broker)
                broker.start(timeout_seconds=_ONE_SECONDS)
            return
        brokers = {place: self._one_of_several(place) for place in places}
        # The first begins the network; a newcomer that finds nobody would begin one of its own.
        newcomers = [place for place in places[1:] if not self._member_mark(place).exists()]
        members = [place for place in places if place not in newcomers]
        if not all(broker.alive() for broker in brokers.values()):
            self._say(f"starting {len(places)} private RabbitMQ brokers with mutual TLS")
        self._start_together([brokers[place] for place in members])
        if newcomers:
            for place in newcomers:
                self._begin_anew(brokers[places[0]], brokers[place])
            self._start_together([brokers[place] for place in newcomers])
        self._await_all(places)
        for place in newcomers:
            self._member_mark(place).touch()

    def stop(self, *, but: Collection[str] = ()) -> None:
        """All at once: of those that are stopped one after another, the last have nobody left, and stop serving before they are told to."""
        brokers = [self.broker(place) for place in self.present() if place.broker not in but]
        for broker in brokers:
            if isinstance(broker, PrivateBroker):
                broker.begin_stop()
        for broker in brokers:
            broker.stop()
        if not but:
            self._epmd.stop(timeout_seconds=5.0)

    def kill_hard(self) -> None:
        """As a power cut would."""
        for place in self.present():
            self.broker(place).kill_hard()
        self._epmd.kill_hard()

    # --- inside ---

    @property
    def _shared(self) -> Path:
        """Where the first broker's state is, and the epmd and cookie of all."""
        return self._home.credentials(Role.BROKER, self._home.places()[0].broker) / "rabbitmq"

    @property
    def _epmd(self) -> DetachedProcess:
        return DetachedProcess(self._shared, "epmd")

    def _member_mark(self, place: Place) -> Path:
        return self._home.credentials(Role.BROKER, place.broker) / "rabbitmq" / _MEMBER

    def _one_of_several(self, place: Place) -> PrivateBroker:
        broker = self.broker(place)
        if not isinstance(broker, PrivateBroker):
            raise UsageError("a broker in a container is one alone")
        return broker

    def _configure(self, broker: Broker) -> None:
        if notice := broker.write_configuration():
            self._say(notice)

    def _start_together(self, brokers: Sequence[PrivateBroker]) -> None:
        deadline = time.monotonic() + _SEVERAL_SECONDS
        ran_on = [broker for broker in brokers if broker.alive()]
        for broker in brokers:
            if broker not in ran_on:
                self._configure(broker)
                broker.begin(deadline)
        for broker in ran_on:
            self._await_resumed(broker, deadline)
        for broker in brokers:
            broker.await_serving(deadline)

    def _await_resumed(self, broker: PrivateBroker, deadline: float) -> None:
        """One that stopped serving because most were away goes on by itself when they are back. RabbitMQ 3.10.8 tries that once, and fails when it asks one for
        its feature flags that has just begun (`incompatible_feature_flags`): it then stands still, and those that wait for what it holds with it."""
        try:
            broker.await_serving(min(deadline, time.monotonic() + _RESUMES_SECONDS))
        except BrokerUnavailable:
            if not broker.alive():
                raise
            self._say(f"{broker.nodename} does not go on by itself, and is told to")
            with contextlib.suppress(BrokerUnavailable):
                broker.control("rabbitmqctl", "start_app")

    def _begin_anew(self, first: PrivateBroker, newcomer: PrivateBroker) -> None:
        """A newcomer whose joining was interrupted holds nothing that anybody has been told is there: it is taken back, and joins again."""
        data = newcomer.folder / "data"
        if newcomer.alive() or not data.exists() or not any(data.iterdir()):
            return
        if newcomer.nodename in first.control("rabbitmqctl", "--silent", "cluster_status"):
            first.control("rabbitmqctl", "forget_cluster_node", newcomer.nodename)
        shutil.rmtree(data)

    def _await_all(self, places: Sequence[Place]) -> None:
        """Return when the brokers know each other as one."""
        deadline = time.monotonic() + _SEVERAL_SECONDS
        wanted = {place.nodename for place in places}
        while True:
            try:
                running = {node["name"] for node in self._ask("nodes?columns=name,running") if node.get("running")}
                if running >= wanted:
                    return
                told = f"only {', '.join(sorted(running & wanted))} run together"
            except BrokerUnavailable as error:
                told = str(error)
            if time.monotonic() > deadline:
                raise BrokerUnavailable(f"the brokers have not come together: {told}")
            time.sleep(0.2)

    def _ask(self, path: str) -> Any:
        """The first broker's management API, with the operator's password, which its guard accepts."""
        first = self._home.places()[0]
        folder = self._home.credentials(Role.BROKER, first.broker)
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(folder / "trust.pem"))
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        request = urllib.request.Request(f"https://127.0.0.1:{first.management}/api/{path}")
        login = f"{MANAGEMENT_USER}:{self._home.management_password()}"
        request.add_header("Authorization", "Basic " + b64encode(login.encode()).decode())
        try:
            # Always https: the address is put together from a port of ours.
            with urllib.request.urlopen(request, timeout=10, context=context) as response:  # noqa: S310
                return json.loads(response.read())
        except (OSError, ValueError, urllib.error.URLError) as error:
            raise BrokerUnavailable(f"the broker's management API did not answer: {error}") from error


def in_a_container() -> bool:
    """Whether the private broker runs in a container here: no RabbitMQ is installed, and an engine answers."""
    return find_rabbitmq() is None and docker_runs()


def check_count(brokers: int, present: int) -> None:
    """Whether a home with so many brokers can have that many."""
    if brokers not in range(1, MOST_BROKERS + 1, 2):
        raise UsageError(
            f"--brokers is 1, 3 or {MOST_BROKERS}: an odd number, because most of them must run, and one more would survive no more losses"
        )
    if brokers < present:
        raise UsageError(f"this home has {present} brokers, and what they hold is on most of them; it cannot have fewer")
    if brokers > 1 and in_a_container():
        raise UsageError("several private brokers need a RabbitMQ that is installed here; in a container there is one")


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False
