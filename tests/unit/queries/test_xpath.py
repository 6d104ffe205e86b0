"""XPath 3.1: what matches, what is refused and where, and what an index is told."""

from __future__ import annotations

import itertools
import signal
import time

import pytest

from tdn.errors import QueryError
from tdn.protocol import descriptor
from tdn.queries.model import AllOf, AnyOf, Anything, Clue, Contains, Subject, holds
from tdn.queries.xml_lexer import MAX_NESTING, MAX_TOKENS
from tdn.queries.xpath import MAX_DEPTH, compile_xpath
from tdn.queries.xpath_parser import MAX_RANGE

STATION = """<?xml version="1.0" encoding="utf-8"?>
<!--made by hand--><?style plain?>
<station xmlns:g="urn:geo" xml:lang="de">
  <name>Roof 7</name>
  <sensor id="x42" g:place="north"><unit>C</unit><title>The &#79;cean <!-- deep -->today</title><price>9</price></sensor>
  <sensor id="x43"><unit>hPa</unit><title>Deep  sea</title><price>12.5</price><since>2026-01-02T03:04:05Z</since></sensor>
  <g:point lat="52.5"><![CDATA[a < b & c]]></g:point>
</station><!--the end-->"""


def topic(document: str = STATION) -> Subject:
    return subject(descriptor.xml(document))


def subject(given: descriptor.Descriptor) -> Subject:
    return Subject("u", given["kind"], "c", "o", "i", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z", given, "")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("/station", True),
        ("/", True),
        (".", True),
        ("station/sensor", True),
        ("/sensor", False),
        ("//sensor", True),
        ("//sensor[@id='x42']", True),
        ("//sensor[@id='x44']", False),
        ("/station/name = 'Roof 7'", True),
        ("/station/name = 'roof 7'", False),
        ("//title[contains(., 'Ocean today')]", True),
        ("//title = 'The Ocean today'", True),
        ("//title[contains(., 'deep')]", False),
        ("//comment() = ' deep '", True),
        ("/comment()[1] = 'made by hand'", True),
        ("/processing-instruction('style')", True),
        ("contains(/, 'made by hand')", False),
        ("//point", False),
        ("//*:point", True),
        ("//Q{urn:geo}point", True),
        ("//Q{urn:other}point", False),
        ("//sensor/@*:place", True),
        ("//sensor/@Q{urn:geo}place", True),
        ("//sensor/attribute::Q{urn:geo}place", True),
        ("//sensor/@place", False),
        ("/station/@xml:lang = 'de'", True),
        ("//*:point = 'a < b & c'", True),
        # A result that is not empty matches, whatever it is, but for the single value false.
        ("count(//nothing)", True),
        ("count(//nothing) > 0", False),
        ("0", True),
        ("''", True),
        ("()", False),
        ("false()", False),
        ("(false(), false())", True),
        ("//price/number() ! (. > 100)", True),
        ("true()", True),
        ("not(//nothing)", True),
        ("map { }", True),
        # Untyped values compare as strings with strings and as numbers with numbers.
        ("//price[. < '10']", False),
        ("//price[. < '13']", True),
        ("//sensor[1]/price < '10'", False),
        ("//sensor[1]/price < 10", True),
        ("//sensor[1]/price = '9.0'", False),
        ("//sensor[1]/price = 9.0", True),
        ("//sensor[price > 10]/@id = 'x43'", True),
        ("some $s in //sensor satisfies $s/price > 12", True),
        ("every $s in //sensor satisfies $s/price > 12", False),
        ("for $s in //sensor return $s/since", True),
        ("let $s := //sensor[since] return $s/unit = 'hPa'", True),
        ("if (//since) then //unit = 'K' else true()", False),
        ("//since > '2026'", True),
        ("xs:dateTime((//since)[1]) > xs:dateTime('2026-01-01T00:00:00')", True),
        ("year-from-dateTime(xs:dateTime((//since)[1])) eq 2026", True),
        ("//unit = ('K', 'C')", True),
        ("sum(//price) = 21.5", True),
        ("//sensor[last()]/@id = 'x43'", True),
        ("//sensor[2][@id = 'x43']", True),
        ("string-join(//unit, '+') = 'C+hPa'", True),
        ("//title[lower-case(.) = 'deep  sea']", True),
        ("//title[normalize-space(.) = 'Deep sea']", True),
        ("//unit ! upper-case(.) = 'HPA'", True),
        ("'x42' => concat('!') => contains('42!')", True),
        ("fold-left(//price, 0, function($a, $b) { $a + $b }) = 21.5", True),
        ("sort(//price/number())[1] = 9", True),
        ("(map { 'a': 5 }?a, [7]?1) = 7", True),
        ("//sensor[price][unit = 'C'] | //nothing", True),
        ("(: a comment (: in a comment :) :) //sensor (: :)", True),
        # RE2's regular expressions.
        ("//title[matches(., '^the', 'i')]", True),
        ("//title[matches(., '^the')]", False),
        ("//title/replace(., '(\\w+)$', '[$1]') = 'The Ocean [today]'", True),
        ("tokenize('a,b,,c', ',') = ''", True),
        ("count(tokenize(' a b  c ')) = 3", True),
        ("matches('a.c', 'a.c', 'q') and not(matches('abc', 'a.c', 'q'))", True),
        ("let $m := matches(?, '^x') return //sensor/@id[$m(.)]", True),
    ],
)
def test_what_matches(text: str, match: bool) -> None:
    """T13: XPath 3.1; true, or a result that is not empty, is a match."""
    assert compile_xpath(text).matches(topic()) is match


