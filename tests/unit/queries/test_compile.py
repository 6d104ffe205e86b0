"""The languages by name, and a process that has to have everything loaded."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from tdn.errors import QueryError
from tdn.queries.compile import LANGUAGES, compile_query


def test_an_unknown_language() -> None:
    """T13."""
    with pytest.raises(QueryError, match="'sparql' is not a query language; there are string, regex, sql, xpath, xquery"):
        compile_query("sparql", "x")


def test_the_same_text_is_compiled_once() -> None:
    assert compile_query("regex", "compiled-once") is compile_query("regex", "compiled-once")


@pytest.mark.parametrize("xquery", [False, True])
def test_after_the_warm_up_nothing_is_opened(xquery: bool) -> None:
    """A process that searches can open no file once it is ready: every language works all the same."""
    program = f"""
    import os, resource
    from tdn.queries import compile
    compile.warm_up(xquery={xquery})
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, lowest))
    from tdn.queries.model import Subject
    moment = "2027-01-01T00:00:00Z"
    subject = Subject("u", "topic", "a", "a", "i", moment, moment, {{"kind": "xml", "xml": "<r><p>Zürich 9</p></r>"}}, "s")
    queries = {{
        "string": "ZÜRICH", "regex": r"\\pL+ \\d", "sql": "descriptor_kind = 'xml' AND created <= '2027-01-01T00:00:00Z'",
        "xpath": "tokenize(//p, ' ')[2] = '9' and exists(//p[string-length(.) > 3])",
        "xquery": "for $p in //p where ends-with($p, '9') order by $p return <hit>{{string($p)}}</hit>",
    }}
    for language, text in queries.items():
        if language != "xquery" or {xquery}:
            assert compile.compile_query(language, text).matches(subject), language
    try:
        open("/etc/hostname")
    except OSError:
        print("ok")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "ok\n", done.stderr


def test_every_language_is_there() -> None:
    for language in LANGUAGES:
        compile_query(language, "1 = 1" if language == "sql" else "a")
