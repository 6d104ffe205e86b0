"""T38: sessions: which masters are spoken to over loopback, and what becomes of Spark's own errors."""

from __future__ import annotations

import os
import shlex
from typing import Any

import pytest

from spark import session
from tdn.errors import BrokerUnavailable, TrustError


@pytest.mark.parametrize(
    ("master", "near"),
    [
        ("local[*]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:7077", True),
        ("sc://localhost", True),
        ("spark://spark.example.org:7077", False),
        ("yarn", False),
        ("k8s://https://10.0.0.1:6443", False),
    ],
)
def test_only_what_is_on_this_machine_is_told_a_loopback_driver(master: str, near: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor on another machine would look for its driver on its own."""
    assert session.is_near(master) is near
    # Set first, so that what is set below is taken back.
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_SUBMIT_ARGS", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    session._environment(near=session.is_near(master), verbose=False, light=False)
    assert os.environ.get("SPARK_LOCAL_IP") == ("127.0.0.1" if near else None)
    assert os.environ["PYSPARK_PYTHON"]


def test_a_jvm_that_only_hands_out_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python does all the work, on this machine, the JVM leaves it the processor; and what somebody set is kept."""
    for light in (True, False):
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "")
        monkeypatch.delenv("PYSPARK_SUBMIT_ARGS")
        session._environment(near=True, verbose=False, light=light)
        words = shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])
        assert words[2] == "--driver-java-options"
        assert ("-XX:TieredStopAtLevel=1" in words[3].split()) is light
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf a=b pyspark-shell")
    session._environment(near=True, verbose=False, light=True)
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == "--conf a=b pyspark-shell"


def test_nobody_to_work(spark: Any) -> None:
    """A master without workers: a message, not a wait for ever. A local session has no executor but its driver."""
    with pytest.raises(BrokerUnavailable, match=r"gave no executor within 0 s: .*--timeout"):
        session.require_executor(spark.sparkContext, 0.2)


def test_errors_of_the_jvm_are_ours(spark: Any) -> None:
    """A job that was given up, a call that the JVM refused, a JVM that is gone: each says what was wrong."""
    with pytest.raises(BrokerUnavailable, match="the Spark job failed: ZeroDivisionError: division by zero"), session.explaining():
        spark.sparkContext.parallelize([1], 1).map(lambda one: one / 0).collect()
    with pytest.raises(BrokerUnavailable, match=r"failed: java\.lang\.ClassNotFoundException: nowhere"), session.explaining():
        spark.sparkContext._jvm.java.lang.Class.forName("nowhere")
    with pytest.raises(BrokerUnavailable, match="refused"), session.explaining():
        raise ConnectionRefusedError(111, "Connection refused")


def test_a_file_that_spark_cannot_read(spark: Any, tmp_path: Any) -> None:
    (tmp_path / "part.parquet").write_bytes(b"PAR1 and nothing of it PAR1")
    with pytest.raises(TrustError, match="index the archive anew"), session.explaining():
        spark.read.schema("a INT").parquet(str(tmp_path)).collect()


def test_what_a_task_finds_damaged_is_told_so() -> None:
    """Tasks read files by themselves: what they say of one comes with a traceback of theirs."""
    raised = Exception("Job aborted.\nTraceback (most recent call last):\n  File x\ntdn.errors.TrustError: a file of the index is damaged; index the archive anew\n")
    found = session.explained(raised)
    assert isinstance(found, TrustError)
    assert found.message == "a file of the index is damaged; index the archive anew"
