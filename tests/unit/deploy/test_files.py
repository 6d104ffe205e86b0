"""The files in deploy/ against the schemas of those who read them, and against each other. What only an engine can show is not shown here: deploy/README.md says so."""

from __future__ import annotations

import ast
import importlib.resources
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema.validators import validator_for

from deploy import broker_files
from tdn.cli.main import build_parser
from tdn.local.broker import REMEMBERING_BACKEND
from tdn.observe.metrics import GuardMetrics, NodeMetrics

DEPLOY = Path(__file__).parents[3] / "deploy"
UNITS = sorted(path for path in (DEPLOY / "systemd").iterdir() if path.suffix in (".service", ".timer"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
#: The oldest version that a manifest must fit, and the newest that the schemas know: operators run either.
KUBERNETES = ("1.29", kubernetes_validate.latest_version())

COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
OBJECTS: list[dict[str, Any]] = [one for path in MANIFESTS for one in yaml.safe_load_all(path.read_text("utf-8"))]


def named(kind: str, name: str) -> dict[str, Any]:
    (found,) = [one for one in OBJECTS if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


# --- compose ---


def compose_errors(value: Any) -> list[str]:
    vendored = importlib.resources.files("check_jsonschema.builtin_schemas.vendor") / "compose-spec.json"
    schema = json.loads(vendored.read_text("utf-8"))
    return [error.message for error in validator_for(schema)(schema).iter_errors(value)]


def test_compose_fits_the_compose_specification() -> None:
    assert compose_errors(COMPOSE) == []
    assert compose_errors({"services": {"one": {"imagee": "x"}}}) != []


def test_compose_names_only_what_it_defines() -> None:
    for name, service in COMPOSE["services"].items():
        assert {one["source"] for one in service.get("configs", [])} <= COMPOSE["configs"].keys(), name
        assert {one["source"] for one in service.get("secrets", [])} <= COMPOSE["secrets"].keys(), name
        assert set(service.get("networks", [])) <= COMPOSE["networks"].keys(), name
        assert set(service.get("depends_on", [])) <= COMPOSE["services"].keys(), name
    for config in COMPOSE["configs"].values():
        assert (DEPLOY / config["file"]).is_file()


def test_each_broker_has_a_guard_on_its_own_loopback() -> None:
    brokers = {name for name, service in COMPOSE["services"].items() if service["image"].startswith("tdn-broker:")}
    guards = {name: service for name, service in COMPOSE["services"].items() if "guard" in service.get("command", [])}
    assert len(brokers) == 3
    places = {name: COMPOSE["services"][name]["network_mode"].removeprefix("service:") for name in brokers}
    assert sorted(service["network_mode"].removeprefix("service:") for service in guards.values()) == sorted(places.values())
    assert len(set(places.values())) == 3
    for service in guards.values():
        words = service["command"]
        assert f"https://{words[words.index('--listen') + 1]}" == broker_files.PLACES["guard_url"]
    for name, place in places.items():
        assert COMPOSE["services"][name]["environment"] == {"RABBITMQ_NODENAME": f"rabbit@{place}"}
        assert COMPOSE["services"][place]["hostname"] == place, "the name by which other brokers and clients reach it"
    assert [f"rabbit@{places[name]}" for name in sorted(brokers)] == list(broker_files.PEERS)


def test_a_network_that_is_shared_is_held_by_what_has_no_reason_to_end() -> None:
    """The engine starts a container that died in a new network, and leaves who had joined the former one there: a guard whom no broker reaches any more."""
    shared = {service["network_mode"].removeprefix("service:") for service in COMPOSE["services"].values() if "network_mode" in service}
    assert len(shared) == 3
    for name in shared:
        holder = COMPOSE["services"][name]
        assert (holder["entrypoint"], holder["command"]) == (["sleep", "infinity"], []), name
        assert holder["init"] is True, "as process 1 it would not hear that it is to end"
        assert not {"volumes", "secrets", "configs", "environment"} & holder.keys(), name
    for name, service in COMPOSE["services"].items():
        if (place := service.get("network_mode", "").removeprefix("service:")) in shared:
            # Made anew itself, by `up` after a change, it takes those along who have joined it.
            assert service["depends_on"][place] == {"condition": "service_started", "restart": True}, name
            assert not {"ports", "networks", "hostname"} & service.keys(), "these are the holder's"


#: Where nodes and guards show their numbers in their containers.
OBSERVED = 9464


def test_the_prometheus_of_compose_fetches_from_each_node_and_guard() -> None:
    """By the names that services have on the network: a guard's is its broker's, whose network it has. The id is that of the process there."""
    written = yaml.safe_load((DEPLOY / COMPOSE["configs"]["prometheus.yml"]["file"]).read_text("utf-8"))
    fetched: dict[str, set[tuple[str, str]]] = {}
    for job in written["scrape_configs"]:
        for config in job["static_configs"]:
            (target,) = config["targets"]
            fetched.setdefault(job["job_name"], set()).add((target, config["labels"]["id"]))
    there: dict[str, set[tuple[str, str]]] = {"tdn-node": set(), "tdn-guard": set()}
    watcher = COMPOSE["services"]["prometheus"]
    for name, service in COMPOSE["services"].items():
        words = service.get("command", [])
        for role in ("node", "guard"):
            if words[2:4] == [role, "--id"]:
                host = service.get("network_mode", f"service:{name}").removeprefix("service:")
                assert set(watcher["networks"]) <= set(COMPOSE["services"][host]["networks"]), name
                there[f"tdn-{role}"].add((f"{host}:{OBSERVED}", words[4]))
                assert f"http://127.0.0.1:{OBSERVED}/readyz" in service["healthcheck"]["test"][-1], name
    assert fetched == there
    assert [len(targets) for targets in fetched.values()] == [3, 3]
    places = {one["source"]: Path(one["target"]) for one in watcher["configs"]}
    assert f"--config.file={places['prometheus.yml']}" in watcher["command"]
    for rules in written["rule_files"]:
        assert places["prometheus.yml"].parent / rules == places["alerts.yml"]
    assert (DEPLOY / COMPOSE["configs"]["alerts.yml"]["file"]).name == "alerts.yml"
    (data,) = [word.removeprefix("--storage.tsdb.path=") for word in watcher["command"] if word.startswith("--storage.tsdb.path=")]
    (volume,) = watcher["volumes"]
    assert volume == f"prometheus:{data}"
    assert "prometheus" in COMPOSE["volumes"]
    assert watcher["profiles"] == ["observe"]


def test_numbers_are_for_the_network_of_compose_alone() -> None:
    """The homes are carried so that it reaches them, and nothing outside does: whoever fetches is not asked who it is."""
    text = (DEPLOY / "README.md").read_text("utf-8")
    carried = re.findall(r"^    python -m deploy\.carry .*--observe (\S+)", text, re.M)
    assert carried == [f"0.0.0.0:{OBSERVED}"] * 4
    assert "--profile observe up -d" in text
    for name, service in COMPOSE["services"].items():
        for port in service.get("ports", []):
            assert not port.endswith(f":{OBSERVED}"), name
    assert COMPOSE["services"]["prometheus"]["ports"] == ["127.0.0.1:9090:9090"], "nor does it ask, so not where brokers are published"


def test_no_container_has_more_than_it_needs() -> None:
    for name, service in COMPOSE["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert "privileged" not in service, name
        assert service.get("network_mode") != "host", name
        assert "mem_limit" in service, name
        assert "pids_limit" in service, name
        # A tag that is a version, not one that moves.
        assert re.fullmatch(r"[a-z./-]+:v?\d+\.\d+\.\d+(-[a-z]+)?", service["image"]), name
        assert all(":" in mount and not mount.startswith("/") for mount in service.get("volumes", [])), name


# --- Kubernetes ---


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("one", [one for one in OBJECTS if not one["apiVersion"].startswith("rabbitmq.com/")], ids=lambda one: f"{one['kind']} {one['metadata']['name']}")
def test_manifests_fit_the_schemas_of_kubernetes(one: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(one, version, strict=True)


def test_a_wrong_manifest_is_noticed() -> None:
    wrong = json.loads(json.dumps(named("StatefulSet", "tdn-node")))
    wrong["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES[0], strict=True)


#: The fields of a RabbitmqCluster that may be used here, from the operator's own types (github.com/rabbitmq/cluster-operator,
#: api/v1beta1/rabbitmqcluster_types.go) and from "Using the RabbitMQ Cluster Kubernetes Operator" (rabbitmq.com/kubernetes/operator/using-operator).
#: Its schema comes in no package, so this is less than a schema: names, not types.
OPERATOR_FIELDS: dict[str, set[str]] = {
    "": {
        *("replicas", "image", "imagePullSecrets", "service", "persistence", "resources", "affinity", "tolerations", "rabbitmq", "tls", "override"),
        *("skipPostDeploySteps", "terminationGracePeriodSeconds", "secretBackend"),
    },
    "persistence": {"storageClassName", "storage"},
    "tls": {"secretName", "caSecretName", "disableNonTLSListeners"},
    "rabbitmq": {"additionalPlugins", "additionalConfig", "advancedConfig", "envConfig", "erlangInetConfig"},
    "override": {"statefulSet", "service"},
    "override.statefulSet": {"metadata", "spec"},
    "override.statefulSet.spec": {"replicas", "selector", "template", "volumeClaimTemplates", "serviceName", "podManagementPolicy", "updateStrategy"},
    "override.statefulSet.spec.template": {"metadata", "spec"},
}


@pytest.mark.parametrize("place", OPERATOR_FIELDS)
def test_the_cluster_has_fields_that_the_operator_knows(place: str) -> None:
    value = named("RabbitmqCluster", "tdn")["spec"]
    for word in filter(None, place.split(".")):
        value = value[word]
    assert value.keys() <= OPERATOR_FIELDS[place]


@pytest.mark.parametrize("version", KUBERNETES)
def test_what_the_cluster_takes_from_kubernetes_fits_it(version: str) -> None:
    spec = named("RabbitmqCluster", "tdn")["spec"]
    changed = spec["override"]["statefulSet"]["spec"]
    pod = {**changed["template"]["spec"], "affinity": spec["affinity"]}
    pod["containers"][0]["resources"] = spec["resources"]
    kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}, version, strict=True)
    for claim in changed["volumeClaimTemplates"]:
        kubernetes_validate.validate(claim, version, strict=True)


def test_the_operator_takes_the_configuration() -> None:
    rabbitmq = named("RabbitmqCluster", "tdn")["spec"]["rabbitmq"]
    assert len(rabbitmq["additionalConfig"]) <= broker_files.MOST_CHARACTERS
    assert all(re.fullmatch(r"\w{1,100}", plugin) for plugin in rabbitmq["additionalPlugins"])


def test_every_setting_of_the_template_holds_in_a_pod() -> None:
    """Said in the manifest, or set by the operator from `spec.tls`: nothing that keeps strangers out is lost on the way."""
    cluster = named("RabbitmqCluster", "tdn")["spec"]
    said = broker_files.settings(cluster["rabbitmq"]["additionalConfig"])
    template = broker_files.settings(broker_files.render("rabbitmq.conf", broker_files.IN_PODS))
    missing = {name for name in template if name not in said}
    assert all(name.startswith(broker_files.OPERATOR_SETS) for name in missing)
    assert all(said[name] == template[name] for name in said)
    # What the operator sets, it sets only if asked.
    assert cluster["tls"] == {"secretName": "tdn-broker-tls", "caSecretName": "tdn-broker-tls", "disableNonTLSListeners": True}
    assert said["auth_backends.1"] == REMEMBERING_BACKEND, "the plain one broke down under a thousand entities: docs/scale.md"
    assert not [name for name in said if name.startswith("auth_backends.") and name != "auth_backends.1"]
    assert said["ssl_options.fail_if_no_peer_cert"] == "true"
    assert said["auth_mechanisms.1"] == "EXTERNAL"


def test_every_pod_is_confined() -> None:
    cluster = named("RabbitmqCluster", "tdn")["spec"]["override"]["statefulSet"]["spec"]["template"]["spec"]
    nodes = named("StatefulSet", "tdn-node")["spec"]["template"]["spec"]
    ours = [one for pod in (cluster, nodes) for one in [*pod["initContainers"], *pod["containers"]] if one["name"] != "rabbitmq"]
    assert len(ours) == 4
    for one in ours:
        context = one["securityContext"]
        assert context["readOnlyRootFilesystem"], one["name"]
        assert context["allowPrivilegeEscalation"] is False, one["name"]
        assert context["capabilities"] == {"drop": ["ALL"]}, one["name"]
        assert "memory" in one["resources"]["limits"], one["name"]
    assert nodes["securityContext"]["runAsNonRoot"]
    assert nodes["automountServiceAccountToken"] is False
    assert all(one["securityContext"]["runAsNonRoot"] for one in ours[:2])


def test_nobody_ends_what_is_only_slow_to_start() -> None:
    """A node that makes its indexes anew takes minutes, and one that is ended begins again: it is asked whether it lives, and has time for its first answer."""
    cluster = named("RabbitmqCluster", "tdn")["spec"]["override"]["statefulSet"]["spec"]["template"]["spec"]
    nodes = named("StatefulSet", "tdn-node")["spec"]["template"]["spec"]
    probed = [one for pod in (cluster, nodes) for one in pod["containers"] if one["name"] in ("guard", "node")]
    assert len(probed) == 2
    for one in probed:
        first, later = one["startupProbe"], one["livenessProbe"]
        assert first["httpGet"] == later["httpGet"], one["name"]
        assert later["httpGet"] == {"path": "/healthz", "port": one["ports"][0]["name"]}, "not /readyz, which fails for as long as the broker is away"
        assert first["periodSeconds"] * first["failureThreshold"] >= 300, one["name"]
    for name in ("guard-1", "node-1"):
        check = COMPOSE["services"][name]["healthcheck"]
        assert check["start_period"].endswith("m"), name
        assert int(check["start_period"][:-1]) >= 15, name
    for unit in ("tdn-node@.service", "tdn-guard@.service"):
        said = directives(DEPLOY / "systemd" / unit)
        assert (said["Type"], "WatchdogSec" in said) == (["exec"], False), unit


def test_policies_and_budgets_select_the_pods_that_are_there() -> None:
    broker = {"app.kubernetes.io/name": "tdn", "app.kubernetes.io/component": "rabbitmq"}
    node = named("StatefulSet", "tdn-node")["spec"]["template"]["metadata"]["labels"]
    assert named("PodDisruptionBudget", "tdn-brokers")["spec"]["selector"]["matchLabels"] == broker
    assert named("PodDisruptionBudget", "tdn-nodes")["spec"]["selector"]["matchLabels"] == node
    assert named("NetworkPolicy", "to-brokers")["spec"]["podSelector"]["matchLabels"] == broker
    assert named("NetworkPolicy", "nodes")["spec"]["podSelector"]["matchLabels"] == node
    assert named("NetworkPolicy", "nobody")["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
    # The operator labels a pod with the cluster's name.
    assert named("RabbitmqCluster", "tdn")["metadata"]["name"] == broker["app.kubernetes.io/name"]


def test_prometheus_finds_what_the_manifests_show_and_calls_it_what_the_alerts_do() -> None:
    read = {name: yaml.safe_load((DEPLOY / f"{name}.yml").read_text("utf-8")) for name in ("prometheus", "prometheus-compose", "prometheus-kubernetes")}
    jobs = {name: [job["job_name"] for job in one["scrape_configs"]] for name, one in read.items()}
    assert jobs["prometheus"] == jobs["prometheus-compose"] == jobs["prometheus-kubernetes"] == ["tdn-node", "tdn-guard"]
    pods = (named("StatefulSet", "tdn-node")["spec"]["template"]["spec"], named("RabbitmqCluster", "tdn")["spec"]["override"]["statefulSet"]["spec"]["template"]["spec"])
    for job, pod in zip(read["prometheus-kubernetes"]["scrape_configs"], pods, strict=True):
        (kept,) = [rule for rule in job["relabel_configs"] if rule.get("action") == "keep"]
        ports = [port["name"] for one in pod["containers"] for port in one.get("ports", [])]
        assert [name for name in ports if re.fullmatch(kept["regex"], name)] == [kept["regex"]]
        assert [rule["target_label"] for rule in job["relabel_configs"] if rule is not kept] == ["id"]
        assert job["kubernetes_sd_configs"][0]["namespaces"]["names"] == [named("StatefulSet", "tdn-node")["metadata"]["namespace"]]


def alerts() -> dict[str, dict[str, Any]]:
    (group,) = yaml.safe_load((DEPLOY / "alerts.yml").read_text("utf-8"))["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def test_what_an_alert_counts_is_there_before_it_happens() -> None:
    """A counter that begins with its first event begins with 1, and has not increased: the first would be told to nobody."""
    fresh = [*NodeMetrics().registry.collect(), *GuardMetrics().registry.collect()]
    counted = [asked for rule in alerts().values() for asked in re.findall(r"(?:increase|rate)\((\w+)([^)\[]*)\[", rule["expr"])]
    assert len(counted) >= 2
    for name, labels in counted:
        wanted = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        there = [sample.value for family in fresh for sample in family.samples if sample.name == name and wanted.items() <= sample.labels.items()]
        assert there, f"{name}{labels}"
        assert set(there) == {0}


def test_prometheus_that_fetches_from_nobody_says_so() -> None:
    """Where nothing is found there is no `up` that could be 0. One for each job."""
    asked = alerts()["TdnNotFetched"]["expr"]
    jobs = {job["job_name"] for job in yaml.safe_load((DEPLOY / "prometheus.yml").read_text("utf-8"))["scrape_configs"]}
    assert set(asked.split(" or ")) == {f'absent(up{{job="{job}"}})' for job in jobs}


@pytest.mark.parametrize("name", ["prometheus", "prometheus-compose", "prometheus-kubernetes"])
def test_rules_are_looked_at_as_often_as_they_say(name: str) -> None:
    """An alert is held for at least one look: at Prometheus' own minute, one for 15 s would come after two."""
    written = yaml.safe_load((DEPLOY / f"{name}.yml").read_text("utf-8"))["global"]

    def seconds(said: str) -> int:
        return int(said[:-1]) * {"s": 1, "m": 60}[said[-1]]

    shortest = min(seconds(rule["for"]) for rule in alerts().values() if "for" in rule)
    assert seconds(written["scrape_interval"]) <= seconds(written["evaluation_interval"]) <= shortest


def panels() -> dict[str, list[str]]:
    board = json.loads((DEPLOY / "grafana" / "tdn.json").read_text("utf-8"))
    return {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in board["panels"] if panel["type"] != "row"}


def test_what_a_panel_divides_has_the_labels_of_what_it_divides_by() -> None:
    """Otherwise nothing matches, and the panel is empty, always: by a number, or by a `scalar`."""
    divided = [part for asked in panels().values() for text in asked for part in text.split(" / ")[1:]]
    assert len(divided) == 2
    assert all(re.match(r"\d+$|scalar\(", part) for part in divided)


def test_panels_show_who_is_gone_and_the_worst_of_what_is_seen() -> None:
    """The numbers of a process that ended are not there, and a panel of those that are would be green; and one node that hears nothing of a guard is enough."""
    shown = panels()
    assert shown["Ready"] == ['tdn_ready or up{job=~"tdn-.*"} * 0']
    assert shown["Sure"] == ['tdn_guard_sure or up{job="tdn-guard"} * 0']
    assert shown["Heard and fenced, as nodes see it"] == ['min(tdn_node_guards{state="heard"})', 'max(tdn_node_guards{state="fenced"})']


def test_no_panel_drops_whose_number_it_is() -> None:
    """Certificates of two processes are two numbers, and an operator must see which one ends."""
    board = json.loads((DEPLOY / "grafana" / "tdn.json").read_text("utf-8"))
    (asked,) = [target["expr"] for panel in board["panels"] for target in panel.get("targets", []) if "tdn_certificate_seconds_left" in target["expr"]]
    assert asked.startswith("min by (whose, job, id) ")


# --- the broker's files ---


def test_the_brokers_files_are_what_the_templates_say() -> None:
    for path, text in broker_files.expected().items():
        assert path.read_text("utf-8") == text, "run `python -m deploy.broker_files`"


# --- systemd ---


def directives(unit: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in unit.read_text("utf-8").splitlines():
        if "=" in line and not line.startswith("#"):
            found.setdefault(line.partition("=")[0], []).append(line.partition("=")[2])
    return found


@pytest.fixture
def analyze(tmp_path: Path) -> Any:
    if sys.platform != "linux":
        pytest.skip("units were not checked: there is no systemd on this system")
    program = shutil.which("systemd-analyze")
    assert program is not None, "systemd-analyze is missing; `deploy/setup.sh checks` installs it"
    # Everything as it is but for the command, which is not installed at its place here.
    for unit in UNITS:
        (tmp_path / unit.name).write_text(re.sub(r"^ExecStart=/opt/tdn/bin/tdn\b", "ExecStart=/bin/true", unit.read_text("utf-8"), flags=re.M))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *words], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60, env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:", "PATH": "/usr/bin:/bin", "SYSTEMD_COLORS": "0", "LC_ALL": "C.UTF-8"})

    return run


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_the_units(analyze: Any, unit: Path) -> None:
    done = analyze("verify", "--man=no", f"./{unit.name}")
    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_notices_a_wrong_unit(analyze: Any, tmp_path: Path) -> None:
    (tmp_path / "wrong.service").write_text("[Service]\nExecStart=/bin/true\nProtectSysten=strict\n")
    assert "ProtectSysten" in analyze("verify", "--man=no", "./wrong.service").stderr


@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit.suffix == ".service"], ids=lambda unit: unit.name)
def test_services_are_hardened(analyze: Any, unit: Path) -> None:
    # Tenths, of 100: what systemd calls OK ends at 50.
    done = analyze("security", "--offline=true", "--threshold=20", "--no-pager", f"./{unit.name}")
    assert done.returncode == 0, done.stdout[-300:]
    said = directives(unit)
    assert said["ProtectSystem"] == ["strict"]
    assert said["NoNewPrivileges"] == ["yes"]
    assert said["UMask"] == ["0077"]
    assert said["StateDirectoryMode"] == ["0700"]
    if said["Type"] == ["exec"]:
        assert said["RestartPreventExitStatus"] == ["2 4 5"]


# --- the image ---


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", "\n".join(line for line in (DEPLOY / "container" / "Containerfile").read_text("utf-8").splitlines() if not line.startswith("#")))
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in text.splitlines() if line.strip()]


def test_the_image_is_built_from_what_is_there() -> None:
    root = DEPLOY.parent
    ignored = (DEPLOY / "container" / "Containerfile.dockerignore").read_text("utf-8").splitlines()
    allowed = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert "*" in ignored
    copied = [words.split()[:-1] for name, words in instructions() if name == "COPY" and not words.startswith("--from")]
    for source in (source for sources in copied for source in sources):
        assert (root / source).exists(), source
        assert source in allowed or str(Path(source).parent) in allowed, f"{source} is not sent to the engine"
    stages = [words.split(" AS ")[1] for name, words in instructions() if name == "FROM"]
    for name, words in instructions():
        if name == "COPY" and words.startswith("--from="):
            assert words.split()[0].removeprefix("--from=") in stages


def test_an_image_that_traces_can_be_built() -> None:
    """Traces are an extra, which no image has by itself. The words are those that the Containerfile and the page have for it."""
    words = re.search(r"^# .*--build-arg EXTRAS=\"(.+)\"$", (DEPLOY / "container" / "Containerfile").read_text("utf-8"), re.M)
    assert words is not None
    assert f'--build-arg EXTRAS="{words[1]}"' in (DEPLOY / "README.md").read_text("utf-8")
    (begin,) = [number for number, (name, said) in enumerate(instructions()) if name == "FROM" and said.endswith(" AS locks")]
    stage = instructions()[begin:]
    assert stage[1] == ("ARG", "EXTRAS"), "one that stands before FROM has no value in a stage that does not name it"
    (run,) = [said for name, said in stage if name == "RUN" and "/run.lock" in said and "deploy.supply.lock" in said]
    assert "python -m deploy.supply.lock ${EXTRAS} > /run.lock" in run
    printed = subprocess.run([sys.executable, "-m", "deploy.supply.lock", *words[1].split()], capture_output=True, text=True, check=True, cwd=DEPLOY.parent).stdout
    assert re.search(r"^opentelemetry-exporter-otlp-proto-http==", printed, re.M)


def test_the_image_takes_hashed_packages_and_runs_as_nobody_special() -> None:
    assert re.search(r"^ARG PYTHON_IMAGE=docker\.io/library/python:3\.11\.\d+-slim-bookworm$", (DEPLOY / "container" / "Containerfile").read_text("utf-8"), re.M)
    installs = [part for name, words in instructions() if name == "RUN" for part in words.split("&&") if "pip" in part and " install " in part]
    assert len(installs) == 5
    assert all("--require-hashes" in part or "--no-index" in part for part in installs)
    final = {words.split(" AS ")[1]: number for number, (name, words) in enumerate(instructions()) if name == "FROM"}
    for target in ("tdn", "spark"):
        after = instructions()[final[target] :]
        users = [words for name, words in after if name == "USER"]
        assert users[0] == "10001:10001"
    java = [words for name, words in instructions()[: final["spark"]] if "jre" in words]
    assert not java
    assert not [name for name, _ in instructions() if name == "ADD"]


def test_both_images_of_a_manifest_are_those_that_are_built() -> None:
    version = ast.literal_eval(re.search(r"^version = (.*)$", (DEPLOY.parent / "pyproject.toml").read_text("utf-8"), re.M)[1])  # type: ignore[index]
    text = "".join(path.read_text("utf-8") for path in [*MANIFESTS, DEPLOY / "compose.yaml"])
    assert set(re.findall(r"image: (tdn[a-z-]*:\S+)", text)) == {f"tdn:{version}", f"tdn-broker:{version}", f"tdn-spark:{version}"}


def test_the_brokers_image_is_rabbitmq_with_our_module_where_it_looks_for_it() -> None:
    """Compiled by its own Erlang. Without the module a broker refuses every login."""
    text = (DEPLOY / "container" / "Containerfile").read_text("utf-8")
    assert re.search(r"^ARG RABBITMQ_IMAGE=docker\.io/library/rabbitmq:4\.\d+\.\d+-management$", text, re.M)
    stages = [number for number, (name, _) in enumerate(instructions()) if name == "FROM"]
    (begin,) = [number for number in stages if instructions()[number][1] == "${RABBITMQ_IMAGE} AS broker"]
    said = [one for number, one in enumerate(instructions()) if number > begin and not any(begin < stage <= number for stage in stages)]
    assert [name for name, _ in said] == ["LABEL", "COPY", "RUN", "ENV"], "user and entry point stay RabbitMQ's"
    copied, compiled, environment = (words for _, words in said[1:])
    source, folder = copied.split()
    assert (DEPLOY.parent / source).stem == REMEMBERING_BACKEND
    place = environment.removeprefix("RABBITMQ_SERVER_CODE_PATH=")
    assert compiled.split("&& ")[-1].split() == ["erlc", "-o", place, f"{folder}{Path(source).name}"]


def test_entities_reach_a_node_while_no_broker_answers() -> None:
    """In compose each node has a port of its own, the same inside and outside; in Kubernetes its name stays while it is not ready, which it is not then."""
    for number in (1, 2, 3):
        port = 7450 + number
        assert COMPOSE["services"][f"node-{number}"]["ports"] == [f"${{TDN_PUBLISH:-127.0.0.1}}:{port}:{port}"]
        assert f"--node n{number} --observe 0.0.0.0:{OBSERVED} --endpoint node-{number}:{port}" in (DEPLOY / "README.md").read_text("utf-8")
    service = named("Service", "tdn-node")["spec"]
    assert service["publishNotReadyAddresses"] is True
    (pod,) = named("StatefulSet", "tdn-node")["spec"]["template"]["spec"]["containers"]
    (port,) = [one["containerPort"] for one in pod["ports"] if one["name"] == "endpoint"]
    assert {"name": "endpoint", "port": port, "targetPort": "endpoint"} in service["ports"]
    clients = {"namespaceSelector": {"matchLabels": {"tdn/clients": "allowed"}}}
    assert {"ports": [{"port": port, "protocol": "TCP"}], "from": [clients]} in named("NetworkPolicy", "nodes")["spec"]["ingress"]


# --- keeping the log bounded ---


def trimming_lines(way: str) -> list[str]:
    """The commands that deploy/README.md has for one way."""
    section = (DEPLOY / "README.md").read_text("utf-8").partition("## Keeping the log bounded")[2].partition("\n## ")[0]
    part = section.partition(f"\n**{way}.**")[2].partition("\n**")[0]
    return [line.strip() for line in part.splitlines() if line.startswith("    ")]


def tdn_words(line: str) -> list[str]:
    (words,) = re.findall(r" tdn ((?:log|snapshot|archive) [^;|>]*)", line)
    return str(words).split()


def test_the_words_that_trim_are_commands_and_name_what_is_mounted() -> None:
    for way in ("Compose", "Kubernetes"):
        said = [tdn_words(line) for line in trimming_lines(way) if re.search(r" tdn (log|snapshot|archive) ", line)]
        for words in said:
            assert build_parser().parse_args(words).perform is not None
        assert [words[0] for words in said].index("snapshot") == 0, "before the export: then the archive covers it"
        guards = [words for words in said if "--snapshot" in words]
        assert len(guards) == 1
        assert guards[0][:4] == ["log", "trim", "--archive", "/var/lib/tdn-archive" if way == "Compose" else "/var/lib/tdn/archive"]
    for name, service in COMPOSE["services"].items():
        if name.startswith(("guard-", "node-")):
            assert service["volumes"][1:] == ["${TDN_HOMES:?see deploy/README.md}/archive:/var/lib/tdn-archive:ro"], name
    exported = COMPOSE["services"]["archive"]
    assert exported["command"][-1] == "/var/lib/tdn-archive"
    assert exported["volumes"][1] == "${TDN_HOMES:?see deploy/README.md}/archive:/var/lib/tdn-archive"


def test_kubernetes_commands_name_pods_and_containers_that_are_there() -> None:
    pods = {
        "tdn-node": named("StatefulSet", "tdn-node")["spec"]["template"]["spec"],
        "tdn-server": named("RabbitmqCluster", "tdn")["spec"]["override"]["statefulSet"]["spec"]["template"]["spec"],
    }
    called = re.findall(r"\$k (?:-i )?(tdn-[a-z]+)-(?:\d|\$n) -c (\w+) -- (\w+)", "\n".join(trimming_lines("Kubernetes")))
    assert {(pod, container) for pod, container, _ in called} == {("tdn-node", "node"), ("tdn-server", "guard")}
    assert {program for _, _, program in called} == {"tdn", "tar"}
    for pod, container, _ in called:
        (found,) = [one for one in pods[pod]["containers"] if one["name"] == container]
        assert "/var/lib/tdn" in {mount["mountPath"] for mount in found["volumeMounts"]}


def test_units_trim_by_what_the_page_brings() -> None:
    guard = directives(DEPLOY / "systemd" / "tdn-trim-guard@.service")
    said = "\n".join(trimming_lines("systemd"))
    for place in ("/var/lib/tdn-kept/archive", "/var/lib/tdn-kept/snapshot"):
        assert place in guard["ExecStart"][0].split()
        assert place in said
    node = directives(DEPLOY / "systemd" / "tdn-trim-node@.service")
    assert [line.split()[3] for line in node["ExecStart"]] == ["snapshot", "archive", "log"]
    for place in ("/var/lib/tdn-snapshot/snapshot", "/var/lib/tdn-archive"):
        assert place in said
        assert place in " ".join(node["ExecStart"]).split()
    # Each as whose store it writes.
    assert (node["User"], guard["User"]) == (["tdn-node"], ["tdn-guard"])


# --- no secrets ---

SECRETS = {
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY"),
    "a certificate": re.compile(r"-----BEGIN CERTIFICATE"),
    "a signed statement": re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\."),
    "a password, token or cookie with its value": re.compile(
        r"(?i)\b(?:password|passwd|secret|token|cookie|api_?key)\b\s*[=:]\s*[\"']?(?!\$|<|/|\{|file:|none\b)[A-Za-z0-9+/_-]{12,}"
    ),
    "a long random word": re.compile(r"(?<![A-Za-z0-9+/=_.-])(?=[A-Za-z0-9+/]*\d)(?=[A-Za-z0-9+/]*[A-Z])(?=[A-Za-z0-9+/]*[a-z])[A-Za-z0-9+/]{32,}"),
}
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_no_secret_is_in_the_files(path: Path) -> None:
    text = path.read_text("utf-8")
    for what, pattern in SECRETS.items():
        assert not pattern.search(text), f"{path.name} holds {what}"
    assert not any(one.get("kind") == "Secret" for one in OBJECTS), "secrets are made by commands, from files"


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN EC PRIVATE KEY-----",
        "-----BEGIN CERTIFICATE-----",
        "spark.authenticate.secret = s3cr3tthatislong",
        "password: hunter2hunter2",
        'cookie = "ABCDEFGHIJKLMNOP"',
        "eyJhbGciOiJFUzI1NiJ9.eyJ",
        "value: Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MEFCQ0RF",
    ],
)
def test_a_secret_would_be_noticed(text: str) -> None:
    assert any(pattern.search(text) for pattern in SECRETS.values())