def test_strings_are_not_numbers() -> None:
    """XPath 3.1 compares untyped text with a string as strings, where XPath 1.0 would make numbers of them."""
    assert not compile_xpath("/r/price < '10'").matches(topic("<r><price>9</price></r>"))
    assert compile_xpath("/r/price < 10").matches(topic("<r><price>9</price></r>"))
    assert not compile_xpath("/r/a < /r/b").matches(topic("<r><a>9</a><b>10</b></r>"))
    assert compile_xpath("/r/a > /r/b").matches(topic("<r><a>abc</a><b>abb</b></r>"))
    assert compile_xpath("/r/a/number() < /r/b/number()").matches(topic("<r><a>9</a><b>10</b></r>"))


@pytest.mark.parametrize(
    "text",
    [
        "xs:integer(/station/name)",
        "//price + 'a'",
        "//sensor eq 'x'",
        "1 idiv 0",
        "matches('a', '(')",
        f"1 to {MAX_RANGE + 1}",
        "//unit/(1 + .)",
    ],
)
def test_an_expression_that_fails_on_a_document_does_not_match_it(text: str) -> None:
    assert compile_xpath(text).matches(topic()) is False


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
    """T13: only XML descriptors have a document."""
    assert compile_xpath("true()").matches(subject(given)) is False


@pytest.mark.parametrize(
    "document",
    [
        "<!DOCTYPE a [<!ENTITY b 'x'>]><a>&b;</a>",
        "<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><a>&b;</a>",
        "<!DOCTYPE l [<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;&a;'><!ENTITY c '&b;&b;&b;'>]><l>&c;</l>",
        "<a>&nothing;</a>",
        "<a",
        "",
    ],
)
def test_documents_that_no_node_would_have_let_in(document: str) -> None:
    """An entity is never read as text, should a document with one get here."""
    for text in ("contains(/, 'x')", "contains(/, 'root:')", "contains(/, 'aaaa')", "//a = 'x'"):
        assert compile_xpath(text).matches(topic(document)) is False


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("", 0, "empty"),
        ("  ", 0, "empty"),
        ("//a[", 3, "never closed"),
        ("//a)", 3, "closes nothing"),
        ("(a]", 2, "closed by"),
        ("//a = 'x", 6, "string is never closed"),
        ("a (: b", 2, "comment"),
        ("1 +", 3, "end"),
        ("//a b", 4, "unexpected"),
        ("a/", 2, "end"),
        ("$x", 0, r"\$x is not bound"),
        ("for $x in //a return $y", 21, r"\$y is not bound"),
        ("function($a) { $b }", 15, r"\$b is not bound"),
        ("map { 'a': $x }", 11, r"\$x is not bound"),
        ("//p:a", 3, "prefix 'p'"),
        ("p:f(1)", 0, "prefix 'p'"),
        ("//a[f(.)]", 4, "no function f"),
        ("//a[contains(.)]", 4, "1 arguments"),
        ("contains('a', 'b', 'http://c')", 0, "collation"),
        ("xs:nothing('a')", 0, "no function nothing"),
        ("a & b", 2, "no meaning"),
        ("a\x00b", 1, "U\\+0000"),
        ("'\ud800'", 1, "U\\+D800"),
        ("(# x #) { a }", 0, "not allowed"),
        ("schema-element(a)", 0, "unknown|unexpected|not allowed"),
        ("9" * 5000, 0, "not an XPath"),
        ("(" * (MAX_NESTING + 1), MAX_NESTING, "nested"),
        ("-" * 1500 + "1", 0, "nested"),
        ("a or " * MAX_DEPTH + "a", None, "nested"),
        ("1," * MAX_TOKENS + "1", None, "words and signs"),
        ("a" * 1_000_000, None, "characters"),
    ],
)
def test_what_is_wrong_and_where(text: str, position: int | None, message: str) -> None:
    """A wrong query gets its position, counted from 0, and is told from one that fails on a document."""
    begun = time.perf_counter()
    with pytest.raises(QueryError, match=message) as raised:
        compile_xpath(text)
    assert time.perf_counter() - begun < 2
    if position is not None:
        assert raised.value.detail["position"] == position


