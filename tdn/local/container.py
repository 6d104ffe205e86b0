"""The same broker in a container, where Docker runs and no RabbitMQ is installed.

Promises what `PrivateBroker` promises: same configuration, loopback only, data kept in the folder between
starts. Not run where no Docker engine is available: there the private broker is the one that is tested. Linux
only, because the host's network is shared, so that the broker reaches a guard on loopback.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

from tdn.errors import BrokerUnavailable
from tdn.local.broker import LOOPBACK_ONLY, BrokerPorts, BrokerTls, render_configuration

IMAGE = "rabbitmq:4-management"


def docker_runs() -> bool:
    """Whether an engine answers."""
    try:
        import docker

        client = docker.from_env(timeout=5)
        try:
            return bool(client.ping())
        finally:
            client.close()
    except Exception:  # whatever is wrong with an engine, the answer is that there is none
        return False


class ContainerBroker:
    """`PrivateBroker` by way of testcontainers. The container's id is kept in the folder, so that a later
    command finds it again."""

    def __init__(
        self,
        folder: Path,
        ports: BrokerPorts,
        tls: BrokerTls,
        guard_url: str,
        *,
        nodename: str = "tdn@localhost",
    ) -> None:
        self.folder = folder.absolute()
        self.ports = ports
        self.tls = tls
        self.guard_url = guard_url
        self.nodename = nodename
        self._id_path = self.folder / "container.id"

    @property
    def pid(self) -> int | None:
        """The broker's pid as the host sees it, while it runs."""
        container = self._container()
        return int(container.attrs["State"]["Pid"]) or None if container is not None else None

    def alive(self) -> bool:
        container = self._container()
        return container is not None and container.status == "running"

    def write_configuration(self) -> str | None:
        for name in ("data", "log"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        # RabbitMQ's HTTP backend alone: where a container is needed there is no Erlang to compile ours with.
        render_configuration(self.folder, ports=self.ports, tls=self.tls, guard_url=self.guard_url)
        return None

    def start(self, *, timeout_seconds: float = 60.0) -> None:
        if self.alive():
            return
        self.stop()
        if not (self.folder / "rabbitmq.conf").exists():
            self.write_configuration()
        # Ryuk removes containers when the process that started them ends; `tdn up` ends on purpose.
        os.environ["TESTCONTAINERS_RYUK_DISABLED"] = "true"
        try:
            from testcontainers.core.config import testcontainers_config
            from testcontainers.core.container import DockerContainer

            testcontainers_config.ryuk_disabled = True
            container = (
                DockerContainer(IMAGE)
                # As us: the files it writes are then ours, and it can read the key, which is nobody else's.
                .with_kwargs(network_mode="host", user=f"{os.getuid()}:{os.getgid()}")
                .with_env("HOME", str(self.folder / "data"))
                .with_env("RABBITMQ_NODENAME", self.nodename)
                .with_env("RABBITMQ_CONFIG_FILE", str(self.folder / "rabbitmq.conf"))
                .with_env("RABBITMQ_ADVANCED_CONFIG_FILE", str(self.folder / "advanced.config"))
                .with_env("RABBITMQ_ENABLED_PLUGINS_FILE", str(self.folder / "enabled_plugins"))
                .with_env("RABBITMQ_MNESIA_BASE", str(self.folder / "data"))
                .with_env("RABBITMQ_LOG_BASE", str(self.folder / "log"))
                .with_env("RABBITMQ_DIST_PORT", str(self.ports.dist))
                .with_env("ERL_EPMD_PORT", str(self.ports.epmd))
                .with_env("ERL_EPMD_ADDRESS", "127.0.0.1")
                .with_env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", LOOPBACK_ONLY)
            )
            # At their own paths, because the rendered configuration names them so.
            container.with_volume_mapping(str(self.folder), str(self.folder), "rw")
            for parent in {path.absolute().parent for path in (self.tls.root, self.tls.chain, self.tls.key)}:
                if parent != self.folder:
                    container.with_volume_mapping(str(parent), str(parent), "ro")
            container.start()
        except Exception as error:  # testcontainers and docker raise a dozen unrelated kinds
            raise BrokerUnavailable(f"the broker's container does not start: {error}") from error
        self._id_path.write_text(container.get_wrapped_container().id)
        try:
            self._wait_until_listening(time.monotonic() + timeout_seconds)
        except BaseException:
            self.kill_hard()
            raise

    def stop(self) -> None:
        """SIGTERM, then removed; its data stays in the folder. Harmless when there is none."""
        self._remove(grace_seconds=30)

    def kill_hard(self) -> None:
        self._remove(grace_seconds=0)

    def _wait_until_listening(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            container = self._container()
            if container is None or container.status != "running":
                break
            try:
                with socket.create_connection(("127.0.0.1", self.ports.amqps), timeout=1.0):
                    return
            except OSError:
                time.sleep(0.2)
        container = self._container()
        said = container.logs(tail=15).decode("utf-8", "replace") if container is not None else "it is gone"
        raise BrokerUnavailable(f"the broker's container does not serve AMQPS on {self.ports.amqps}:\n{said}")

    def _remove(self, *, grace_seconds: int) -> None:
        container = self._container()
        if container is not None:
            container.stop(timeout=grace_seconds)
            container.remove(force=True, v=True)
        self._id_path.unlink(missing_ok=True)

    def _container(self) -> Any:
        """The remembered container as the engine describes it now; None when there is none."""
        try:
            container_id = self._id_path.read_text().strip()
        except FileNotFoundError:
            return None
        import docker
        from docker.errors import DockerException, NotFound

        try:
            return docker.from_env().containers.get(container_id)
        except NotFound:
            return None
        except DockerException as error:
            raise BrokerUnavailable(f"the Docker engine does not answer: {error}") from error
