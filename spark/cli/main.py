"""`tdn-spark`: archives of the log on Spark: index, search in bulk, one question, a cluster on this machine, a report."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spark.cluster import Cluster
from tdn.cli import output
from tdn.cli.archive import trusted
from tdn.cli.output import add_globals, add_json, emit, note, record, table
from tdn.errors import Absent, Refused, UsageError
from tdn.local.home import Home
from tdn.protocol.names import check_id
from tdn.protocol.times import parse_time
from tdn.queries.compile import LANGUAGES
from tdn.queries.times import ANY_TIME

_TIMES = ("created-after", "created-before", "expires-after", "expires-before", "valid-at-least", "valid-at-most")


def build_parser() -> argparse.ArgumentParser:
    parser = output.Parser(prog="tdn-spark", description="Search archives of a topic discovery network, in bulk, on Spark.")
    add_globals(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    index = commands.add_parser("index", help="verify an archive and add what is new in it to an index")
    index.add_argument("--archive", required=True, metavar="DIR", help="what `tdn archive export` wrote; a folder or s3a://…")
    index.add_argument("--index", required=True, metavar="DIR", help="made if it is not there; a folder or s3a://…")
    index.set_defaults(perform=_index)

    search = commands.add_parser("search", help="run a file of queries over an index")
    search.add_argument("--index", required=True, metavar="DIR")
    search.add_argument("--queries", type=Path, required=True, metavar="FILE", help="one JSON object a line: id, language and query, times; or times alone")
    search.add_argument("--out", type=_folder, required=True, metavar="DIR", help="a folder that is not there yet, and that all workers share")
    search.add_argument("--format", choices=("jsonl", "parquet"), default="jsonl", help="of the matches (default: jsonl)")
    search.add_argument("--advertisements", action="store_true", help="put the signed bytes into every row")
    search.set_defaults(perform=_search)

    query = commands.add_parser("query", help="one query over an index on this machine, at once, without Spark")
    query.add_argument("--index", required=True, metavar="DIR")
    # A query, a time filter, or both, as `entity discover` has them.
    languages = query.add_mutually_exclusive_group()
    for language in LANGUAGES:
        languages.add_argument(f"--{language}", metavar=language[0].upper())
    for name in _TIMES:
        query.add_argument(f"--{name}", metavar="D" if name.startswith("valid") else "T")
    query.add_argument("--limit", type=int, default=100, metavar="N", help="default: 100; 0: all")
    query.set_defaults(perform=_query)

    for command in (search, query):
        who = command.add_mutually_exclusive_group(required=True)
        who.add_argument("--as", dest="entity", type=check_id, metavar="NAME", help="what this entity may see")
        who.add_argument("--operator", action="store_true", help="everything")
        command.add_argument("--at", type=parse_time, metavar="TIME", help="the topics of a past moment (default: now)")

    cluster = commands.add_parser("cluster", help="a Spark cluster on this machine")
    acts = cluster.add_subparsers(dest="act", required=True, metavar="ACT")
    up = acts.add_parser("up", help="start a master and workers on loopback; prints the master's address")
    up.add_argument("--workers", type=int, default=2, metavar="N", help="default: 2")
    up.add_argument("--connect", action="store_true", help="also a Spark Connect server, whose session stays warm")
    up.set_defaults(perform=_up)
    down = acts.add_parser("down", help="stop them; harmless when nothing runs")
    down.set_defaults(perform=_down)

    report = commands.add_parser("report", help="draw a small set of plots of an index into one HTML file")
    report.add_argument("--index", required=True, metavar="DIR")
    report.add_argument("--out", type=Path, required=True, metavar="FILE.html")
    report.set_defaults(perform=_report)

    for command in (index, search):
        command.add_argument(
            "--master", metavar="URL", help="local[N], spark://…, sc://…, yarn, k8s://…, or `cluster`: this home's (default: spark-submit's, or local[*])"
        )
    for command in (index, search, query, report):
        command.add_argument("--trust", type=Path, metavar="PEM", help="trusted roots (default: those of the home)")
    for command in (index, search, query, report, up, down):
        add_json(command)
    return parser


def run() -> None:
    """Entry point of the `tdn-spark` command."""
    sys.exit(output.run(build_parser()))


def _index(arguments: argparse.Namespace) -> None:
    roots = trusted(arguments)
    from spark.index.building import build, entries_of
    from spark.index.store import Index
    from spark.places import Place

    archive, index = Place(arguments.archive), Index(Place(arguments.index))
    # Before Spark is started for nothing.
    entries_of(archive, roots)
    index.require_ours()
    with _session(arguments, light=True) as (spark, progress):
        built = build(spark, archive, index, roots, progress=progress)
    value = {
        "index": str(index.place),
        "segments": built.segments,
        "records": built.records,
        "advertisements": built.advertisements,
        "rejected": built.rejected,
        "last": built.last,
    }
    if arguments.json:
        emit(value)
    else:
        record(value)
    if built.rejected:
        note(f"{built.rejected} records were rejected; the table `rejected` says why")


def _search(arguments: argparse.Namespace) -> int:
    roots = trusted(arguments)
    from spark.index.store import Index
    from spark.places import Place
    from spark.search import asked
    from spark.search.running import search, search_nothing

    if arguments.out.exists():
        raise UsageError(f"{arguments.out} is there already; name a folder that is not")
    index = Index(Place(arguments.index))
    index.require(roots)
    queries, faulty = asked.read_file(arguments.queries)
    whose: dict[str, Any] = {"entity": arguments.entity, "at": arguments.at, "now": datetime.now(UTC)}
    if not queries and index.place.local is not None:
        found = search_nothing(index, roots, faulty, arguments.out, **whose)
    else:
        with _session(arguments) as (spark, progress):
            found = search(
                spark,
                index,
                roots,
                queries,
                faulty,
                arguments.out,
                form=arguments.format,
                signed=arguments.advertisements,
                progress=progress,
                **whose,
            )
    ran = [one for one in found.queries if "error" not in one]
    if arguments.json:
        emit({"out": str(arguments.out), **found.as_object()})
    else:
        record(
            {
                "out": str(arguments.out),
                "topics": found.topics,
                "queries": f"{len(ran)} ran, {len(found.queries) - len(ran)} did not",
                "matches": found.matches,
                "seconds": f"{found.seconds:.1f}",
            }
        )
    for one in found.queries:
        if "error" in one:
            note(f"query {one['id']}: {one['error']}")
    if not ran:
        raise Refused("no query could run; the summary says why of each")
    return 0


def _query(arguments: argparse.Namespace) -> None:
    roots = trusted(arguments)
    from spark.index.store import Index
    from spark.places import Place
    from spark.search.asked import Asked, times
    from spark.search.single import query

    if arguments.limit < 0:
        raise UsageError("--limit is a number of topics, or 0 for all")
    language = next((name for name in LANGUAGES if getattr(arguments, name) is not None), "")
    asked_times = times({name.replace("-", "_"): getattr(arguments, name.replace("-", "_")) for name in _TIMES})
    if not language and asked_times == ANY_TIME:
        raise UsageError("say what to look for: --string, --regex, --sql, --xpath or --xquery, or a time such as --created-after")
    asked = Asked(0, "query", language, getattr(arguments, language) if language else None, asked_times)
    found, more = query(
        Index(Place(arguments.index)),
        roots,
        asked,
        entity=arguments.entity,
        at=arguments.at,
        now=datetime.now(UTC),
        limit=arguments.limit or None,
    )
    if arguments.json:
        for topic in found:
            emit(topic)
    elif found:
        table(
            [(topic["uuid"], topic["creator"], topic["expires"], _about(topic["descriptor"])) for topic in found],
            ("UUID", "CREATOR", "EXPIRES", "ABOUT"),
        )
    if more:
        note(f"there are more; see --limit (these are the first {arguments.limit})")


def _about(descriptor: dict[str, Any]) -> str:
    kind = descriptor["kind"]
    if kind == "properties":
        return ", ".join(f"{name}={value}" for name, value in sorted(descriptor["properties"].items()))[:100]
    return str(descriptor.get(kind, kind))[:100].replace("\n", " ")


def _cluster(arguments: argparse.Namespace) -> Cluster:
    home = Home(arguments.home)
    home.require_version()
    return Cluster(home)


def _up(arguments: argparse.Namespace) -> None:
    found, started = _cluster(arguments).up(arguments.workers, connect=arguments.connect)
    if not started:
        note(f"already running, {found.workers} workers alive; nothing was changed")
    value: dict[str, Any] = {"master": found.master, "workers": found.workers}
    if found.connect:
        value["connect"] = found.connect
    if arguments.json:
        emit(value)
    else:
        record(value)


def _down(arguments: argparse.Namespace) -> None:
    note("stopped" if _cluster(arguments).down() else "nothing was running")


def _report(arguments: argparse.Namespace) -> None:
    roots = trusted(arguments)
    from spark.index.store import Index
    from spark.places import Place
    from spark.report import write

    write(Index(Place(arguments.index)), roots, arguments.out)
    if arguments.json:
        emit({"report": str(arguments.out)})
    else:
        print(arguments.out)


def _folder(text: str) -> Path:
    """A folder of the file system. As a path, `s3a://b/x` would quietly be a folder `s3a:` here."""
    if "://" in text:
        raise argparse.ArgumentTypeError(f"results go to a folder that this machine and all workers share, not to {text}; copy them there afterwards")
    return Path(text)


@contextmanager
def _session(arguments: argparse.Namespace, *, light: bool = False) -> Iterator[tuple[Any, Callable[[str], None]]]:
    """A Spark session, and a way to say how far it is."""
    from spark.session import EXECUTOR_SECONDS, session

    cluster, master = _cluster(arguments), arguments.master
    if master == "cluster":
        running = cluster.running()
        if running is None:
            raise Absent("no cluster of this home runs; `tdn-spark cluster up` starts one")
        master = running.connect or running.master
    if master is not None:
        cluster.settings(master)
    with _Progress() as progress:
        progress("starting Spark")
        with session(master, executor_seconds=max(EXECUTOR_SECONDS, arguments.timeout), verbose=arguments.verbose, light=light) as spark:
            progress.watch(spark)
            yield spark, progress


class _Progress:
    """One line on a terminal, written over: what is being done, and how many of its tasks are. Nothing elsewhere."""

    def __init__(self) -> None:
        self._shows = sys.stderr.isatty()
        self._what = ""
        self._spark: Any = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Progress:
        if self._shows:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._shows:
            self._thread.join()
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def __call__(self, what: str) -> None:
        self._what = what

    def watch(self, spark: Any) -> None:
        self._spark = spark

    def _run(self) -> None:
        while not self._ended.wait(0.2):
            # One that went on in the next line would stay there.
            line = f"{self._what}{self._tasks()}"[: (os.get_terminal_size(sys.stderr.fileno()).columns or 80) - 1]
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)

    def _tasks(self) -> str:
        try:
            tracker = self._spark.sparkContext.statusTracker()
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        except Exception:
            # There is none before it has started, nor by Spark Connect, and it may be gone.
            return ""
        return "".join(f"  [{stage.numCompletedTasks}/{stage.numTasks}]" for stage in stages if stage is not None)


if __name__ == "__main__":
    run()