REFUSED = [
    "doc('a')",
    "doc-available('a')",
    "collection()",
    "uri-collection()",
    "unparsed-text('a')",
    "unparsed-text-lines('a')",
    "unparsed-text-available('a')",
    "json-doc('a')",
    "environment-variable('PATH')",
    "available-environment-variables()",
    "transform(map{})",
    "load-xquery-module('a')",
    "parse-xml('<a/>')",
    "parse-xml-fragment('a')",
    "parse-json('1')",
    "json-to-xml('1')",
    "xml-to-json(/)",
    "serialize(/)",
    "analyze-string('a','b')",
    "trace('a','b')",
    "error()",
    "random-number-generator()",
    "generate-id()",
    "current-dateTime()",
    "current-date()",
    "current-time()",
    "implicit-timezone()",
    "static-base-uri()",
    "base-uri()",
    "document-uri()",
    "id('a')",
    "idref('a')",
    "element-with-id('a')",
    "put(/,'a')",
    "default-collation()",
    "default-language()",
    "collation-key('a')",
    "format-number(1,'#')",
    "format-date(xs:date('2020-01-01'),'a')",
    "adjust-date-to-timezone(xs:date('2020-01-01'))",
]


@pytest.mark.parametrize("call", REFUSED)
def test_functions_that_are_refused(call: str) -> None:
    """Nothing that reads files, the network, the environment or the clock, however it is named."""
    name, _, arguments = call.partition("(")
    uri = "http://www.w3.org/2005/xpath-functions"
    spellings = [
        call,
        f"fn:{call}",
        f"Q{{{uri}}}{call}",
        f"Q{{ {uri} }}{call}",
        f"{name} (: x :) ({arguments}",
        f"//a[{call}]",
        f"//a/{call}",
        f"{name}#1",
        f"let $f := fn:{name}#1 return $f('a')",
        f"'a' => {name}()",
        f"for-each('a', {name}(?))",
        f"function($x) {{ {call} }}('a')",
        f"map {{ 'a': {call} }}",
    ]
    # What takes one argument less is allowed in that form.
    allowed = {"adjust-date-to-timezone": [f"'a' => {name}()"]}.get(name, [])
    for text in spellings:
        if name.startswith("adjust") and ("#1" in text or "=>" in text or "(?)" in text) and text in allowed:
            continue
        with pytest.raises(QueryError) as raised:
            compile_xpath(text)
        assert "position" in raised.value.detail
        assert "hint" in raised.value.detail


def test_function_lookup_is_refused() -> None:
    with pytest.raises(QueryError, match="function-lookup"):
        compile_xpath("function-lookup(xs:QName('fn:doc'), 1)('a')")


def test_names_of_functions_are_names_of_elements_too() -> None:
    assert compile_xpath("/doc/transform/id/@trace = 'doc(1)'").matches(
        topic("<doc><transform><id trace='doc(1)'/></transform></doc>")
    )


