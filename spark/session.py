"""A Spark session on this machine, on a cluster, or by Spark Connect; with what our jobs need, and without Spark's chatter.

`local[*]` is the default, and under `spark-submit` the master that it was given. A `spark://` master gets our code as a zip; its workers need our packages'
dependencies (deploy/spark.md). `sc://` is a session that is warm already (`tdn-spark cluster up` starts one).
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tdn.errors import BrokerUnavailable, TdnError, TrustError, UsageError

#: How long a master may take to answer before we say that it does not. Spark itself would try for a minute.
_ANSWER_SECONDS = 3.0
#: How long a standalone master may take to give us an executor. Spark itself would wait for ever, and say so only where nobody looks.
EXECUTOR_SECONDS = 60.0
#: What is wrong, in an error of a JVM or of a worker's Python, whose first line only says whose it is.
_CAUSE = re.compile(r"^(?:: )?([\w.]+(?:Error|Exception): .+)$", re.MULTILINE)
#: A JVM that only hands out tasks: without the second compiler, which took 10 processor seconds from the tasks of an index of 270,000 records (150 in all).
_LIGHT = " -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # A million advertisements are 200 MB: small enough parts for every core to have some, and to be lost without much loss.
    "spark.sql.files.maxPartitionBytes": str(16 * 1024**2),
    # An index has many small files. At Spark's four megabytes for opening one, a task would have three of them, and its own start would cost as much.
    "spark.sql.files.openCostInBytes": str(512 * 1024),
    # What each query costs for a batch, however few of its topics are left to it, is shared by more topics.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.parquet.compression.codec": "zstd",
    # No text of ours has any `${…}` to put values for.
    "spark.sql.variable.substitute": "false",
    # As other engines read it too: a moment in UTC.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.shuffle.partitions": "16",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    # What one hostile query does to a worker's process must not add up: see `search/xml_process.py`.
    "spark.task.maxFailures": "4",
}
_HERE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@contextlib.contextmanager
def session(
    master: str | None, *, executor_seconds: float = EXECUTOR_SECONDS, verbose: bool = False, light: bool = False
) -> Iterator[Any]:
    """A session, ended afterwards. BrokerUnavailable where the master does not answer, or has nobody to work for it.

    `light` is for jobs of which Python does all the work: on this machine alone, Spark's own processor time is then kept low (`_LIGHT`)."""
    # Set by `spark-submit` for what it runs: its JVM is there, with a master and settings that are not ours to replace.
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if master is None and not submitted:
        master = "local[*]"
    if master is not None:
        require_answer(master)
    near = master is not None and is_near(master)
    if not submitted:
        _environment(near=near, verbose=verbose, light=light and master is not None and master.startswith("local"))
    # Loaded here: it takes a second, and commands that need no Spark go without.
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder.appName("tdn-spark")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    with contextlib.ExitStack() as stack:
        try:
            if master is not None and master.startswith("sc://"):
                spark = builder.remote(master).getOrCreate()
                stack.callback(_stop, spark)
                spark.addArtifacts(stack.enter_context(code()), pyfile=True)
            else:
                for name, value in (_HERE if near else {"spark.ui.showConsoleProgress": "false"}).items():
                    builder = builder.config(name, value)
                if master is not None:
                    builder = builder.master(master)
                spark = builder.getOrCreate()
                stack.callback(_stop, spark)
                # Whoever submits by hand sends it by `--py-files`: the driver needs it before it gets here.
                if not submitted and not spark.sparkContext.master.startswith("local"):
                    spark.sparkContext.addPyFile(stack.enter_context(code()))
                if spark.sparkContext.master.startswith("spark://"):
                    require_executor(spark.sparkContext, executor_seconds)
        except TdnError:
            raise
        except Exception as error:
            raise BrokerUnavailable(f"Spark did not start at {master or 'the master of spark-submit'}: {first_line(error)}") from error
        with explaining():
            yield spark


