"""`python -m bench [creation|throughput|replay|discovery|trees|grants|bulk|footprint|load …]`: all of them, or those named, on a private network of its own. A part
of the grants' by `grants.publishing`, `grants.revocation` or `grants.decisions`, of bulk discovery's by `bulk.index`, `bulk.regex`, `bulk.sql`, `bulk.xpath`,
`bulk.xquery`, `bulk.workers` or `bulk.growth`."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from bench import bulk, creation, discovery, footprint, grants, load, replay, throughput, trees
from tdn.local.home import Home
from tdn.local.network import Network

BENCHMARKS = {"creation": creation.measure, "throughput": throughput.measure, "replay": replay.measure}
#: They make networks of their own, with filled stores or more brokers.
FILLED = {
    "discovery": discovery.run,
    "trees": trees.run,
    "grants": grants.run,
    "bulk": bulk.run,
    "footprint": footprint.run,
    "load": load.run,
}
PARTS = {f"grants.{name}": section for name, section in grants.SECTIONS.items()} | {f"bulk.{name}": section for name, section in bulk.SECTIONS.items()}


def main() -> int:
    known = [*BENCHMARKS, *FILLED]
    wanted = sys.argv[1:] or known
    if unknown := [name for name in wanted if name not in (*known, *PARTS)]:
        print(f"unknown: {', '.join(unknown)}; there are {', '.join([*known, *PARTS])}", file=sys.stderr)
        return 2
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}; figures from shared machines: read the ratios")
    folder = Path(tempfile.mkdtemp(prefix="tdn-bench-"))
    try:
        for name in wanted:
            if (section := (FILLED | PARTS).get(name)) is not None:
                section(folder / name)
                continue
            network = Network(Home(folder / name))
            network.up()
            try:
                asyncio.run(BENCHMARKS[name](network.home))
            finally:
                network.down()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
