"""Which functions XPath and XQuery queries may call: one list for both languages, of functions whose answer depends on the document alone.

A query gives the same answer on every node, in an archive and at a client, today and in a year. So nothing that reads files, the network,
the environment, the clock or chance is on the list; nor what parses or makes documents, loads code, or follows the engine's own settings
(locale, collations, identifiers of nodes). Everything that is not on the list is refused.
"""

from __future__ import annotations

import re

from tdn.errors import QueryError

FN = "http://www.w3.org/2005/xpath-functions"
XS = "http://www.w3.org/2001/XMLSchema"
MATH = "http://www.w3.org/2005/xpath-functions/math"
MAP = "http://www.w3.org/2005/xpath-functions/map"
ARRAY = "http://www.w3.org/2005/xpath-functions/array"
XML = "http://www.w3.org/XML/1998/namespace"
LOCAL = "http://www.w3.org/2005/xquery-local-functions"
ERR = "http://www.w3.org/2005/xqt-errors"


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: The prefixes that need no declaration.
PREFIXES = {"fn": FN, "xs": XS, "math": MATH, "map": MAP, "array": ARRAY, "xml": XML}

#: Names before `(` that are syntax, not functions.
RESERVED = words(
    "array attribute comment document-node element empty-sequence function if item map namespace-node node processing-instruction "
    "schema-attribute schema-element switch text typeswitch"
)

#: Functions of the default namespace by name, with the numbers of arguments that are allowed. What is missing is a collation: elementpath
#: takes it from the locale of the process, which differs between machines.
_FN: dict[str, tuple[int, ...]] = {
    # strings
    "string": (0, 1),
    "concat": tuple(range(2, 65)),
    "string-join": (1, 2),
    "substring": (2, 3),
    "string-length": (0, 1),
    "normalize-space": (0, 1),
    "normalize-unicode": (1, 2),
    "upper-case": (1,),
    "lower-case": (1,),
    "translate": (3,),
    "contains": (2,),
    "starts-with": (2,),
    "ends-with": (2,),
    "substring-before": (2,),
    "substring-after": (2,),
    "contains-token": (2,),
    "compare": (2,),
    "codepoint-equal": (2,),
    "codepoints-to-string": (1,),
    "string-to-codepoints": (1,),
    "encode-for-uri": (1,),
    "matches": (2, 3),
    "replace": (3, 4),
    "tokenize": (1, 2, 3),
    # numbers
    "number": (0, 1),
    "abs": (1,),
    "ceiling": (1,),
    "floor": (1,),
    "round": (1, 2),
    "round-half-to-even": (1, 2),
    # truth
    "true": (0,),
    "false": (0,),
    "not": (1,),
    "boolean": (1,),
    # sequences
    "count": (1,),
    "sum": (1, 2),
    "avg": (1,),
    "min": (1,),
    "max": (1,),
    "empty": (1,),
    "exists": (1,),
    "head": (1,),
    "tail": (1,),
    "reverse": (1,),
    "remove": (2,),
    "insert-before": (3,),
    "subsequence": (2, 3),
    "distinct-values": (1,),
    "index-of": (2,),
    "unordered": (1,),
    "zero-or-one": (1,),
    "one-or-more": (1,),
    "exactly-one": (1,),
    "data": (0, 1),
    "sort": (1,),
    # nodes
    "name": (0, 1),
    "local-name": (0, 1),
    "namespace-uri": (0, 1),
    "node-name": (0, 1),
    "root": (0, 1),
    "lang": (1, 2),
    "has-children": (0, 1),
    "innermost": (1,),
    "outermost": (1,),
    "position": (0,),
    "last": (0,),
    "in-scope-prefixes": (1,),
    "namespace-uri-for-prefix": (2,),
    "QName": (2,),
    "resolve-QName": (2,),
    "local-name-from-QName": (1,),
    "prefix-from-QName": (1,),
    "namespace-uri-from-QName": (1,),
    # dates, times, durations
    "dateTime": (2,),
    "year-from-dateTime": (1,),
    "month-from-dateTime": (1,),
    "day-from-dateTime": (1,),
    "hours-from-dateTime": (1,),
    "minutes-from-dateTime": (1,),
    "seconds-from-dateTime": (1,),
    "timezone-from-dateTime": (1,),
    "year-from-date": (1,),
    "month-from-date": (1,),
    "day-from-date": (1,),
    "timezone-from-date": (1,),
    "hours-from-time": (1,),
    "minutes-from-time": (1,),
    "seconds-from-time": (1,),
    "timezone-from-time": (1,),
    "years-from-duration": (1,),
    "months-from-duration": (1,),
    "days-from-duration": (1,),
    "hours-from-duration": (1,),
    "minutes-from-duration": (1,),
    "seconds-from-duration": (1,),
    "adjust-dateTime-to-timezone": (2,),
    "adjust-date-to-timezone": (2,),
    "adjust-time-to-timezone": (2,),
    # functions as values
    "for-each": (2,),
    "filter": (2,),
    "fold-left": (3,),
    "fold-right": (3,),
    "for-each-pair": (3,),
    "apply": (2,),
}

_OTHER: dict[str, frozenset[str]] = {
    MATH: words("pi exp exp10 log log10 pow sqrt sin cos tan asin acos atan atan2"),
    MAP: words("merge size keys contains get find put entry remove for-each"),
    ARRAY: words(
        "size get put append subarray remove insert-before head tail reverse join for-each filter fold-left fold-right for-each-pair flatten"
    ),
    XS: words(
        "string normalizedString token language NMTOKEN Name NCName ID IDREF ENTITY boolean decimal integer nonPositiveInteger negativeInteger long "
        "int short byte nonNegativeInteger unsignedLong unsignedInt unsignedShort unsignedByte positiveInteger float double duration "
        "dayTimeDuration yearMonthDuration dateTime dateTimeStamp time date gYearMonth gYear gMonthDay gDay gMonth hexBinary base64Binary anyURI QName "
        "untypedAtomic"
    ),
}

