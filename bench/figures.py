"""Percentiles and the table that every benchmark prints."""

from __future__ import annotations

from collections.abc import Sequence


def percentile(samples: Sequence[float], share: float) -> float:
    """The sample below which a share of all lies (nearest rank)."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [max(len(heading), *(len(row[column]) for row in texts)) for column, heading in enumerate(headings)]
    print(f"\n{title}\n")
    for row in [list(headings), ["-" * width for width in widths], *texts]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _text(cell: object) -> str:
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)