def is_near(master: str) -> bool:
    """Whether all of it is on this machine, and can speak over loopback. Elsewhere an executor would be told that its driver is at its own."""
    return master.startswith("local") or urlsplit(master).hostname in _LOOPBACK


def require_executor(context: Any, seconds: float) -> None:
    """Wait for somebody to work. Not where executors come and go with the work."""
    if context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
        return
    deadline = time.monotonic() + seconds
    # The driver is listed too.
    while context._jsc.sc().getExecutorMemoryStatus().size() < 2:
        if time.monotonic() > deadline:
            raise BrokerUnavailable(
                f"{context.master} gave no executor within {seconds:.0f} s: it has no workers, or others use all of them; look at the master, or wait longer with --timeout"
            )
        time.sleep(0.1)


def _stop(spark: Any) -> None:
    # What is dead need not be stopped, and why it died is the error that is on its way.
    with contextlib.suppress(Exception):
        spark.stop()


def require_answer(master: str) -> None:
    """Find out at once that nobody is there."""
    if master.startswith("local"):
        return
    parts = urlsplit(master)
    if parts.scheme not in ("spark", "sc", "yarn", "k8s") and master != "yarn":
        raise UsageError(f"{master!r} is no Spark master; write local[2], spark://HOST:PORT, sc://HOST:PORT, yarn or k8s://…")
    if parts.scheme not in ("spark", "sc"):
        return
    try:
        port = parts.port or (7077 if parts.scheme == "spark" else 15002)
        with socket.create_connection((parts.hostname or "", port), _ANSWER_SECONDS):
            pass
    except (OSError, ValueError) as error:
        raise BrokerUnavailable(f"no Spark answers at {master}: {first_line(error)}") from error


def _environment(*, near: bool, verbose: bool, light: bool) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if near:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if not verbose:
        quiet = Path(__file__).parent / "log4j2.properties"
        os.environ.setdefault(
            "PYSPARK_SUBMIT_ARGS",
            f'--driver-memory 2g --driver-java-options "-Dlog4j2.configurationFile=file:{quiet}{_LIGHT if light else ""}" pyspark-shell',
        )


@contextlib.contextmanager
def code() -> Iterator[str]:
    """Our packages as a zip, for executors that have only what we depend on."""
    import tdn
    from tdn.protocol.schemas import contract_folder

    roots = [Path(__file__).parent, Path(tdn.__file__).parent]
    with tempfile.TemporaryDirectory(prefix="tdn-code-") as folder:
        path = Path(folder) / "tdn-code.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            for root in roots:
                for source in sorted(root.rglob("*.py")):
                    packed.write(source, source.relative_to(root.parent))
            for schema in sorted(contract_folder().iterdir(), key=lambda found: found.name):
                if schema.name.endswith(".json"):
                    packed.writestr(f"tdn/_schemas/{schema.name}", schema.read_bytes())
        yield str(path)


@contextlib.contextmanager
def explaining() -> Iterator[None]:
    """Spark's errors become ours: those that it has names for, those of its JVM, and that the JVM is gone."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise explained(error) from error


def explained(error: Any) -> TdnError:
    """Spark's error as one of ours."""
    text = first_line(error)
    if not text.startswith("[") and (cause := _CAUSE.search(str(error))):
        text = cause[1][:400]
    if "PATH_NOT_FOUND" in text or "does not exist" in text:
        return UsageError(f"Spark cannot read what it was told to: {text}")
    if text.startswith("tdn.errors.TrustError: "):
        return TrustError(text.partition(": ")[2])
    if "FAILED_READ_FILE" in text:
        return TrustError(f"a file of the index is damaged; index the archive anew: {text}")
    if type(error).__name__ in ("SparkConnectGrpcException", "RetriesExceeded"):
        return BrokerUnavailable(f"the Spark session was lost: {text}")
    return BrokerUnavailable(f"the Spark job failed: {text}")


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:400]
