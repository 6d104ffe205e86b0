"""XQuery: what matches, what is refused and where, what only the engine finds, and what an index is told."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tdn.errors import QueryError
from tdn.protocol import descriptor
from tdn.queries.model import AllOf, AnyOf, Anything, Clue, Contains, Subject, holds
from tdn.queries.xml_lexer import MAX_NESTING, MAX_TOKENS
from tdn.queries.xquery import compile_xquery

STATION = """<?xml version="1.0" encoding="utf-8"?>
<!--made by hand-->
<station xmlns:g="urn:geo">
  <name>Roof 7</name>
  <sensor id="x42" g:place="north"><unit>C</unit><title>The &#79;cean <!-- deep -->today 🌊</title><price>9</price></sensor>
  <sensor id="x43"><unit>hPa</unit><title>Deep  sea</title><price>12.5</price><since>2026-01-02T03:04:05Z</since></sensor>
</station>"""


def topic(document: str = STATION) -> Subject:
    return subject(descriptor.xml(document))


def subject(given: descriptor.Descriptor) -> Subject:
    return Subject("u", given["kind"], "c", "o", "i", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z", given, "")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("/station", True),
        ("for $s in //sensor where $s/@id = 'x42' return $s", True),
        ("for $s in //sensor where $s/@id = 'x44' return $s", False),
        ("for $s at $n in //sensor let $p := $s/price where $n = 2 and $p > 12 order by $p descending return $s/unit", True),
        ("for $s in //sensor group by $u := $s/unit/string() where count($s) > 1 return $u", False),
        ("declare namespace geo = 'urn:geo'; //sensor[@geo:place = 'north']", True),
        ("declare default element namespace 'urn:geo'; //sensor", False),
        ("declare function local:total($n) { sum($n/price) }; local:total(//sensor) = 21.5", True),
        ("declare variable $limit := 10; //sensor[price > $limit]", True),
        ("xquery version '3.1'; declare boundary-space strip; exists(//unit)", True),
        ("<found>{//nothing}</found>", True),
        ("<found>{//sensor}</found>/sensor[@id = 'x42']", True),
        ("<a b='{1 + 1}' c=\"don''t\">it's {{ <b/> {'}'} </a> = 'x'", False),
        ("element { 'a' } { attribute b { 1 } }/@b = '1'", True),
        ("switch ((//unit)[1]) case 'C' return <a/> default return ()", True),
        ("typeswitch (/) case document-node() return true() default return false()", True),
        ("try { 1 idiv 0 } catch * { false() }", False),
        ("some $s in //sensor satisfies $s/price > 12", True),
        ("contains(string(/), 'Ocean today 🌊')", True),
        ("//title[contains(., 'deep')]", False),
        ("count(//nothing)", True),
        ("count(//nothing) > 0", False),
        ("()", False),
        ("false()", False),
        ("true()", True),
        ("(false(), false())", True),
        ("0", True),
        ("some $v in 'x' satisfies .", True),
        ("for $n in 1 to 100000000 return $n", True),
        ("//sensor[1]/price < '10'", False),
        ("//sensor[1]/price < 10", True),
        ('//unit = "h&#80;a"', True),
        ("matches((//title)[1], '^the', 'i')", True),
        # The machine's time zone does not matter, and neither does its locale.
        ("xs:dateTime('2020-01-01T00:00:00') = xs:dateTime('2020-01-01T00:00:00Z') and 'Z' lt 'a'", True),
        # What fails on a document does not match it.
        ("xs:integer(/station/name)", False),
        ("'a' + 1", False),
        ("//sensor eq 'x'", False),
        ("matches(string-join((1 to 40) ! 'a') || '!', '^(a+)+$')", False),
        ("declare function local:f($n) { 1 + local:f($n) }; local:f(1)", False),
    ],
)
def test_what_matches(text: str, match: bool) -> None:
    """T13: XQuery; true, or a result that is not empty, is a match."""
    assert compile_xquery(text).matches(topic()) is match


@pytest.mark.parametrize(
    "given",
    [
        descriptor.path("a/b"),
        descriptor.text("<a/>", ["<a/>"]),
        descriptor.properties(["a=1"]),
        {"kind": "sealed", "sealed": "…"},
    ],
)
def test_other_descriptors_never_match(given: descriptor.Descriptor) -> None:
    assert compile_xquery("true()").matches(subject(given)) is False


@pytest.mark.parametrize(
    "document",
    [
        "<!DOCTYPE a [<!ENTITY b 'x'>]><a>&b;</a>",
        "<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/hostname'>]><a>&b;</a>",
        "<!DOCTYPE l [<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;&a;'><!ENTITY c '&b;&b;&b;'>]><l>&c;</l>",
        "<!DOCTYPE a SYSTEM 'file:///etc/passwd'><a/>",
        "<a>&nothing;</a>",
        "<a",
        "",
    ],
)
def test_documents_that_no_node_would_have_let_in(document: str) -> None:
    assert compile_xquery("true()").matches(topic(document)) is False


def test_the_word_doctype_in_a_comment_is_nothing() -> None:
    assert compile_xquery("//a").matches(topic("<a><!-- <!DOCTYPE a> --></a>"))


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("", 0, "empty"),
        ("//a[", 3, "never closed"),
        ("(a]", 2, "closed by"),
        ("//a = 'x", 6, "string is never closed"),
        ("a (: b", 2, "comment"),
        ("(# x #) { 1 }", 0, "not allowed"),
        ("``[a]``", 0, "string constructors"),
        ("<a>", 0, "never closed"),
        ("<a></b>", 3, "closed by"),
        ("<a b=c/>", 5, "quotes"),
        ("<a b='c/>", 5, "never closed"),
        ("<a>}</a>", 3, "twice"),
        ("<a>{1</a>", 5, "could be a comparison"),
        ("$a <b", 3, "space"),
        ("p:f(1)", 0, "prefix 'p'"),
        ("local:f(1)", 0, "no function f"),
        ("import module namespace a = 'b'; 1", 0, "import"),
        ("import schema 'b'; 1", 0, "import"),
        ("module namespace a = 'b'; 1", 0, "module"),
        ("declare variable $x external; $x", 20, "external"),
        ("declare variable $x as xs:string external := 'a'; $x", 33, "external"),
        ("declare function local:f() external; 1", 27, "external"),
        ("declare option saxon:output 'a'; 1", 0, "declare option"),
        ("declare base-uri 'file:///'; 1", 0, "declare base-uri"),
        ("declare default collation 'a'; 1", 0, "declare default"),
        ("declare default function namespace 'a'; 1", 0, "declare default"),
        ("declare context item := <a/>; 1", 0, "declare context"),
        ("declare %a:b function local:f() { 1 }; 1", 8, "annotations"),
        ("declare function fn:doc($a) { 1 }; doc('a')", 17, "cannot be declared"),
        ("declare namespace fn = 'urn:a'; 1", 18, "keeps its meaning"),
        ("declare namespace a = 'urn:&#97;'; 1", 22, "without '&'"),
        ("declare function local:f() { 1 };", None, "asks nothing"),
        ("declare option a 'b' 1", 0, "not ended"),
        ("xquery version '4.0'; 1", 0, "version"),
        ("validate { <a/> }", 0, "validate"),
        ("validate lax { <a/> }", 0, "validate"),
        ("1; 2", 0, "declaration"),
        ("(1; 2)", 2, "brackets"),
        ("a\x00b", 1, "U\\+0000"),
        ("'\ud800'", 1, "U\\+D800"),
        ("(" * (MAX_NESTING + 1), MAX_NESTING, "nested"),
        ("<a>" * 60 + "</a>" * 60, None, "nested"),
        ("<a>{" * 60 + "}</a>" * 60, None, "nested"),
        ("1," * MAX_TOKENS + "1", None, "words and signs"),
        ("a" * 1_000_000, None, "characters"),
    ],
)
def test_what_is_wrong_and_where(text: str, position: int | None, message: str) -> None:
    """A wrong query gets its position, counted from 0, before any engine is asked."""
    begun = time.perf_counter()
    with pytest.raises(QueryError, match=message) as raised:
        compile_xquery(text)
    assert time.perf_counter() - begun < 2
    if position is not None:
        assert raised.value.detail["position"] == position


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("1 +", 3, "too early"),
        ("//a b", 4, "b"),
        ("$x", 0, r"\$x"),
        ("let $x := 1\nreturn\n  $y", 21, r"\$y"),
        ("declare variable $a := 1;\n//b[$c]", 30, r"\$c"),
        ("//p:a", 2, "'p'"),
        ("1 instance of xs:nothing", None, "xs:nothing"),
        ("for $x in 1", 11, "too early"),
        ("declare function local:f($a) { $b }; 1", 31, r"\$b"),
    ],
)
def test_what_only_the_engine_finds(text: str, position: int | None, message: str) -> None:
    """Errors of the query itself are QueryError; they are never taken for a document that does not match."""
    query = compile_xquery(text)
    with pytest.raises(QueryError, match=message) as raised:
        query.prepare()
    assert "file:" not in raised.value.message
    if position is not None:
        assert raised.value.detail["position"] == position
    with pytest.raises(QueryError, match=message):
        query.matches(topic())


def test_preparing_evaluates_nothing() -> None:
    """A tail call that never ends is compiled at once; only running it would need to be killed."""
    compile_xquery("declare function local:f($n) { local:f($n + 1) }; local:f(1)").prepare()


REFUSED = [
    "doc",
    "doc-available",
    "collection",
    "uri-collection",
    "unparsed-text",
    "unparsed-text-lines",
    "unparsed-text-available",
    "json-doc",
    "environment-variable",
    "available-environment-variables",
    "transform",
    "load-xquery-module",
    "parse-xml",
    "parse-xml-fragment",
    "parse-json",
    "json-to-xml",
    "serialize",
    "trace",
    "error",
    "random-number-generator",
    "generate-id",
    "current-dateTime",
    "current-date",
    "current-time",
    "implicit-timezone",
    "static-base-uri",
    "base-uri",
    "document-uri",
    "id",
    "idref",
    "put",
    "function-lookup",
]
FUNCTIONS = "http://www.w3.org/2005/xpath-functions"


@pytest.mark.parametrize("name", REFUSED)
def test_functions_that_are_refused(name: str) -> None:
    """Nothing that reads files, the network, the environment or the clock, however it is named and wherever it stands."""
    for text in (
        f"{name}('a')",
        f"fn:{name}('a')",
        f"{name} (: x :) ('a')",
        f"{name}\n('a')",
        f"Q{{{FUNCTIONS}}}{name}('a')",
        f"Q{{ {FUNCTIONS}\n}}{name}('a')",
        f"declare namespace x = '{FUNCTIONS}'; x:{name}('a')",
        f"declare namespace x = ' {FUNCTIONS} '; x:{name}('a')",
        f"declare namespace local = '{FUNCTIONS}'; local:{name}('a')",
        f"<e xmlns:x='{FUNCTIONS}'>{{x:{name}('a')}}</e>",
        f"declare namespace x = 'urn:x'; declare function x:{name}($a) {{ 1 }}; <e xmlns:x='{FUNCTIONS}'>{{x:{name}('a')}}</e>",
        f"declare function local:f() {{ {name}('a') }}; local:f()",
        f"declare variable $v := {name}('a'); $v",
        f"<e a='{{{name}(1)}}'/>",
        f"<e>don't {{{name}('a')}}</e>",
        f"<e><![CDATA[']]>{{{name}('a')}}</e>",
        f"<e><!-- ' -->{{{name}('a')}}</e>",
        f"<e>{{{{ }}}}{{{name}('a')}}</e>",
        f"'it''s' || {name}('a')",
        f'"&quot;" || {name}("a")',
        f"(: ' :) {name}('a') (: ' :)",
        f"'a' => {name}()",
        f"{name}#1",
        f"{name}#1('a')",
        f"for-each('a', {name}(?))",
        f"1 < {name}('a')",
        f"//a[{name}('a')]/b",
        f"//a/{name}('a')",
        f"for $x in 1 return {name}('a')",
        f"element e {{ {name}('a') }}",
        f"try {{ {name}('a') }} catch * {{ 1 }}",
        f"switch (1) case 1 return {name}('a') default return 1",
        f"let $f := function($x) {{ {name}($x) }} return $f('a')",
        f"map {{ 'a': {name}('a') }}",
    ):
        with pytest.raises(QueryError):
            compile_xquery(text)


#: Each was, or could have been, text to this side and code to the engine.
DISGUISED = [
    "map{'a':0} ! (1 cast as xs:integer? <?a, CALL, 1 cast as xs:integer?> 0)",
    "map{'a':0} ! (if (1 cast as xs:integer? <?a or (CALL) or 1 cast as xs:integer?> 5) then 1 else ())",
    "map{'a':0} ! (1 treat as item()+ <?a, CALL, 1 cast as xs:integer?> 0)",
    "map{'a':0} ! (1 treat as item()* <?a, CALL, 1 cast as xs:integer?> 0)",
    "map{'a':0} ! (1 treat as item()? <?a, CALL, 1 cast as xs:integer?> 0)",
    "map{'a':0} ! (/ <?a, CALL, 1 cast as xs:integer?> 0)",
    "for $x in (1, 2) order by $x empty <?a, CALL ?> 1 return 1",
    "1 cast as xs:integer? <a> CALL </a>",
    "1 treat as item()+ <a> CALL </a>",
    "1 treat as element(*, xs:anyType?)* <a> CALL </a>",
    "1 cast as xs:integer? <!-- CALL -->",
    "1 cast as xs:integer? <![CDATA[ CALL ]]>",
    "1 cast as xs:integer? (: x :) <?a CALL ?>",
    "/ <a> CALL </a>",
    "* <a> CALL </a>",
    "//return <a> CALL </a>",
    "1 cast as xs:integer? or return <a> CALL </a>",
    "1 treat as item()* and then <a> CALL </a>",
    "$x/in <a> CALL </a>",
    "$m?a <a> CALL </a>",
    "a = <a> CALL </a>",
    "a | <a> CALL </a>",
    "(1)<a> CALL </a>",
    "[1]<a> CALL </a>",
    "(< a> CALL </a>)",
    "<a><?p CALL ?></a>",
    "<a><!-- CALL --></a>",
    "<a><![CDATA[ CALL ]]></a>",
    "map{'k':1} ! map{?k:CALL}",
    "map{'k':1} ! [?k:CALL]",
    "let $m := map{'k':2} return map{$m?k:CALL}",
    "let $m := map{'k':2} return map{$m ? k:CALL}",
    "let $m := map{'k':2} return map{$m?*:CALL}",
    "map{1 cast as xs:integer?a:CALL}",
    "1 = xs:integer?CALL",
    "let $a := 1 return map{$a:CALL}",
    "declare namespace a = 'urn:a'; declare variable $a:b := 1; map{$a:CALL}",
    "%CALL function() { 1 }()",
    "1 eq-CALL",
    "1 * eq-CALL",
    "<e xmlns:eq-fn='urn:a'>{1 eq-fn:CALL}</e>",
    "declare namespace eq-fn = 'urn:a'; 1 eq-fn:CALL",
    "1-CALL",
    "1.-CALL",
    "Q{u'} eq 'CALL'",
    "1 eq-Q{u'}abs(1) or 'CALL'",
    "'CALL'",
    "(: CALL :) 1",
    "<a b='CALL'/>",
]


@pytest.mark.parametrize("text", DISGUISED)
@pytest.mark.parametrize("call", ["current-dateTime()", "transform (map { })", "doc#1('x')", "parse-xml(: :)('<a/>')"])
def test_calls_in_disguise(text: str, call: str) -> None:
    """No way of writing makes a reader that is not this one see a call that was not checked; a dangerous name is refused even as text."""
    with pytest.raises(QueryError):
        compile_xquery(text.replace("CALL", call))


@pytest.mark.parametrize(
    "text", [text for text in DISGUISED if text not in ("'CALL'", "(: CALL :) 1", "<a b='CALL'/>", "1-CALL", "1.-CALL")]
)
def test_disguises_are_refused_by_themselves(text: str) -> None:
    """Also with a name that the look at the bare text knows nothing of: the two defences do not lean on each other."""
    with pytest.raises(QueryError):
        compile_xquery(text.replace("CALL", "unheard-of()"))


@pytest.mark.parametrize(
    "text",
    [
        "'http://saxon.sf.net/'",
        "declare namespace s = 'http://saxon.sf.net/'; 1",
        "map { 'vendor-options': 1 }",
        "map { 'stylesheet-text': 1 }",
        "'http://www.w3.org/1999/XSL/Transform'",
        "declare namespace j = 'java:java.lang.Runtime'; 1",
        "Q{java:java.lang.Runtime}getRuntime()",
        "Q{urn:a}f(1)",
        "declare namespace a = 'urn:a'; declare function a:f($x) { 1 }; Q{urn:a}f(1)",
        "for $x in (1, 2) order by $x collation 'http://www.w3.org/2013/collation/UCA' return $x",
        "for $x in (1, 2) order by $x collation 'urn:a' return $x",
        "for $x in (1, 2) group by $x collation 'urn:a' return $x",
        "%saxon:memo-function function() { 1 }()",
        "%a function() { 1 }()",
        "let $m := map { 'a': abs#1 } return $m?a(5)",
        "xs:integer('1') instance of xs:integer? <b",
    ],
)
def test_what_else_is_refused(text: str) -> None:
    with pytest.raises(QueryError):
        compile_xquery(text)


@pytest.mark.parametrize(
    "text",
    [
        "for $s in //sensor return <hit>{$s/title}</hit>",
        "for $s in //sensor/* return <hit id='{1}'>it's</hit>",
        "for $s in //sensor order by $s/price descending return <hit>it's</hit>",
        "if (//sensor) then <a>it's</a> else <b>it's</b>",
        "if(1)then<b/>else<c/>",
        "let $x := <a>it's</a> return $x",
        "for $x in <a>it's</a> return $x",
        "some $x in (1, 2) satisfies <a>it's</a>",
        "[<a>it's</a>]",
        "(<a/>, <b>it's</b>)",
        "<a>{<b>it's</b>}</a>",
        "declare function local:f() { <a>it's</a> }; local:f()",
        "declare variable $a := 1; <a>it's</a>",
        "switch (1) case 1 return <b>it's</b> default return <c>it's</c>",
        "typeswitch (1) case xs:integer? return (<a>it's</a>) default return 1",
        "map { 'a': 1 }?a = 1",
        "map { 'a': 1 } ! ?a",
        "let $m := map { 'a': 1 } return map { $m?a : 1 }",
        "[1, 2] ! ?*",
        "'1' cast as xs:integer? < 2",
        "for-each((1, 2), abs#1)",
        "for $s in //sensor return in-scope-prefixes($s)",
        "let $to-do := 1 return $to-do",
        "contains('see error (5) or Doc (1) or id (2)', 'error')",
        "'collation'",
    ],
)
def test_what_is_not_refused_with_it(text: str) -> None:
    """Elements where an operand must follow, and the engine reads them as elements, too: an apostrophe in one begins no string."""
    assert compile_xquery(text).matches(topic())


def test_names_that_look_like_calls_are_no_calls() -> None:
    assert compile_xquery("(: abc('a') :) //doc[. = 'abc(1)'] | (<doc a='abc(1)'>abc('x') &amp; it's</doc>)").matches(topic())


def test_the_engine_itself_is_closed() -> None:
    """Should a call get past the list, the engine opens nothing."""
    from tdn.queries import saxon

    for text in (
        "string(doc('file:///etc/hosts'))",
        "unparsed-text('file:///etc/hosts')",
        "string(doc('http://localhost/'))",
        "string(collection('file:///etc')[1])",
        "json-doc('file:///etc/hosts')",
    ):
        with pytest.raises(saxon.Failed, match=r"prohibited|disallowed"):
            saxon.engine().run(f"{text} != ''", "<a/>")


def test_memory() -> None:
    """T13: an engine without memory has not looked at the document, and says so; it can be asked again."""
    program = """
