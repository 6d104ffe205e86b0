"""The last part of the demo: the log becomes an archive, a Spark cluster indexes it, and queries are run over it in bulk; by the commands, as a user does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdn.errors import TdnError
from tdn.local.home import Home

if TYPE_CHECKING:
    from tdn.cli.demo import Story

#: A JVM starts slowly, and a cluster has four.
_PATIENCE_SECONDS = 300.0

QUERIES = (
    {"id": "words", "language": "string", "query": "harbour"},
    {"id": "pattern", "language": "regex", "query": "^[a-z]+/"},
    {"id": "numbers", "language": "sql", "query": "depth > 10 OR creator = 'alice'"},
    {"id": "document", "language": "xpath", "query": "//*[@*]"},
    {"id": "mistake", "language": "regex", "query": "("},
)


def tell(home: Home, folder: Path, story: Story) -> None:
    """Whatever happens, no process stays behind."""
    bulk = _Commands(home)
    if not bulk.there("tdn-spark"):
        story.show("tdn-spark is not installed here (pip install 'tdn[spark]'), so archives and Spark are left out")
        return
    archive, index, queries, found = (folder / name for name in ("archive", "index", "queries.jsonl", "found"))
    with story.step(
        "The log becomes an archive",
        "Every record with its signed bytes, in files that a node signs for. Anybody with the trust roots can judge all of it again, offline.",
    ):
        story.command("tdn archive export --to archive; tdn archive verify archive")
        exported = bulk.run("tdn", "archive", "export", "--to", archive)
        verified = bulk.run("tdn", "archive", "verify", archive)
        story.good(f"{exported['records']} records exported, {verified['records']} judged again: same outcomes, same effects")
    try:
        with story.step("A Spark cluster on this machine", "A master and two workers on loopback, with a secret of their own."):
            story.command("tdn-spark cluster up --workers 2")
            cluster = bulk.run("tdn-spark", "cluster", "up", "--workers", "2")
            story.good(f"{cluster['workers']} workers at {cluster['master']}")
        with story.step(
            "An index, every signature verified",
            "Those of nodes, of requesters and of minting nodes. What does not hold would be rejected, with the reason.",
        ):
            story.command("tdn-spark index --archive archive --index index --master cluster")
            indexed = bulk.run("tdn-spark", "index", "--archive", archive, "--index", index, "--master", "cluster")
            story.good(f"{indexed['advertisements']} advertisements indexed, {indexed['rejected']} records rejected")
        with story.step(
            "Queries in bulk, as Bob",
            "All of them in one pass, with the answers and the access rules of a live node. One bad query stops none of the others.",
        ):
            queries.write_text("".join(json.dumps(query) + "\n" for query in QUERIES), "utf-8")
            story.command("tdn-spark search --index index --queries queries.jsonl --out found --as bob --master cluster")
            words = ("search", "--index", index, "--queries", queries, "--out", found, "--as", "bob", "--master", "cluster")
            done = bulk.run("tdn-spark", *words)
            for query in done["queries"]:
                story.show(f"{query['id']}: {query.get('error') or str(query['matches']) + ' found'}")
            if [query["id"] for query in done["queries"] if "error" in query] != ["mistake"]:
                raise TdnError("the demo expected that one query could not run")
            story.good(f"{done['matches']} matches among {done['topics']} topics that Bob may see")
    finally:
        bulk.run("tdn-spark", "cluster", "down")


class _Commands:
    """The installed commands, beside the one that runs."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._bin = Path(sys.executable).parent

    def there(self, command: str) -> bool:
        return (self._bin / command).exists()

    def run(self, command: str, *words: str | Path) -> dict[str, Any]:
        argv = [str(self._bin / command), "--home", str(self._home), "--json", *map(str, words)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=False)  # noqa: S603  # our own command, no shell
        if done.returncode != 0:
            raise TdnError(f"`{command} {words[0]}` ended with {done.returncode}: {done.stderr.strip()[-500:]}")
        result: dict[str, Any] = json.loads(done.stdout) if done.stdout.strip() else {}
        return result
