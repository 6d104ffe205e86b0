"""T38: one `up` or `down` at a time: a second one finds what the first has started. Without Spark: processes that do nothing stand for its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark import cluster as clusters
from spark.cluster import Cluster, Running
from tdn.local.home import Home


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    def spawn(self: Cluster, name: str, *_: str) -> None:
        self.process(name).spawn(["sleep", "600"], env={"PATH": "/usr/bin:/bin"}, cwd=self.folder)

    monkeypatch.setattr(Cluster, "_spawn", spawn)
    monkeypatch.setattr(clusters, "_alive_workers", lambda web: 1)
    made = Cluster(Home(tmp_path / "home"))
    yield made
    made.down()


@pytest.mark.parametrize("act", ["up", "down"])
def test_a_second_one_waits_for_the_first(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, act: str) -> None:
    found: list[Any] = []
    second = threading.Thread(target=lambda: found.append(Cluster(Home(cluster.folder.parent)).up(1) if act == "up" else cluster.down()))

    def starting(*_: object) -> None:
        # Between the master's start and the file that says that it runs.
        if not second.ident:
            second.start()
            # It would be done with its mischief in a moment.
            second.join(1.0)
            assert second.is_alive()
            assert all(cluster.process(name).alive() for name in ("master", "worker-1"))

    monkeypatch.setattr(Cluster, "_await", starting)
    running, started = cluster.up(1)
    second.join(30.0)
    assert started
    if act == "up":
        assert found == [(running, False)]
        assert isinstance(cluster.running(), Running)
    else:
        assert found == [True]
        assert cluster.running() is None


def test_nothing_to_stop(tmp_path: Path) -> None:
    """Leaves no folder either."""
    assert Cluster(Home(tmp_path / "home")).down() is False
    assert not (tmp_path / "home").exists()
