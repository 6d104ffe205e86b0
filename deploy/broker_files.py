"""The broker's files for deploy/, rendered from the templates in broker_config/, so that they say what every test runs against.

    python -m deploy.broker_files            # write deploy/broker/ and the block in deploy/kubernetes/10-broker.yaml
    python -m deploy.broker_files --check    # exit 1 when they are not what the templates say

`deploy/broker/` is for a RabbitMQ in a container or from a package: compose mounts it, and on a machine of its own it goes to /etc/rabbitmq. A guard is
asked on loopback in either case. In Kubernetes the cluster operator sets some of it itself (`OPERATOR_SETS`), and bounds the rest.
"""

from __future__ import annotations

import argparse
import string
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from tdn.local.broker import REMEMBERING_BACKEND, template_folder

FOLDER = Path(__file__).parent / "broker"
MANIFEST = Path(__file__).parent / "kubernetes" / "10-broker.yaml"
FILES = ("rabbitmq.conf", "advanced.config", "enabled_plugins", "definitions.json")

_BEGIN = "    # --- written by `python -m deploy.broker_files`: from here"
_END = "    # --- to here"

PEERS = tuple(f"rabbit@rabbit-{number}" for number in (1, 2, 3))

#: One broker beside one guard, in a container or on a machine.
PLACES: Mapping[str, str] = {
    "listen_address": "0.0.0.0",  # noqa: S104  # clients of the network connect from elsewhere, with certificates
    "amqps_port": "5671",
    # The guard alone uses it, and shares the loopback.
    "management_address": "127.0.0.1",
    "management_port": "15671",
    "root": "/etc/rabbitmq/tdn/trust.pem",
    "chain": "/etc/rabbitmq/tdn/cert.pem",
    "key": "/etc/rabbitmq/tdn/key.pem",
    "definitions": "/etc/rabbitmq/definitions.json",
    "guard_url": "https://127.0.0.1:7443",
    "guard_name": "localhost",
    # Compiled by the broker's own Erlang: in the image `tdn-broker`, or by hand where RabbitMQ comes from packages.
    "auth_backend": REMEMBERING_BACKEND,
    "peers": "\n".join(f"cluster_formation.classic_config.nodes.{number} = {peer}" for number, peer in enumerate(PEERS, 1)),
}

_TLS = "/etc/rabbitmq-tls"
#: The same in a pod of the cluster operator, which puts its TLS secrets there.
IN_PODS: Mapping[str, str] = {**PLACES, "root": f"{_TLS}/ca.crt", "chain": f"{_TLS}/tls.crt", "key": f"{_TLS}/tls.key"}

#: What the operator writes from `spec.tls` and `spec.replicas`, or what has no place in a pod: not to be said twice. From the operator's own
#: configmap.go (github.com/rabbitmq/cluster-operator, internal/resource) and its page "Using the RabbitMQ Cluster Kubernetes Operator".
OPERATOR_SETS = (
    *("listeners.tcp", "listeners.ssl.", "ssl_options.cacertfile", "ssl_options.certfile", "ssl_options.keyfile", "ssl_options.verify"),
    *("management.ssl.port", "management.ssl.cacertfile", "management.ssl.certfile", "management.ssl.keyfile"),
    *("cluster_partition_handling", "cluster_formation.", "disk_free_limit.", "vm_memory_high_watermark."),
    # Logs go to the console there, by the image's own default.
    "log.",
)
#: The operator's schema refuses a longer one (`+kubebuilder:validation:MaxLength` of `additionalConfig`).
MOST_CHARACTERS = 2000


def render(name: str, values: Mapping[str, str] = PLACES) -> str:
    return string.Template((template_folder() / name).read_text("utf-8")).substitute(values)


def settings(text: str) -> dict[str, str]:
    """A rabbitmq.conf as names and values."""
    lines = [line.partition("=") for raw in text.splitlines() if (line := raw.strip()) and not line.startswith("#")]
    return {name.strip(): value.strip() for name, _, value in lines}


def additional_config() -> str:
    """rabbitmq.conf for the operator: settings alone, without what it writes itself."""
    found = settings(render("rabbitmq.conf", IN_PODS))
    text = "".join(f"{name} = {value}\n" for name, value in found.items() if not name.startswith(OPERATOR_SETS))
    if len(text) > MOST_CHARACTERS:
        raise SystemExit(f"the operator takes {MOST_CHARACTERS} characters of additionalConfig, and this is {len(text)}")
    return text


def block() -> str:
    """What stands between the marks in the manifest."""
    plugins = render("enabled_plugins").strip().strip("[].").split(",")
    # The operator turns management on by itself.
    listed = "".join(f"      - {name.strip()}\n" for name in plugins if name.strip() != "rabbitmq_management")
    advanced = "\n".join(line for line in render("advanced.config", IN_PODS).splitlines() if not line.startswith("%%"))
    return (
        f"{_BEGIN}\n    additionalPlugins:\n{listed}"
        f"    additionalConfig: |\n{textwrap.indent(additional_config(), ' ' * 6)}"
        f"    advancedConfig: |\n{textwrap.indent(advanced, ' ' * 6)}\n{_END}\n"
    )


def manifest() -> str:
    text = MANIFEST.read_text("utf-8")
    before, _, rest = text.partition(f"{_BEGIN}\n")
    _, _, after = rest.partition(f"{_END}\n")
    return f"{before}{block()}{after}"


def expected() -> dict[Path, str]:
    """Every file that is written here, and what is to stand in it."""
    return {**{FOLDER / name: render(name) for name in FILES}, MANIFEST: manifest()}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.broker_files", description="Render the broker's files for deploy/.")
    parser.add_argument("--check", action="store_true", help="only say whether they are up to date")
    arguments = parser.parse_args(argv)
    stale = {path: text for path, text in expected().items() if not path.exists() or path.read_text("utf-8") != text}
    if not arguments.check:
        for path, text in stale.items():
            path.write_text(text, "utf-8")
        return 0
    for path in stale:
        print(f"error: {path.name} is not what broker_config/ says; run `python -m deploy.broker_files`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
