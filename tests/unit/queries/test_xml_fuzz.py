"""XPath and XQuery against generated documents and texts: clues never hide a match, and nothing but QueryError leaves a compiler."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from sizes import examples

from tdn.errors import QueryError
from tdn.protocol import descriptor
from tdn.queries.model import Query, Subject, holds
from tdn.queries.xpath import compile_xpath
from tdn.queries.xquery import compile_xquery

FUZZ = settings(derandomize=True, deadline=None, max_examples=examples(300), suppress_health_check=list(HealthCheck))

NAMES = ["a", "b", "c", "Name"]
TEXTS = ["x", "xy1", "Xy1 z", "abc", "ABC", "12", "9", " abc ", "abc\nx", "ﬁx", "İx", "ıIi", "ß", "a<b", "q&r"]


def topic(document: str) -> Subject:
    return Subject("u", "xml", "c", "o", "i", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z", descriptor.xml(document), "")


# Documents: namespaces, references, CDATA, mixed content, comments, instructions.


def _escaped(text: str, how: int) -> str:
    if how == 1:
        return "".join(f"&#{ord(sign)};" for sign in text)
    plain = text.replace("&", "&amp;").replace("<", "&lt;")
    return f"<![CDATA[{text}]]>" if how == 2 and "]]>" not in text else plain


texts = st.builds(_escaped, st.sampled_from(TEXTS), st.integers(0, 2))
attribute_values = st.builds(
    lambda text, how: _escaped(text, how).replace('"', "&quot;"), st.sampled_from(TEXTS), st.integers(0, 1)
)
attributes = st.lists(
    st.tuples(st.sampled_from([*NAMES, "p:a", "p:id", "id", "xml:lang"]), attribute_values),
    max_size=3,
    unique_by=lambda pair: pair[0],
)
names = st.sampled_from([*NAMES, "p:a", "p:b", "id"])


def _element(name: str, given_attributes: list[tuple[str, str]], default: str, content: list[str]) -> str:
    written = "".join(f' {key}="{value}"' for key, value in given_attributes)
    return f'<{name}{default} xmlns:p="urn:p"{written}>{"".join(content)}</{name}>'


asides = st.sampled_from(["<!--abc-->", "<!--x-->", "<?a xy1?>", "<?abc?>", "<!---->"])
elements = st.recursive(
    st.builds(_element, names, attributes, st.sampled_from(["", "", ' xmlns="urn:d"']), st.lists(texts, max_size=2)),
    lambda inner: st.builds(_element, names, attributes, st.just(""), st.lists(st.one_of(inner, texts, asides), max_size=4)),
    max_leaves=6,
)
documents = st.builds(lambda before, root, after: f"{before}{root}{after}", asides | st.just(""), elements, asides | st.just(""))

# Expressions, from a grammar that covers what the walk over clues looks at, and what it must not be taken in by.

_LITERAL = st.sampled_from(
    [*(f"'{text}'" for text in TEXTS if "\n" not in text and "&" not in text), "''", "12", "9", "1", "0", "1.5"]
)
_NAME_TEST = st.sampled_from([*NAMES, "id", "*:a", "*:id", "Q{urn:p}a", "Q{urn:d}b", "*", "Q{urn:p}*"])
_AXIS = st.sampled_from(
    [
        "child",
        "descendant",
        "descendant-or-self",
        "self",
        "parent",
        "ancestor",
        "ancestor-or-self",
        "following",
        "preceding",
        "following-sibling",
        "preceding-sibling",
    ]
)
_STEP = st.one_of(
    _NAME_TEST,
    _NAME_TEST.map(lambda test: f"@{test}"),
    _NAME_TEST.map(lambda test: f"attribute::{test}"),
    st.builds(
        lambda axis, test: f"{axis}::{test}", _AXIS, st.one_of(_NAME_TEST, st.sampled_from(["node()", "text()", "comment()"]))
    ),
    st.sampled_from(
        [".", "..", "text()", "node()", "comment()", "element()", "element(a)", "attribute(id)", "processing-instruction()"]
    ),
)


def _expressions(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(inner, inner)
    return st.one_of(
        st.builds(lambda left, step: f"{left}/{step}", inner.filter(_is_path), _STEP),
        st.builds(lambda left, step: f"{left}//{step}", inner.filter(_is_path), _STEP),
        st.builds(lambda left, predicate: f"{left}[{predicate}]", inner.filter(_is_path), inner),
        st.builds(lambda left, right: f"({left})[{right}]", inner, inner),
        st.builds(lambda left, right: f"({left})/({right})", inner, inner),
        st.builds(
            lambda both, sign: f"({both[0]}) {sign} ({both[1]})",
            pair,
            st.sampled_from(["or", "and", "|", "intersect", "except", ",", "!"]),
        ),
        st.builds(
            lambda left, sign, right: f"({left}) {sign} {right}",
            inner,
            st.sampled_from(["=", "=", "=", "!=", "<", ">", "<=", ">=", "eq", "ne", "lt"]),
            st.one_of(_LITERAL, _LITERAL.map(lambda text: f"('abc', {text})"), inner.map(lambda text: f"({text})")),
        ),
        st.builds(lambda left, literal: f"{literal} = ({left})", inner, _LITERAL),
        st.builds(
            lambda function, text, literal: f"{function}({text}, {literal})",
            st.sampled_from(["contains", "starts-with", "ends-with", "fn:contains", "matches", "contains-token"]),
            inner,
            _LITERAL,
        ),
        st.builds(
            lambda function, text, literal: f"{function}({text}) = {literal}",
            st.sampled_from(
                ["lower-case", "upper-case", "normalize-space", "string", "data", "count", "name", "local-name", "string-length"]
            ),
            inner,
            _LITERAL,
        ),
        st.builds(
            lambda function, text: f"{function}({text})",
            st.sampled_from(
                [
                    "not",
                    "exists",
                    "empty",
                    "boolean",
                    "data",
                    "string",
                    "reverse",
                    "head",
                    "tail",
                    "distinct-values",
                    "count",
                    "max",
                    "sum",
                    "number",
                ]
            ),
            inner,
        ),
        st.builds(
            lambda text, sign, number: f"count({text}) {sign} {number}",
            inner,
            st.sampled_from([">", ">=", "=", "!=", "<", "<="]),
            st.integers(-1, 2),
        ),
        st.builds(lambda both, name: f"(for $v in {both[0]} return {both[1]})", pair, names),
        st.builds(lambda both: f"(let $v := {both[0]} return {both[1]})", pair),
        st.builds(lambda both: f"(some $v in {both[0]} satisfies {both[1]})", pair),
        st.builds(lambda both: f"(every $v in {both[0]} satisfies {both[1]})", pair),
        st.builds(lambda both, other: f"(if ({both[0]}) then {both[1]} else {other})", pair, inner),
        st.builds(lambda both: f"({both[0]}) + ({both[1]})", pair),
        st.builds(lambda left, test, literal: f"{left}/string() = {literal}", inner.filter(_is_path), _STEP, _LITERAL),
        st.builds(lambda left: f"({left}) ! string()", inner),
    )


def _is_path(text: str) -> bool:
    return text[0] in "/.@*" or (text[0].isalpha() and "(" not in text)


expressions = st.recursive(
    st.one_of(
        _STEP, _STEP.map(lambda step: f"/{step}"), _STEP.map(lambda step: f"//{step}"), _LITERAL, st.just("$v"), st.just("()")
    ),
    _expressions,
    max_leaves=6,
)


# Queries of XQuery: clauses around such expressions, elements that they make, functions that they declare.

_MADE = st.sampled_from(["<a id='x'><b>abc</b></a>", "<c/>", "element b { 'abc' }", "local:f()"])
_VALUES = st.one_of(expressions, expressions, _MADE, st.just("$v"), st.just("$w/b"))
_CLAUSE = st.one_of(
    _VALUES.map(lambda text: f"for $v in ({text})"),
    _VALUES.map(lambda text: f"for $v at $n in {text if ',' not in text else f'({text})'}"),
    _VALUES.map(lambda text: f"for $v allowing empty in ({text})"),
    _VALUES.map(lambda text: f"let $v := ({text})"),
    _VALUES.map(lambda text: f"let $w := ({text})"),
    _VALUES.map(lambda text: f"where {text}"),
    st.builds(lambda step, literal: f"where $v/{step} = {literal}", _STEP, _LITERAL),
    st.builds(lambda literal: f"where $w = {literal}", _LITERAL),
    _VALUES.map(lambda text: f"order by string(({text})[1])"),
    _VALUES.map(lambda text: f"group by $w := string(({text})[1])"),
    st.just("count $n"),
)
_RESULT = st.one_of(_VALUES, st.just("$v"), st.just("<r>{$v}</r>"), st.just("$v, //b"), st.just("$w/self::b"))
_PROLOG = "declare function local:f() { <a><b>abc</b></a> }; "


def _query(source: str, clauses: list[str], result: str) -> str:
    return f"{_PROLOG}let $w := () for $v in ({source}) {' '.join(clauses)} return {result}"


_plain_queries = st.builds(_query, _VALUES, st.lists(_CLAUSE, max_size=3), _RESULT)
queries = st.one_of(
    _plain_queries,
    st.builds(
        lambda outer, inner: f"{outer.rpartition(' return ')[0]} return {inner[len(_PROLOG) :]}", _plain_queries, _plain_queries
    ),
    st.builds(
        lambda clauses, result: f"{_PROLOG}let $v := //a, $w := () {' '.join(clauses)} return {result}",
        st.lists(_CLAUSE, max_size=2),
        _RESULT,
    ),
)


def _bound(text: str) -> str:
    return f"let $v := //a return {text}" if "$v" in text else text


@settings(FUZZ, max_examples=examples(400))
@given(expressions.map(_bound), st.lists(documents, min_size=1, max_size=2))
def test_a_clue_of_xpath_never_hides_a_match(text: str, found: list[str]) -> None:
    """T13: what an index may leave out by the clue, the matcher would not have found."""
    try:
        query = compile_xpath(text)
    except QueryError:
        assume(False)
    for document in found:
        subject = topic(document)
        if query.matches(subject):
            assert holds(query.clue, subject), (text, document, query.clue)


@settings(FUZZ, max_examples=examples(400))
@given(st.one_of(expressions.map(_bound), queries, queries), documents)
def test_a_clue_of_xquery_never_hides_a_match(text: str, document: str) -> None:
    """T13: also where the query makes elements of its own, which are in no index."""
    subject = topic(document)
    try:
        query = compile_xquery(text)
        found = query.matches(subject)
    except QueryError:
        assume(False)
    if found:
        assert holds(query.clue, subject), (text, document, query.clue)


# Texts that are no queries.

_SIGNS = r"""for let where order by group return some every satisfies in if ( ) then else ( ) [ ] { } $ $x @ / // . .. :: : := = != < > <= >=
    << >> => ! | || , ; + - * ? # % "a" 'b' 1 1.5 1e9 a b:c *:d Q{u}e Q{ child attribute:: text() node() element map array function doc contains
    fn:doc xs:integer instance of cast as treat castable to div idiv mod is eq and or union intersect except declare namespace variable external
    import module xquery version validate switch case default typeswitch try catch <a> </a> <a/> <a b='c'> <!-- --> <![CDATA[ ]]> <? ?> (: :)
    (# #) ``[ ]`` &amp; &#65; " ' \\"""
_WORDS = st.sampled_from([*_SIGNS.split(), "\0", "\ud800", " ", "\n", "\u00e9", "\U0001f30a"])
soup = st.lists(_WORDS, max_size=40).map(" ".join) | st.lists(_WORDS, max_size=40).map("".join)


def _mutated(text: str, position: int, length: int, inserted: str) -> str:
    at = position % (len(text) + 1)
    return text[:at] + inserted + text[at + length :]


mutants = st.builds(
    _mutated, st.one_of(expressions, queries), st.integers(0, 500), st.integers(0, 5), st.one_of(_WORDS, st.text(max_size=3))
)
any_text = st.one_of(st.text(max_size=200), st.text(alphabet="()[]{}<>/'\"$:@=!*.,;#%&-abQ 1", max_size=200), soup, mutants)


def ask(compiler: Callable[[str], Query], text: str) -> None:
    begun = time.process_time()
    try:
        query = compiler(text)
        assert time.process_time() - begun < 2
        assert query.matches(topic("<a b='c'><d>1</d></a>")) in (True, False)
    except QueryError as error:
        assert time.process_time() - begun < 2
        position = error.detail.get("position")
        assert position is None or 0 <= position <= len(text)


@settings(FUZZ, max_examples=examples(600))
@given(any_text)
def test_whatever_the_xpath(text: str) -> None:
    """Nothing but QueryError leaves the compiler, and soon; what compiles can be asked."""
    ask(compile_xpath, text)


@settings(FUZZ, max_examples=examples(600))
@given(any_text)
def test_whatever_the_xquery(text: str) -> None:
    """The same, with what the engine finds wrong."""
    ask(compile_xquery, text)


# Calls of a function that does not exist, in places where two readers may disagree on what is text: the engine must never see one that was let through.

_CALLS = ["zap()", "zap ()", "zap#0", "fn:zap()", "zap(1)", "k:zap()", "(: :)zap()", "'a'=>zap()"]
_BEFORE = r"""1 cast as xs:integer? | 1 treat as item()* | 1 treat as item()+ | 1 instance of xs:integer? | a | * | / | //a/* | . | $v | $v?k | $v?* | ?k | ?1 |
    'x' | "it's" | (1) | [1] | map{'k':1} | map{?k: | map{$v?k: | map{$v: | a/return | return | //in | 1 eq- | 1 eq | or | , | ( | { | for $x in | if (1) then |
    else | let $x := | 1 = | ! | function($v as item()?) as item()* { | order by a empty | some $x in a satisfies | Q{u} | Q{u'} | (: ' :) | % | $ | 1. | .5 | - |
    <a> | <a b="' | <a b='{ | {{ | <a>{ | <a>'{ | 1 div 2 | xs:integer | element(a)? | case xs:integer? return"""
_BETWEEN = r"""<?a | <? | <a> | <a | <a b=" | <a b=' | < | <!-- | <![CDATA[ | </a> | ? | ?k: | ?k : | : | * | + | <<a | <a>{ | <a>'{ | , | or | ; | ' | " |
    (: | :) | # | { | ( | [ | '' | return <a> | in <a> | then <a> | eq- | eq-k: | Q{ | $k:"""
_AFTER = r"""?> | 1 cast as xs:integer?> 5 | </a> | '</a> | }</a> | }'</a> | "/> | '/> | --> | ]]> | } | ) | ] | ' | " | :) | > 5 | > | or 1 | , 1 | return 1 | else 1 | :2} | })"""


def _pieces(text: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from([piece.strip() for piece in text.split(" | ")]), max_size=3).map(" ".join)


_disguised = st.builds(
    lambda start, between, call, after, more: f"{start} {between} {call} {after}{more}",
    _pieces(_BEFORE),
    _pieces(_BETWEEN),
    st.sampled_from(_CALLS),
    _pieces(_AFTER),
    st.sampled_from(["", "", " 1", "'", '"', " or zap()", "</a>"]),
)


def _closed(text: str) -> str:
    """The text with the brackets closed that it leaves open, so that more of them are queries."""
    opened: list[str] = []
    for sign in re.sub(r"'[^']*'|\"[^\"]*\"", "", text):
        if sign in "([{":
            opened.append({"(": ")", "[": "]", "{": "}"}[sign])
        elif opened and sign == opened[-1]:
            opened.pop()
    return text + "".join(reversed(opened))


def _without_strings_and_comments(text: str) -> str:
    """Another reader than the one that is tested: it knows no tokens, and takes elements for what they look like."""
    left, at, deep, quote = [], 0, 0, ""
    while at < len(text):
        if quote:
            quote = "" if text[at] == quote else quote
        elif text.startswith("(:", at):
            deep, at = deep + 1, at + 1
        elif deep and text.startswith(":)", at):
            deep, at = deep - 1, at + 1
        elif deep:
            pass
        elif text[at] in "'\"":
            quote = text[at]
            left.append("1")
        else:
            left.append(text[at])
        at += 1
    return "".join(left)


@settings(FUZZ, max_examples=examples(1500))
@given(_disguised.map(_closed))
def test_no_call_gets_past_in_disguise(text: str) -> None:
    """T13: what compiles calls no function that was not checked: not for a plain search of the text, and not for the engine."""
    text = f"let $v := map {{ 'k': 1 }} return {text}"
    try:
        query = compile_xquery(text)
    except QueryError:
        return
    if "<a" not in text:
        assert not re.search(r"(?<!\$)\bzap\s*[(#]", re.sub(r"\$\s+", "$", _without_strings_and_comments(text))), text
    said = ""
    try:
        query.prepare()
    except QueryError as error:
        said = error.message
    # The engine does not know the function, so that it names each call that it sees.
    assert "zap" not in said or "XPST0017" not in said, text


@pytest.mark.parametrize("compiler", [compile_xpath, compile_xquery])
@pytest.mark.parametrize(
    "text",
    [
        "a(:" * 5000,
        "a(:" + ":)" * 8000,
        "(::)" * 4000,
        "attribute(: :)" * 1000,
        "map(:x:) " * 1500,
        "a" + " " * 16000 + "::",
        "'" * 16383,
        "a:" * 8000,
        "Q{" * 8000,
        "Q{" + "a" * 16000,
        "&" * 16000,
        "<a>" * 5000,
        "<a " * 5000,
        "<" * 16000,
        "1." * 8000,
        "e" * 16384,
        "$" * 1999,
        "#" * 1999,
        "?" * 1999,
        "=>" * 1999,
        "a => " * 900 + "b",
        "if (" * 48,
        "\n" * 16000 + "a",
        ("a" * 400 + " ") * 40,
        "declare function local:f() { 1 };" * 150 + "local:f()",
    ],
)
def test_long_texts_are_read_quickly(compiler: Callable[[str], Query], text: str) -> None:
    begun = time.process_time()
    with contextlib.suppress(QueryError):
        compiler(text)
    assert time.process_time() - begun < 1