import resource
from tdn.queries import saxon
engine = saxon.engine()
assert engine.run("true()", "<a/>") == [True]
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 200 * 2**20,) * 2)
try:
    engine.run("fold-left(1 to 40, 'abc', function($s, $n) { string-join(($s, $s)) }) = ''", "<a/>")
except MemoryError:
    assert engine.run("true()", "<a/>") == [True]
    print("no memory")
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout == "no memory\n"


@pytest.mark.parametrize("said", ["Could not allocate an aligned heap chunk", "java.lang.OutOfMemoryError", "out of memory"])
def test_a_document_that_speaks_of_memory(said: str) -> None:
    """The engine's errors quote documents. None of them may pass for the engine's own trouble, which would end the whole question."""
    for text in (
        "xs:integer(/a) = 1",
        "xs:date(/a) eq xs:date('2020-01-01')",
    ):
        assert compile_xquery(text).matches(topic(f"<a>{said}</a>")) is False


def test_an_error_does_not_tell_where_the_process_runs() -> None:
    """`$err:module` is where the query comes from: by itself, the directory of the process."""
    for variable in ("$err:module", "$err:description", "$err:additional"):
        query = compile_xquery(
            f"try {{ xs:integer(//unit[1]) }} catch * {{ contains(string-join({variable} ! string()), 'file:') }}"
        )
        assert query.matches(topic()) is False
    assert compile_xquery("try { xs:integer(//unit[1]) } catch * { $err:module = 'urn:query' }").matches(topic())


