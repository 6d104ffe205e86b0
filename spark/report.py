"""A few plots of an index in one HTML file that needs nothing else: topics over time, by kind, institution and lifetime, and how deep trees are."""

from __future__ import annotations

import html
import io
import secrets
import warnings
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from spark.index.store import Index
from spark.places import UNFINISHED
from spark.search.engines import DuckTables
from tdn.errors import UsageError
from tdn.trust.certificates import TrustRoots

#: Institutions that are named; the others are one bar.
_NAMED = 15
#: Deepest tree that is told apart. Hierarchies end far above it.
_DEEPEST = 1_000

_LIFETIMES = (("an hour", 3_600), ("a day", 86_400), ("a week", 604_800), ("30 days", 2_592_000), ("a year", 31_536_000))

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body{{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}}svg{{max-width:100%;height:auto}}
table{{border-collapse:collapse}}td{{padding:.1em 1.5em .1em 0}}figure{{margin:2em 0}}figcaption{{color:#555}}</style></head>
<body><h1>{title}</h1>{summary}{figures}</body></html>
"""

Draw = Callable[[Any, DuckTables], str]


def write(index: Index, roots: TrustRoots, path: Path) -> None:
    """Draw an index on this machine."""
    if index.place.local is None:
        raise UsageError(f"{index.place} is not on this machine; copy it here, or use its tables in a notebook")
    commits = index.require(roots)
    with closing(DuckTables(index, commits)) as tables:
        figures = "".join(_figure(title, draw, tables) for title, draw in _FIGURES.items())
        title = f"Archive of network {commits[-1].network[:12]}…, {commits[-1].last} records"
        page = _PAGE.format(title=html.escape(title), summary=_summary(tables, commits[-1].until), figures=figures)
    try:
        _replace(path, page)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def _replace(path: Path, page: str) -> None:
    """The whole page or what was there before, also on a disk that is full. What is no file, such as /dev/stdout, is written as it is."""
    if path.exists() and not path.is_file():
        path.write_text(page, "utf-8")
        return
    # Of a link, what it leads to.
    path = path.resolve()
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}{UNFINISHED}")
    try:
        fresh.write_text(page, "utf-8")
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def _summary(tables: DuckTables, until: str) -> str:
    counted = {
        "advertised": "SELECT count(*) AS n FROM advertisements",
        "creators": "SELECT count(DISTINCT creator) AS n FROM advertisements",
        "institutions": "SELECT count(DISTINCT institution) AS n FROM advertisements",
        "withdrawn": "SELECT count(DISTINCT uuid) AS n FROM changes WHERE state = 'withdrawn'",
        "grants": "SELECT count(DISTINCT id) AS n FROM grants",
        "records rejected": "SELECT count(*) AS n FROM rejected",
    }
    rows = [*((what, f"{tables.rows(sql)[0]['n']:,}") for what, sql in counted.items()), ("last record judged at", until)]
    return f"<table>{''.join(f'<tr><td>{what}</td><td>{html.escape(str(value))}</td></tr>' for what, value in rows)}</table>"


def _figure(title: str, draw: Draw, tables: DuckTables) -> str:
    # Without a screen, whatever the machine has.
    import matplotlib

    matplotlib.use("svg")
    # The same index gives the same file.
    matplotlib.rcParams["svg.hashsalt"] = "tdn"
    # Letters stay letters: the reader's browser has fonts for names in every script, the machine that draws may not.
    matplotlib.rcParams["svg.fonttype"] = "none"
    matplotlib.rcParams["font.family"] = "sans-serif"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 3.6), layout="constrained")
    try:
        caption = draw(axes, tables)
        axes.spines[["top", "right"]].set_visible(False)
        picture = io.StringIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
            figure.savefig(picture, format="svg", metadata={"Date": None})
    finally:
        pyplot.close(figure)
    svg = picture.getvalue()
    return f"<figure><h2>{html.escape(title)}</h2>{svg[svg.index('<svg') :]}<figcaption>{html.escape(caption)}</figcaption></figure>"


def _over_time(axes: Any, tables: DuckTables) -> str:
    span = tables.rows("SELECT min(created) AS first, max(created) AS last FROM advertisements")[0]
    if span["first"] is None:
        return "There are none."
    days = (span["last"] - span["first"]).total_seconds() / 86_400
    unit = "month" if days > 180 else "day" if days > 3 else "hour" if days > 0.1 else "minute"
    rows = tables.rows(
        f"SELECT date_trunc('{unit}', created) AS begin, count(*) AS n FROM advertisements GROUP BY begin ORDER BY begin"  # noqa: S608  # one of four words above
    )
    found = {row["begin"]: row["n"] for row in rows}
    begins = [rows[0]["begin"]]
    # Also those of which there is no row: nothing was advertised then.
    while begins[-1] < rows[-1]["begin"]:
        begins.append(_next(begins[-1], unit))
    counts = [found.get(begin, 0) for begin in begins]
    # The last one has a width too.
    begins.append(_next(begins[-1], unit))
    counts.append(counts[-1])
    axes.step(begins, counts, where="post")
    axes.fill_between(begins, counts, step="post", alpha=0.2)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylabel(f"advertised each {unit}")
    return f"Advertised each {unit}, by the time of minting (UTC)."


def _next(begin: datetime, unit: str) -> datetime:
    if unit == "month":
        return (begin.replace(day=1) + timedelta(days=32)).replace(day=1)
    return begin + timedelta(**{f"{unit}s": 1})


def _by_kind(axes: Any, tables: DuckTables) -> str:
    rows = tables.rows("SELECT kind, descriptor_kind, count(*) AS n FROM advertisements GROUP BY ALL ORDER BY n DESC")
    _bars(axes, [(f"{row['kind']}, {row['descriptor_kind']}", row["n"]) for row in rows])
    return "Topics and collections, by what describes them."


def _by_institution(axes: Any, tables: DuckTables) -> str:
    rows = tables.rows("SELECT institution, count(*) AS n FROM advertisements GROUP BY institution ORDER BY n DESC, institution")
    named = [(row["institution"], row["n"]) for row in rows[:_NAMED]]
    if rest := sum(row["n"] for row in rows[_NAMED:]):
        named.append((f"{len(rows) - _NAMED} others", rest))
    _bars(axes, named)
    return f"The {min(_NAMED, len(rows))} institutions with most."


def _by_lifetime(axes: Any, tables: DuckTables) -> str:
    cases = " ".join(f"WHEN seconds <= {seconds} THEN {number}" for number, (_, seconds) in enumerate(_LIFETIMES))
    rows = tables.rows(
        f"SELECT CASE {cases} ELSE {len(_LIFETIMES)} END AS class, count(*) AS n FROM"  # noqa: S608  # whole numbers of ours
        " (SELECT epoch(expires) - epoch(created) AS seconds FROM advertisements) lifetimes GROUP BY class"
    )
    found = {row["class"]: row["n"] for row in rows}
    names = [*(f"up to {name}" for name, _ in _LIFETIMES), "longer"]
    _bars(axes, [(name, found.get(number, 0)) for number, name in enumerate(names)])
    return "For how long they were minted; renewals are not counted."


def _by_depth(axes: Any, tables: DuckTables) -> str:
    rows = tables.rows(
        "WITH RECURSIVE placed(uuid, depth) AS (SELECT uuid, 1 FROM advertisements WHERE parent IS NULL AND kind = 'topic'"  # noqa: S608  # a whole number of ours
        f" UNION ALL SELECT a.uuid, depth + 1 FROM advertisements a JOIN placed p ON a.parent = p.uuid WHERE depth < {_DEEPEST})"
        " SELECT depth, count(*) AS n FROM placed GROUP BY depth ORDER BY depth"
    )
    _bars(axes, [(f"level {row['depth']}", row["n"]) for row in rows])
    return "Topics by their level; those without a parent are on the first."


def _bars(axes: Any, rows: list[tuple[str, int]]) -> None:
    # A dollar sign would begin a formula.
    names = [name.replace("$", r"\$") for name, _ in rows]
    bars = axes.barh(names, [count for _, count in rows])
    axes.bar_label(bars, labels=[f"{count:,}" for _, count in rows], padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.figure.set_figheight(0.8 + 0.3 * max(1, len(rows)))


_FIGURES: dict[str, Draw] = {
    "Over time": _over_time,
    "By kind": _by_kind,
    "By institution": _by_institution,
    "By lifetime": _by_lifetime,
    "Depth of hierarchies": _by_depth,
}
