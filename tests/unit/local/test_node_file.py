"""`node.toml`: what an operator sets, and what is said of every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdn.bus.address import NodeAddress
from tdn.errors import UsageError
from tdn.local import node_file
from tdn.node.limits import EndpointSettings, NodeLimits
from tdn.node.policy import EVERYBODY, KINDS


def write(folder: Path, text: str) -> Path:
    (folder / node_file.FILE).write_text(text, "utf-8")
    return folder


def test_no_file_and_the_template_mean_the_defaults(tmp_path: Path) -> None:
    assert node_file.read(tmp_path) == (EVERYBODY, NodeLimits())
    node_file.write_template(tmp_path)
    assert node_file.read(tmp_path) == (EVERYBODY, NodeLimits())


def test_the_templates_comments_are_true(tmp_path: Path) -> None:
    """Every setting of the template, uncommented, is understood, and the numbers shown are the defaults."""
    node_file.write_template(tmp_path)
    lines = (tmp_path / node_file.FILE).read_text("utf-8").splitlines()
    settings = [line.removeprefix("# ") for line in lines if " = " in line]
    assert len(settings) == 14
    text = "\n".join(line.removeprefix("# ") if " = " in line and "realm" not in line else line for line in lines)
    assert node_file.read(write(tmp_path, text)) == (EVERYBODY, NodeLimits())
    policy, _ = node_file.read(write(tmp_path, f"[policy]\n{settings[0]}"))
    assert policy.answers == ("institution:physics",)


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    write(tmp_path, "[policy]\nrealm = 'X'\n")
    node_file.write_template(tmp_path)
    assert node_file.read(tmp_path)[0].stores == ("institution:X",)


def test_settings(tmp_path: Path) -> None:
    """T11: every setting reaches its place."""
    text = """
    [policy]
    answers = ["alice", "institution:Zürich"]
    stores = ["*"]
    kinds = ["xml", "sealed"]
    [limits]
    query_seconds = 2
    query_memory_mb = 256
    queries_per_second = 0.5
    queries_burst = 10
    """
    policy, limits = node_file.read(write(tmp_path, text))
    assert (policy.answers, policy.stores, policy.kinds) == (("alice", "institution:Zürich"), ("*",), ("xml", "sealed"))
    assert limits == NodeLimits(2, 256, 0.5, 10)
    assert node_file.read(write(tmp_path, "[policy]\nkinds = ['xml']"))[0].answers == ("*",)
    assert node_file.read(write(tmp_path, "[limits]\nqueries_burst = 5"))[0].kinds == KINDS


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("[policy", "Expected ']' at the end of a table declaration"),
        ("policy = 1", "policy is a section: write [policy] on a line of its own"),
        ("limits = 'x'", "limits is a section"),
        ("realm = 'X'", "'realm' stands in no section; write it below [policy]"),
        ("[polcy]\nrealm = 'X'", "[polcy] is unknown (did you mean [policy]?); there are [policy], [limits], [endpoint], [observe]"),
        ("[policy]\nrealm = 'X'\nrealm = 'Y'\n", "line 3"),
        ("[policy]\nrelm = 'X'", "policy: 'relm' is unknown (did you mean realm?); there are realm, answers, stores, kinds"),
        ("[policy]\nrealm = X", "line 2"),
        ("[policy]\nrealm = 'X'\nstores = ['*']", "leave out answers and stores"),
        ("[policy]\nanswers = ['Alice']", "'Alice' names nobody"),
        ("[policy]\nanswers = []", "policy.answers: write a list"),
        ("[policy]\nkinds = ['yaml']", "policy.kinds: write a list"),
        (
            "[limits]\nquery_secs = 1",
            "limits: 'query_secs' is unknown (did you mean query_seconds?); there are query_seconds, query_memory_mb, queries_per_second,",
        ),
        ("[limits]\nquery_seconds = 0", "limits.query_seconds: write a number from 0.01 to 3,600"),
        ("[limits]\nquery_seconds = -1.5", "write a number from 0.01 to 3,600"),
        ("[limits]\nquery_seconds = inf", "write a number from 0.01 to 3,600"),
        ("[limits]\nquery_seconds = nan", "write a number from 0.01 to 3,600"),
        ("[limits]\nquery_seconds = true", "write a number from 0.01 to 3,600"),
        ("[limits]\nquery_seconds = '5'", "write a number from 0.01 to 3,600"),
        ("[limits]\nqueries_burst = 1.5", "limits.queries_burst: write a whole number"),
        ("[limits]\nquery_memory_mb = 512.0", "limits.query_memory_mb: write a whole number"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, fragment: str) -> None:
    """Each names the file and what to write. A node does not start with half a policy."""
    with pytest.raises(UsageError) as caught:
        node_file.read(write(tmp_path, text))
    assert caught.value.message.startswith(f"{tmp_path / node_file.FILE}: ")
    assert fragment in caught.value.message


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / node_file.FILE).write_bytes(b"\xff\xfe[policy]")
    with pytest.raises(UsageError, match=r"node\.toml: "):
        node_file.read(tmp_path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / node_file.FILE).mkdir()
    with pytest.raises(UsageError, match=r"node\.toml: "):
        node_file.read(tmp_path)


def test_where_a_node_answers_by_itself(tmp_path: Path) -> None:
    """As the file says; else at the port that was chosen for it, where one was; else nowhere."""
    chosen = EndpointSettings("127.0.0.1", 7451, NodeAddress("n1", "127.0.0.1", 7451))
    assert node_file.read_endpoint(tmp_path, "n1", 7451) == chosen
    assert node_file.read_endpoint(tmp_path, "n1", None) is None
    node_file.write_template(tmp_path)
    assert node_file.read_endpoint(tmp_path, "n1", 7451) == chosen
    write(tmp_path, '[endpoint]\nlisten = "off"\n')
    assert node_file.read_endpoint(tmp_path, "n1", 7451) is None
    write(tmp_path, '[endpoint]\nlisten = "192.0.2.1:9000"\npublic = "node-1.example:443"\n')
    wanted = EndpointSettings("192.0.2.1", 9000, NodeAddress("n1", "node-1.example", 443))
    assert node_file.read_endpoint(tmp_path, "n1", 7451) == wanted
    write(tmp_path, '[endpoint]\nlisten = "[::1]:9000"\n')
    assert node_file.read_endpoint(tmp_path, "n1", None) == EndpointSettings("::1", 9000, NodeAddress("n1", "::1", 9000))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[endpoint]\nport = "1"', "endpoint: 'port' is unknown"),
        ("[endpoint]\nlisten = 7451", 'endpoint.listen: write "HOST:PORT"'),
        ('[endpoint]\nlisten = "7451"', "endpoint.listen"),
        ('[endpoint]\npublic = "host:0"', "endpoint.public"),
        ('endpoint = "off"', "endpoint is a section"),
    ],
)
def test_mistakes_about_the_endpoint(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        node_file.read(write(tmp_path, text))