def test_compiling_does_not_load_the_engine() -> None:
    """It costs a tenth of a second and 60 MB, which a process that only compiles need not pay."""
    program = "import sys; from tdn.queries.xquery import compile_xquery; compile_xquery('//a'); assert not any('saxon' in name for name in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_the_time_zone_of_the_machine() -> None:
    """Saxon takes it from TZ; the engine starts under UTC and leaves TZ as it was."""
    program = (
        "import os; from tdn.queries.saxon import engine;"
        "assert engine().run(\"xs:dateTime('2020-01-01T00:00:00') = xs:dateTime('2020-01-01T00:00:00Z')\", '<a/>') == [True];"
        "assert os.environ['TZ'] == 'Asia/Tokyo'"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env={"TZ": "Asia/Tokyo"})


def texts_of(clue: Clue) -> set[str]:
    if isinstance(clue, Contains):
        return {clue.text}
    if isinstance(clue, AllOf):
        return set().union(*(texts_of(part) for part in clue.clues))
    assert isinstance(clue, Anything), clue
    return set()


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("//sensor[@id = 'x42']", {"<sensor>", "@id=x42"}),
        ("for $s in //sensor where $s/@id = 'x42' return $s", {"<sensor>", "@id=x42"}),
        ("for $s in //sensor, $u in $s/unit where $u = 'hPa' return <r>{$s}</r>", {"<sensor>", "<unit>", "hpa"}),
        ("for $s in //sensor let $i := $s/@id where $i = 'x42' order by $i return $s", {"<sensor>", "@id=x42"}),
        ("for $s as element() at $n in //sensor where $n = 1 return $s/unit", {"<sensor>", "<unit>"}),
        ("for $s in //sensor return for $u in $s/unit where $u = 'hPa' return $u", {"<sensor>", "<unit>", "hpa"}),
        ("let $s := //sensor return $s/@id = 'x42'", {"<sensor>", "@id=x42"}),
        (
            "declare namespace g = 'urn:geo'; for $s in //g:sensor where $s/@g:place = 'north' return $s",
            {"<sensor>", "@place=north"},
        ),
        ("declare function local:f($a) { $a }; for $s in //sensor where local:f($s) return $s", {"<sensor>"}),
        ("for $s in //sensor group by $u := $s/unit where $u = 'abc' return $u", {"<sensor>"}),
        ("for $s allowing empty in //sensor return 1", set()),
        ("for $s in <sensor><unit/></sensor> return $s/unit", set()),
        ("let $d := <a><b/></a> for $b in $d/b return $b", set()),
        ("let $d := <a><b/></a> let $e := $d/b return $e/self::b", set()),
        ("declare variable $d := <a><b/></a>; $d/b", set()),
        ("<a><b/></a>/b", set()),
        ("element a { element b { } }/b", set()),
        ("declare function local:f() { <b/> }; local:f()/self::b", set()),
        ("for $s in //aa return $s, //bb", None),
        ("for $s in //aa where true() return $s, //bb", set()),
        ("//unit = 'h&#80;a'", set()),
        ("for $s in //return where $s/where = 'order' return $s/order", {"<return>", "<where>", "<order>"}),
        ("for tumbling window $w in //a start when true() return $w", set()),
        ("let $s := //never for tumbling window $w in (1, 2) start $s when true() return $s", set()),
        ("let $s := //never return for tumbling window $w in (1, 2) start $s when true() return $s", set()),
        ("let $s := //never for sliding window $w in (1, 2) start $x at $s when true() end when true() return $s", set()),
    ],
)
def test_clues(text: str, texts: set[str] | None) -> None:
    """The index is told names and texts that must be in the document, and none of what the query itself makes."""
    query = compile_xquery(text)
    if texts is None:
        assert query.clue == AnyOf((Contains("<aa>"), Contains("<bb>")))
    else:
        assert texts_of(query.clue) == texts


@pytest.mark.parametrize(
    ("text", "document"),
    [
        ("for $a in //a where $a = 'xyz' return $a", "<r><a>x<!-- -->y<b>z</b></a></r>"),
        ("let $d := <b/> for $a in //a return $d/self::b", "<a/>"),
        ("//a/@b = 'x y'", "<a b='x\ny'/>"),
        ("//@xml:id = 'abc'", "<a xml:id='  abc '/>"),
        ("let $s := //never for tumbling window $w in (1, 2) start $s when true() return $s", "<a/>"),
        ("for $a in //*[lower-case(.) = 'kid'] return $a", "<a>\u212aid</a>"),
        ("for $a in //a where $a/self::a return <b/>/self::b", "<a/>"),
    ],
)
def test_clues_hold_where_writing_and_meaning_differ(text: str, document: str) -> None:
    query = compile_xquery(text)
    assert query.matches(topic(document))
    assert holds(query.clue, topic(document))


def test_nested_clauses_are_compiled_quickly() -> None:
    begun = time.perf_counter()
    compile_xquery("let $x := 1 return " * 280 + "$x")
    compile_xquery("for $x in //a let $y := <a/> return " * 120 + "$x")
    assert time.perf_counter() - begun < 4