def test_nothing_is_computed_while_compiling() -> None:
    """elementpath would evaluate what it has parsed, and such a list is 80 GB."""
    begun = time.perf_counter()
    compile_xpath("count(1 to 10000000000)")
    assert time.perf_counter() - begun < 1


def test_a_catastrophic_pattern_takes_no_time() -> None:
    begun = time.perf_counter()
    assert not compile_xpath("matches(string-join((1 to 1000) ! 'a') || '!', '^(a+)+$')").matches(topic())
    assert time.perf_counter() - begun < 2


def test_a_signal_ends_an_evaluation() -> None:
    """elementpath knows no limit of time; the exception of a signal handler gets through what catches elementpath's own."""

    class TooLong(Exception):
        pass

    def end(*_: object) -> None:
        raise TooLong

    query = compile_xpath("count(for $a in 1 to 5000, $b in 1 to 5000, $c in 1 to 5000 return 1) = 0")
    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(TooLong):
            query.matches(topic())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_endless_recursion_does_not_match() -> None:
    assert compile_xpath("let $f := function($g) { $g($g) } return $f($f)").matches(topic()) is False


def test_one_document_leaves_nothing_for_the_next() -> None:
    """elementpath binds arguments to the tokens of functions; a query answers as if it were the first time, every time."""
    queries = [
        "let $f := contains(?, 'one') return $f(/a)",
        "fold-left(//b, 'x', function($s, $b) { $s || $b }) = 'x12'",
        "for-each(//b, function($b) { $b || '!' }) = '1!'",
        "map { 'k': string(/a) }?k = 'one'",
        "[string(/a)]?1 = 'one'",
        "/a => string() => contains('one')",
        "let $v := /a/text() return function() { $v }() = 'one'",
    ]
    documents = ["<a>one</a>", "<a>two</a>", "<a><b>1</b><b>2</b></a>", "<a>one</a>"]
    for text in queries:
        query = compile_xpath(text)
        fresh = [compile_xpath(text).matches(topic(document)) for document in documents]
        assert [query.matches(topic(document)) for document in documents] == fresh
        assert any(fresh)
        assert not all(fresh)


def test_the_locale_and_the_time_zone_of_the_process_do_not_matter() -> None:
    text = "xs:dateTime('2020-01-01T00:00:00') = xs:dateTime('2020-01-01T00:00:00Z') and 'Z' lt 'a' and max(('ä', 'z')) = 'ä'"
    assert compile_xpath(text).matches(topic())


def literal_texts(clue: Clue) -> set[str]:
    if isinstance(clue, Contains):
        return {clue.text}
    if isinstance(clue, AllOf):
        return set().union(*(literal_texts(part) for part in clue.clues))
    assert isinstance(clue, Anything), clue
    return set()


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("//sensor[@id='x42']", {"<sensor>", "@id=x42"}),
        ("//sensor['x42' = @id]", {"<sensor>", "@id=x42"}),
        ("//sensor[@id eq 'x42']", {"<sensor>", "@id=x42"}),
        ("//Q{urn:geo}Sensor[@Q{urn:geo}Id='X42']", {"<sensor>", "@id=x42"}),
        ("/station/name = 'Roof 7'", {"<station>", "<name>", "roof 7"}),
        ("//title[contains(., 'ocean')]", {"<title>", "ocean"}),
        ("contains(//title, 'ocean')", {"<title>", "ocean"}),
        ("//title[lower-case(.) = 'ocean']", {"<title>", "ocean"}),
        ("//title[normalize-space() = 'deep ocean']", {"<title>", "deep", "ocean"}),
        ("//a[starts-with(@href, 'https:')]", {"<a>", "@href=https:"}),
        ("//a[ends-with(@href, '.org')]", {"<a>", "@href=", ".org"}),
        ("exists(//sensor/unit)", {"<sensor>", "<unit>"}),
        ("count(//sensor) > 0", {"<sensor>"}),
        ("1 <= count(//sensor)", {"<sensor>"}),
        ("count(//sensor) >= 0", set()),
        ("//sensor[price < 10]", {"<sensor>", "<price>"}),
        ("//sensor[@n = 5]", {"<sensor>", "@n="}),
        ("some $s in //sensor satisfies $s/@id = 'x42'", {"<sensor>", "@id=x42"}),
        ("for $s in //sensor[@id = 'x42'] return $s/unit", {"<sensor>", "@id=x42", "<unit>"}),
        ("let $s := //sensor return $s/@id = 'x42'", {"<sensor>", "@id=x42"}),
        ("//sensor[@id = 'x42' and unit = 'hPa']", {"<sensor>", "@id=x42", "<unit>", "hpa"}),
        ("//sensor/unit/string() = 'hPa'", {"<sensor>", "<unit>", "hpa"}),
        ("not(//sensor)", set()),
        ("//sensor except //unit", {"<sensor>"}),
        ("//sensor intersect //unit/..", {"<sensor>", "<unit>"}),
        ("//sensor[not(@id = 'x42')]", {"<sensor>"}),
        ("//sensor ! unit", {"<sensor>", "<unit>"}),
        ("(//sensor, 1)", set()),
        ("//sensor/@id = ''", {"<sensor>", "@id="}),
        ("empty(//sensor)", set()),
        ("//sensor = ''", {"<sensor>"}),
        ("contains(//sensor, '')", set()),
        ("contains(concat(//sensor, 'abc'), 'abc')", set()),
        ("('abc', 'def')[. = 'abc']", set()),
        ("//*[@* = 'x42']", {"x42"}),
        ("every $s in //sensor satisfies $s/@id = 'x42'", set()),
        ("function() { //sensor }()", set()),
        ("//sensor/@id/self::id", {"<sensor>", "@id="}),
        ("//*/namespace::*[. = 'urn:geo']", set()),
    ],
)
def test_clues(text: str, texts: set[str]) -> None:
    """The index is told names and texts that must be there, and nothing that need not."""
    assert literal_texts(compile_xpath(text).clue) == texts


