"""What the project uses of pika's channel; the broker's words are the test's."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pika

from tdn.bus.connection import Channel


class PlayedChannel:
    """One on which the broker says nothing by itself, but that it is asked what a test leaves to it."""

    def __init__(self) -> None:
        self.is_open = True
        self.sent: list[bytes] = []
        self.confirmed: Callable[[Any], None] | None = None
        self.deliver: Callable[..., None] | None = None

    def add_on_close_callback(self, told: Callable[..., None]) -> None:
        self.closed = told

    def add_on_return_callback(self, told: Callable[..., None]) -> None:
        self.returned = told

    def add_on_cancel_callback(self, told: Callable[..., None]) -> None:
        self.cancelled = told

    def confirm_delivery(self, told: Callable[[Any], None], *, callback: Callable[[Any], None]) -> None:
        self.confirmed = told
        callback(None)

    def queue_declare(self, *, callback: Callable[[Any], None], **_: Any) -> None:
        callback(None)

    queue_bind = queue_declare

    def basic_consume(self, _queue: str, deliver: Callable[..., None], *, callback: Callable[[Any], None], **_: Any) -> str:
        self.deliver = deliver
        callback(None)
        return "tag"

    def basic_publish(self, exchange: str, key: str, body: bytes, properties: Any, *, mandatory: bool) -> None:
        self.sent.append(body)

    def close(self) -> None:
        self.is_open = False

    def delivers(self, login: object, body: bytes) -> None:
        """A message of somebody for whom the broker vouches; on a channel that is closed nothing comes any more."""
        if self.is_open:
            assert self.deliver is not None
            method = SimpleNamespace(delivery_tag=1, routing_key="", redelivered=False, exchange="")
            self.deliver(self, method, pika.BasicProperties(user_id=str(login)), body)

    def says(self, method: type[Any], tag: int, *, multiple: bool = False) -> None:
        assert self.confirmed is not None
        self.confirmed(SimpleNamespace(method=method(delivery_tag=tag, multiple=multiple)))


class PlayedConnection:
    """What a guard or node uses of `Connection`: channels, as many as it likes, unless a test has them wait."""

    def __init__(self) -> None:
        self.opened: list[PlayedChannel] = []
        self.given_up: list[Exception] = []
        self.alive = True

    async def channel(self, *, prefetch: int = 0, confirms: bool = False) -> Channel:
        self.opened.append(PlayedChannel())
        channel = Channel(self.opened[-1])
        if confirms:
            await channel.confirm()
        return channel

    async def answers(self) -> bool:
        return self.alive

    def give_up(self, error: Exception) -> None:
        self.given_up.append(error)
