"""What the broker remembers of the guard's answers (broker_config/rabbit_auth_backend_tdn.erl), and that it forgets them in time."""

from __future__ import annotations

import subprocess
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tdn.local import erlang
from tdn.local.broker import PLAIN_BACKEND, REMEMBERING_BACKEND, PrivateBroker, template_folder
from tests.one_broker import Authority, OneBroker, StandInGuard, client_context, connect

pytestmark = pytest.mark.broker

#: RabbitMQ remembers 12 by itself.
MANY = 40


@dataclass
class Asking:
    """A broker, a guard that counts, and one user who may do everything but what is refused."""

    guard: StandInGuard
    broker: PrivateBroker
    authority: Authority

    def connect(self) -> pika.BlockingConnection:
        return connect(self.broker, client_context(self.authority.entity()))

    def exchanges(self, count: int, *, named: str = "{}") -> list[str]:
        """New exchanges; what was asked about them so far is forgotten."""
        found = [named.format(uuid.uuid4()) for _ in range(count)]
        with self.connect() as connection:
            channel = connection.channel()
            for name in found:
                channel.exchange_declare(name, "fanout")
        self.guard.asked.clear()
        return found

    def asked(self, permission: str = "write") -> Counter[str]:
        """How often the guard was asked about each exchange."""
        questions = (fields for question, fields in self.guard.asked if question == "resource")
        return Counter(
            fields["name"] for fields in questions if fields["permission"] == permission and fields["resource"] == "exchange"
        )


@pytest.fixture
def asking(one_broker: OneBroker) -> Asking:
    one_broker.guard.asked.clear()
    return Asking(one_broker.guard, one_broker.broker, one_broker.authority)


def publish(channel: BlockingChannel, names: list[str], *, times: int = 1) -> None:
    """In rotation, without a pause in which the channel could fall asleep; returns when the broker has judged them all."""
    for _ in range(times):
        for name in names:
            channel.basic_publish(name, "", b"x")
    channel.basic_qos(prefetch_count=1)


def test_many_topics_in_rotation_are_asked_about_once(asking: Asking) -> None:
    topics = asking.exchanges(MANY)
    with asking.connect() as connection:
        publish(connection.channel(), topics, times=4)
    assert asking.asked() == dict.fromkeys(topics, 1)


def test_a_refusal_is_asked_about_each_time(asking: Asking) -> None:
    allowed, refused = asking.exchanges(2)
    asking.guard.refused.add(refused)
    with asking.connect() as connection:
        for count in (1, 2, 3):
            channel = connection.channel()
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"):
                publish(channel, [allowed, refused])
            assert asking.asked()[refused] == count
        asking.guard.refused.clear()
        publish(connection.channel(), [refused], times=3)
        assert asking.asked()[refused] == 4


def test_an_unanswered_question_is_a_refusal_and_is_asked_again(asking: Asking) -> None:
    known, unknown = asking.exchanges(2)
    with asking.connect() as connection:
        channel = connection.channel()
        publish(channel, [known])
        asking.guard.stop()
        try:
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"):
                publish(channel, [unknown])
        finally:
            asking.guard.start()
        publish(connection.channel(), [unknown])
    assert asking.asked()[unknown] == 1


def test_each_channel_and_each_connection_asks_for_itself(asking: Asking) -> None:
    """What is remembered lies in the channel's process: another of the same user knows nothing of it, and neither does the next."""
    topics = asking.exchanges(MANY)
    with asking.connect() as first, asking.connect() as second:
        channel = first.channel()
        publish(channel, topics)
        publish(first.channel(), topics)
        assert asking.asked() == dict.fromkeys(topics, 2)
        publish(second.channel(), topics)
        assert asking.asked() == dict.fromkeys(topics, 3)
        channel.close()
        publish(first.channel(channel.channel_number), topics)
        assert asking.asked() == dict.fromkeys(topics, 4)


def test_a_closed_connection_has_forgotten(asking: Asking) -> None:
    """T21: this is what makes revocation complete. The guard closes the connection, and the next one is refused."""
    topics = asking.exchanges(MANY)
    with asking.connect() as connection:
        publish(connection.channel(), topics, times=2)
    asking.guard.refused.update(topics)
    try:
        with asking.connect() as connection:
            for topic in topics[:3]:
                with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"):
                    publish(connection.channel(), [topic])
    finally:
        asking.guard.refused.clear()


def test_only_writing_to_topics_is_remembered(asking: Asking) -> None:
    """Other exchanges, and other permissions on a topic's own, are RabbitMQ's to remember: its last twelve."""
    others = asking.exchanges(MANY, named="x{}")
    with asking.connect() as connection:
        publish(connection.channel(), others, times=2)
    assert asking.asked() == dict.fromkeys(others, 2)
    topics = asking.exchanges(MANY)
    with asking.connect() as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        for _ in range(2):
            publish(channel, topics)
            for topic in topics:
                channel.exchange_declare(topic, "fanout")
            for topic in topics:
                channel.queue_bind(queue, topic)
    assert asking.asked() == dict.fromkeys(topics, 1)
    assert asking.asked("configure") == dict.fromkeys(topics, 2)
    assert asking.asked("read") == dict.fromkeys(topics, 2)