def test_clues_of_alternatives() -> None:
    assert compile_xpath("//aa | //bb").clue == AnyOf((Contains("<aa>"), Contains("<bb>")))
    assert compile_xpath("//a[@b = ('x', 'y')]").clue == AllOf(
        (Contains("<a>"), Contains("@b="), AnyOf((Contains("@b=x"), Contains("@b=y"))))
    )
    assert compile_xpath("//aa or true()").clue == Anything()
    assert compile_xpath("if (//aa) then //bb else //cc").clue == AnyOf(
        (AllOf((Contains("<aa>"), Contains("<bb>"))), Contains("<cc>"))
    )


def test_clues_do_not_grow_without_bound() -> None:
    """Each variable uses the last one twice: written out it would have 2^40 parts."""
    names = [f"v{number}" for number in range(40)]
    steps = ", ".join(f"${name} := (${before}[@a{name}] | ${before}[@b{name}])" for before, name in itertools.pairwise(names))
    begun = time.perf_counter()
    query = compile_xpath(f"let $v0 := //a, {steps} return $v39")
    assert time.perf_counter() - begun < 2
    assert holds(query.clue, topic("<b/>")) in (True, False)


@pytest.mark.parametrize(
    ("text", "document"),
    [
        ("//a = 'xyz'", "<r><a>x<!-- -->y<b>z</b></a></r>"),
        ("//a = 'xyz'", "<r><a>&#120;<?p?>y<b><![CDATA[z]]></b></a></r>"),
        ("/ = 'xyz'", "<r><a>x</a>y<b>z</b></r>"),
        ("//a/@b = 'x y'", "<a b='x\ny'/>"),
        ("//a[upper-case(.) = 'STRASSE']", "<a>straße</a>"),
        ("//a[upper-case(.) = 'IDA']", "<a>ıda</a>"),
        ("//a[lower-case(.) = 'kid']", "<a>\u212aid</a>"),
        ("//a[contains(upper-case(.), 'FIX')]", "<a>ﬁx</a>"),
        ("//comment() = 'abc'", "<a><!--abc--></a>"),
        ("/processing-instruction() = 'abc d'", "<?x abc d?><a/>"),
        ("//@*[. = 'abc']", "<a b='&#97;bc'/>"),
    ],
)
def test_clues_hold_where_writing_and_meaning_differ(text: str, document: str) -> None:
    query = compile_xpath(text)
    assert query.matches(topic(document))
    assert holds(query.clue, topic(document))
