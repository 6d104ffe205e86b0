"""The architecture as imports: they point one way, and pure folders touch nothing outside."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: What each part may use, as house-style.md draws it: errors <- protocol <- trust <- rules, queries <- store, bus <- replica <- node,
#: guard <- local, cli; entity_client uses protocol, trust, queries, bus. Added to that drawing, with the reason:
#: `replica` (the log followed into a store, shared by node and guard) stands between bus and node; `local` and `tdn.cli` use
#: entity_client, because the operator sends its statements as any client does; entity_client's own CLI prints with tdn.cli.output;
#: local and cli reach down to everything, as the edge does (local reads a node's policy from its file); `sample` makes signed records of its own network, and nothing below cli uses it;
#: `snapshots` makes stores from files and files from stores; `local` trims the log, for which it reads archives and uses the guard's way to the broker;
#: `archive` reads stores, and spark reads archives; spark's cluster is started and found like the network's own processes;
#: `home_form` (of which version a home is) knows errors only, because an entity's command looks at it too;
#: `environment` (the variables, and what they may say) knows errors only, as does `machine` (what a disk or a port says when it fails); `doctor` looks at everything, and cli alone asks it;
#: `settings_file` (how files that people write are read and checked) knows errors only: bus reads where the network is with it, and local its own files;
#: `confined` (processes that can be killed) knows errors only, and is used by whoever evaluates strangers' queries: node, entity_client and spark;
#: `observe` (metrics, trails, traces) knows errors only, and is told by whoever has something to show.
MAY_USE: dict[str, set[str]] = {
    "tdn.errors": set(),
    "tdn.machine": {"tdn.errors"},
    "tdn.home_form": {"tdn.errors"},
    "tdn.environment": {"tdn.errors"},
    "tdn.settings_file": {"tdn.errors"},
    "tdn.protocol": {"tdn.errors"},
    "tdn.confined": {"tdn.errors"},
    "tdn.observe": {"tdn.errors"},
    "tdn.trust": {"tdn.errors", "tdn.protocol"},
    "tdn.rules": {"tdn.errors", "tdn.protocol", "tdn.trust"},
    "tdn.queries": {"tdn.errors", "tdn.protocol"},
    "tdn.store": {"tdn.errors", "tdn.machine", "tdn.protocol", "tdn.trust", "tdn.rules", "tdn.queries"},
    "tdn.bus": {"tdn.errors", "tdn.environment", "tdn.settings_file", "tdn.protocol", "tdn.trust"},
    "tdn.replica": {"tdn.errors", "tdn.observe", "tdn.protocol", "tdn.trust", "tdn.rules", "tdn.store", "tdn.bus"},
    "tdn.node": {
        *("tdn.errors", "tdn.protocol", "tdn.trust", "tdn.rules", "tdn.queries", "tdn.confined", "tdn.store", "tdn.bus"),
        *("tdn.replica", "tdn.snapshots", "tdn.machine", "tdn.observe"),
    },
    "tdn.guard": {
        *("tdn.errors", "tdn.machine", "tdn.observe", "tdn.protocol", "tdn.trust", "tdn.rules", "tdn.store", "tdn.bus"),
        "tdn.replica",
    },
    "entity_client": {"tdn.errors", "tdn.observe", "tdn.protocol", "tdn.trust", "tdn.queries", "tdn.bus", "tdn.confined"},
    "entity_client.cli": {"tdn.errors", "tdn.protocol", "tdn.trust", "tdn.queries", "tdn.bus", "entity_client", "tdn.cli.output", "tdn.home_form"},
    "tdn.archive": {"tdn.errors", "tdn.protocol", "tdn.trust", "tdn.rules", "tdn.store"},
    "tdn.snapshots": {"tdn.errors", "tdn.machine", "tdn.protocol", "tdn.trust", "tdn.rules", "tdn.store"},
    "spark": {
        *("tdn.errors", "tdn.protocol", "tdn.trust", "tdn.rules", "tdn.queries", "tdn.confined", "tdn.archive"),
    },
    "spark.cluster": {"tdn.errors", "tdn.local"},
    "spark.cli": {"tdn.errors", "tdn.protocol", "tdn.queries", "tdn.local", "tdn.cli", "tdn.cli.output", "spark", "spark.cluster"},
    "tdn.local": {
        *("tdn.errors", "tdn.protocol", "tdn.trust", "tdn.rules", "tdn.store", "tdn.bus", "tdn.node", "entity_client"),
        *("tdn.archive", "tdn.guard", "tdn.snapshots", "tdn.observe", "tdn.home_form", "tdn.environment", "tdn.settings_file", "tdn.machine"),
    },
    "tdn.sample": {"tdn.errors", "tdn.protocol", "tdn.trust", "tdn.rules", "tdn.archive"},
    "tdn.doctor": {
        *("tdn.errors", "tdn.machine", "tdn.protocol", "tdn.trust", "tdn.rules", "tdn.store", "tdn.bus", "tdn.guard", "tdn.local"),
        "tdn.home_form",
    },
    "tdn.cli.output": {"tdn.errors", "tdn.machine", "tdn.protocol"},
    "tdn.cli": {
        *("tdn.errors", "tdn.protocol", "tdn.trust", "tdn.rules", "tdn.queries", "tdn.store", "tdn.bus", "tdn.replica"),
        *("tdn.node", "tdn.guard", "tdn.archive", "tdn.snapshots", "tdn.local", "tdn.sample", "entity_client", "tdn.cli.output"),
        *("tdn.machine", "tdn.doctor", "tdn.observe", "tdn.environment", "tdn.settings_file"),
    },
}

#: Folders that are pure: time, randomness and files are passed in. The exceptions are named, each with its reason.
PURE = ("tdn.protocol", "tdn.trust", "tdn.rules", "tdn.queries")
EFFECTS = {
    "socket",
    "ssl",
    "asyncio",
    "threading",
    "subprocess",
    "os",
    "pathlib",
    "time",
    "random",
    "secrets",
    "sqlite3",
    "logging",
}
ALLOWED_EFFECTS = {
    ("tdn.protocol.schemas", "pathlib"): "the contract is read from files, once",
    ("tdn.protocol.names", "secrets"): "sessions' names cannot be guessed",
    ("tdn.trust.envelope", "secrets"): "fresh message ids",
    ("tdn.trust.credentials", "pathlib"): "loads keys from a folder",
    ("tdn.trust.private_files", "pathlib"): "reads keys",
    ("tdn.trust.private_files", "os"): "whose a key is, and who may read it",
    ("tdn.trust.openings", "secrets"): "salts, so that equal lists have unequal digests",
    ("tdn.trust.sealed", "secrets"): "nonces, keys for nobody, and their order",
    ("tdn.trust.grants", "secrets"): "fresh ids of grants",
    ("tdn.trust.messages", "secrets"): "nonces",
    (
        "tdn.queries.saxon",
        "os",
    ): "Saxon takes the time zone from the environment when it starts, and dies with a fork; no file is touched",
}
#: Engines that evaluate strangers' queries: loaded in queries alone, where each is told what it may not do.
ENGINES = {"elementpath", "lxml", "re2", "sqlglot", "saxonche"}


def modules() -> list[tuple[str, Path]]:
    return [
        (".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), path)
        for package in ("tdn", "entity_client", "spark")
        for path in sorted((ROOT / package).rglob("*.py"))
    ]


def imports(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            # `from tdn.bus import log` may name a module; the longer name tells the part as well as the shorter.
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def part_of(module: str) -> str | None:
    """The most particular part of the map that a module belongs to."""
    fitting = [part for part in MAY_USE if module == part or module.startswith(f"{part}.")]
    return max(fitting, key=len, default=None)


@pytest.mark.parametrize(("module", "path"), modules(), ids=[name for name, _ in modules()])
def test_imports_point_one_way(module: str, path: Path) -> None:
    own = part_of(module)
    if own is None:
        assert module == "tdn", f"{module} is in no part of the map; add it to MAY_USE"
        return
    used = {part_of(name) for name in imports(path) if name.split(".")[0] in ("tdn", "entity_client", "spark")} - {None, own}
    assert used <= MAY_USE[own], f"{module} uses {sorted(str(part) for part in used - MAY_USE[own])}"


def test_the_map_has_no_cycle() -> None:
    """One way: the parts can be put in an order in which each uses only what stands before it."""
    left = dict(MAY_USE)
    while left:
        ready = [part for part, used in left.items() if not used & left.keys()]
        assert ready, f"a cycle among {sorted(left)}"
        for part in ready:
            del left[part]


@pytest.mark.parametrize(
    ("module", "path"),
    [(name, path) for name, path in modules() if name.startswith(PURE)],
    ids=[name for name, _ in modules() if name.startswith(PURE)],
)
def test_pure_folders_have_no_effects(module: str, path: Path) -> None:
    used = {name.split(".")[0] for name in imports(path)} & EFFECTS
    assert {effect for effect in used if (module, effect) not in ALLOWED_EFFECTS} == set()


@pytest.mark.parametrize(("module", "path"), modules(), ids=[name for name, _ in modules()])
def test_engines_belong_to_queries(module: str, path: Path) -> None:
    if not module.startswith("tdn.queries"):
        assert {name.split(".")[0] for name in imports(path)} & ENGINES == set()


def test_rules_take_no_time_from_the_clock() -> None:
    """What `apply` needs was logged before: no clock, no randomness, no environment in rules."""
    for module, path in modules():
        if module.startswith("tdn.rules"):
            text = path.read_text("utf-8")
            for word in (".now(", "utcnow", "uuid4", "urandom", "environ", "token_hex", "open("):
                assert word not in text, f"{module} has {word}"


def test_every_folder_says_what_it_promises() -> None:
    for module, path in modules():
        assert ast.get_docstring(ast.parse(path.read_text("utf-8"))), f"{module} has no docstring"