_THE_DOCUMENT_ONLY = "a query sees the descriptor's document and nothing else"
_SAME_ANSWER = "a query must give the same answer at any time and on any machine; compare with a literal, or use the time filters of discovery"
#: Why the functions that somebody is most likely to try are not on the list.
_HINTS: dict[str, str] = {
    **dict.fromkeys(
        words(
            "doc doc-available collection uri-collection unparsed-text unparsed-text-lines unparsed-text-available json-doc environment-variable "
            "available-environment-variables document-uri base-uri static-base-uri resolve-uri put"
        ),
        _THE_DOCUMENT_ONLY,
    ),
    **dict.fromkeys(
        words(
            "current-dateTime current-date current-time implicit-timezone random-number-generator generate-id default-collation default-language"
        ),
        _SAME_ANSWER,
    ),
    **dict.fromkeys(
        words("transform load-xquery-module function-lookup"),
        "a query loads no code; write the expression into the query itself",
    ),
    **dict.fromkeys(
        words("parse-xml parse-xml-fragment parse-json json-to-xml xml-to-json serialize analyze-string"), _THE_DOCUMENT_ONLY
    ),
    **dict.fromkeys(words("id idref element-with-id"), "descriptors have no DTD, so nothing is an ID; write //*[@id = 'value']"),
    **dict.fromkeys(words("trace error"), "a query has no side effects"),
}


def refusal(uri: str, local: str, arity: int | None) -> tuple[str, str] | None:
    """Why a function may not be called, as (message, hint); None if it may. An arity of None is one that is not known yet."""
    if uri == FN:
        allowed = _FN.get(local)
        if allowed is None:
            if local in _HINTS:
                return f"{local}() is not allowed", _HINTS[local]
            return f"there is no function {local}() here", "docs/queries/xpath.md lists the functions"
        if arity is None or arity in allowed:
            return None
        if arity == max(allowed) + 1 and local in _COLLATED:
            return (
                f"{local}() with a collation is not allowed",
                "strings are compared by their codepoints, on every machine alike",
            )
        return f"{local}() does not take {arity} arguments", f"it takes {' or '.join(map(str, allowed))}"
    if local in _OTHER.get(uri, ()):
        return None
    return f"there is no function {local}() in the namespace {uri!r} here", "docs/queries/xpath.md lists the functions"


_COLLATED = words(
    "contains starts-with ends-with substring-before substring-after contains-token compare min max distinct-values index-of sort"
)

#: Functions that read, load, parse or depend on the machine. Left out are those of common names that do no harm (id, put, error, trace):
#: these names are refused even in strings, where somebody may look for "error (5)".
HARMFUL = (frozenset(_HINTS) - words("id idref put error trace")) | words(
    "xslt evaluate system-property available-system-properties stream-available unparsed-entity-uri unparsed-entity-public-id "
    "collation-key parse-ietf-date format-date format-dateTime format-time format-number format-integer function-available type-available"
)
#: Not even behind `-`, `.` or a digit: `1-doc('x')` and `1 eq-doc('x')` are calls. Behind every sign that is no letter it is refused.
_NAMES = re.compile(
    rf"(?<![A-Za-z_])(?:{'|'.join(sorted(HARMFUL, key=len, reverse=True))}|current-[A-Za-z-]+)(?=[\s\x00-\x20]*[(#])"
)
#: Functions by a namespace that is written out.
_BRACED = re.compile(r"Q\{([^{}]*)\}[\s\x00-\x20]*[^\s(){}\[\]<>=,;'\"]*[\s\x00-\x20]*[(#]")
_NAMESPACES = frozenset({FN, XS, MATH, MAP, ARRAY, LOCAL})
#: Other signs of an attempt. They could be computed, so that they alone would not do.
_TEXTS = re.compile(
    r"https?://saxon\.sf\.net|https?://ns\.saxonica\.com|\bsaxon:|\bjava:|vendor-options|stylesheet-(?:node|text|location)"
    r"|http://www\.w3\.org/1999/XSL/Transform|http://(?:www\.)?(?:expath|exslt)\.org/"
    r"|\bimport\s+(?:module|schema)\b|\bdeclare\s+option\b|(?<!['\"\w])collation\s*['\"]|/collation/",
    re.IGNORECASE,
)
_HINT = "this is refused anywhere in an XQuery, also inside a string; write it apart, such as 'do' || 'c(1)'"


def refuse_harmful(text: str) -> None:
    """Raise QueryError if an XQuery could call what would do harm, however it is read.

    `xml_lexer` decides what is code and what is text, and each time that it and the engine disagreed, code reached the engine unchecked. Here
    nothing is decided. A function of XQuery 3.1 is called or referred to only by its name, written out, before `(` or `#`: names have no escapes,
    white space or comments inside them, and a comment between name and bracket begins with a bracket itself. So a text in which no such name
    stands before such a sign, not even in strings and comments, calls none of them. What finds functions by a text that is computed
    (function-lookup, load-xquery-module, transform) is among the names.
    """
    if found := _NAMES.search(text):
        raise QueryError(f"{found.group()}() is not allowed", position=found.start(), hint=_HINT)
    for found in _BRACED.finditer(text):
        if " ".join(found.group(1).split()) not in _NAMESPACES:
            raise QueryError("there are no functions in this namespace", position=found.start(), hint=_HINT)
    if found := _TEXTS.search(text):
        raise QueryError(f"{found.group()[:60]!r} is not allowed", position=found.start(), hint=_HINT)