@pytest.mark.parametrize("first", ["a topic", "something else"])
def test_a_channel_that_rested_has_forgotten(asking: Asking, first: str) -> None:
    """RabbitMQ forgets its decisions when a channel sleeps, and ours go with them, whatever is asked about first afterwards."""
    topics = asking.exchanges(MANY)
    with asking.connect() as connection:
        channel = connection.channel()
        publish(channel, topics, times=2)
        assert asking.asked() == dict.fromkeys(topics, 1)
        for seconds in (1.5, 3.0, 6.0, 12.0):
            # Rest is what this is about: looking meanwhile would wake it.
            time.sleep(seconds)
            if first == "something else":
                channel.queue_declare("", exclusive=True)
            publish(channel, topics, times=2)
            if asking.asked() == dict.fromkeys(topics, 2):
                return
    pytest.fail(f"asked {asking.asked().most_common(3)}")


def test_without_a_compiler_the_plain_backend_is_taken(asking: Asking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def backend(broker: PrivateBroker) -> str:
        lines = (broker.folder / "rabbitmq.conf").read_text().splitlines()
        return next(line for line in lines if line.startswith("auth_backends.1")).split(" = ")[1]

    assert backend(asking.broker) == REMEMBERING_BACKEND
    broker = PrivateBroker(tmp_path / "b", asking.broker.ports, asking.broker.tls, asking.broker.guard_url)
    assert broker.write_configuration() is None
    (tmp_path / "erlc").write_text("#!/bin/sh\necho no such thing\nexit 1\n")
    (tmp_path / "erlc").chmod(0o755)
    for path, reason in ((tmp_path, "no such thing"), (tmp_path / "nothing", "is not found")):
        monkeypatch.setenv("PATH", str(path))
        notice = broker.write_configuration()
        assert notice is not None
        assert reason in notice
        assert backend(broker) == PLAIN_BACKEND
        assert not list(broker.folder.glob("code/*.beam")), "an earlier version of it must not stay"


#: RabbitMQ's HTTP backend for the module alone: the answer is told beforehand, and questions are counted.
_STAND_IN = """
-module(rabbit_auth_backend_http).
-compile(export_all).
-compile(nowarn_export_all).
check_resource_access(_, _, _, _) -> put(asked, get(asked) + 1), get(answer).
user_login_authentication(_, Properties) -> Properties.
"""

#: A process that is a channel as far as the module can see, and one that is not.
_DRIVER = """
-module(driver).
-export([main/0]).

name(Number) -> iolist_to_binary(io_lib:format("~8.16.0b-0000-4000-8000-000000000000", [Number])).

check(User, VirtualHost, Name, Context) ->
    put(asked, 0),
    Answer = rabbit_auth_backend_tdn:check_resource_access(
        {auth_user, User, [], none}, {resource, VirtualHost, exchange, Name}, write, Context),
    {Answer, get(asked)}.

check(Name) -> check(<<"alice">>, <<"tdn">>, Name, #{}).

say(What, Value) -> io:format("~s ~0p~n", [What, Value]).

main() ->
    put(answer, true),
    say(no_channel, [check(name(9)), check(name(9))]),
    put(permission_cache, []),
    say(channel, [check(name(1)), check(name(1))]),
    say(others, [check(<<"bob">>, <<"tdn">>, name(1), #{}), check(<<"alice">>, <<"other">>, name(1), #{}),
                 check(<<"alice">>, <<"tdn">>, name(1), #{<<"client_id">> => <<"c">>})]),
    [begin put(answer, Wrong), say(refused, [check(name(2)), check(name(2))]) end
     || Wrong <- [false, {error, timeout}, {false, "why"}]],
    put(answer, true),
    [{true, 1} = check(name(Number)) || Number <- lists:seq(100, 10094)],
    say(full, [map_size(get(rabbit_auth_backend_tdn)), check(name(1))]),
    say(one_more, [check(name(3)), map_size(get(rabbit_auth_backend_tdn)), check(name(1)), check(name(1))]),
    Packet = <<(name(4))/binary, (binary:copy(<<0>>, 100000))/binary>>,
    <<Slice:36/binary, _/binary>> = Packet,
    check(Slice),
    [Kept] = [element(1, Key) || Key <- maps:keys(get(rabbit_auth_backend_tdn)), element(1, Key) =:= Slice],
    say(kept, binary:referenced_byte_size(Kept)),
    erase(permission_cache),
    say(forgotten, [check(name(1)), check(name(1))]),
    say(renamed, rabbit_auth_backend_tdn:user_login_authentication(<<"alice">>,
        [{rabbit_auth_backend_tdn, password}, {vhost, <<"tdn">>}])),
    halt().
"""


def test_the_module_by_itself(tmp_path: Path) -> None:
    """Its bound, and what no test on a broker could see."""
    for name, text in (("rabbit_auth_backend_http", _STAND_IN), ("driver", _DRIVER)):
        (tmp_path / f"{name}.erl").write_text(text)
        assert erlang.compile_module(tmp_path / f"{name}.erl", tmp_path) is None
    assert erlang.compile_module(template_folder() / f"{REMEMBERING_BACKEND}.erl", tmp_path) is None
    ran = subprocess.run(
        ["erl", "-noshell", "-pa", str(tmp_path), "-s", "driver", "main"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=tmp_path,
    )
    assert ran.stdout.splitlines() == [
        "no_channel [{true,1},{true,1}]",
        "channel [{true,1},{true,0}]",
        # Another user, another virtual host, another context.
        "others [{true,1},{true,1},{true,1}]",
        "refused [{false,1},{false,1}]",
        "refused [{{error,timeout},1},{{error,timeout},1}]",
        'refused [{{false,"why"},1},{{false,"why"},1}]',
        "full [10000,{true,0}]",
        "one_more [{true,1},1,{true,1},{true,0}]",
        "kept 36",
        "forgotten [{true,1},{true,1}]",
        'renamed [{rabbit_auth_backend_http,password},{vhost,<<"tdn">>}]',
    ]
