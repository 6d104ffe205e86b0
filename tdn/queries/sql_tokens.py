"""SQL text to tokens: every sign, word, name and literal that the language of predicates has, and a refusal with a hint for the rest.

The text of names, the escapes of strings and the digits of numbers are read here and nowhere else. sqlglot is shown a stand-in for each (`Token.shown`).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime
from typing import NoReturn, TypeAlias

from tdn.errors import QueryError, UsageError
from tdn.protocol.descriptor import MAX_INTEGER
from tdn.protocol.times import parse_time

#: Most tokens. sqlglot needs 14 µs for each, so that the longest query is parsed in about 30 ms.
MAX_TOKENS = 2000
#: Parentheses, calls, NOT and minus inside each other. sqlglot uses 22 frames of the stack for each, and Python's stack has 1000.
MAX_NESTING = 20

FUNCTIONS = frozenset({"LOWER", "UPPER", "LENGTH", "COALESCE"})

Constant: TypeAlias = str | int | float | bool | datetime | None


@dataclass(frozen=True, slots=True)
class Token:
    #: As sqlglot sees it: a keyword, a function's name or an operator, or the stand-in of a name or literal.
    shown: str
    #: "word", "operator", "name" or "literal"
    kind: str
    position: int
    #: A name's parts, and whether the first was written without quotes.
    parts: tuple[str, ...] = ()
    plain: bool = False
    value: Constant = None


_PART = r'(?:[A-Za-z_][A-Za-z0-9_]*|"[^"]*")'
_TOKEN = re.compile(
    r"(?P<space>[ \t\r\n]+)"
    r"|(?P<comment>--|/\*)"
    r"|(?P<string>'(?:[^']|'')*+')"
    rf"|(?P<name>{_PART}(?:\.{_PART})*)"
    r"|(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![A-Za-z0-9_.\"']))"
    r"|(?P<operator><=|>=|<>|!=|=(?!=)|[<>+\-*/%(),;])"
)
#: As the schema of descriptors has it: no property has another name.
_PROPERTY_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")

_KEYWORDS = frozenset(
    {"SELECT", "FROM", "WHERE", "AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"}
)
TRUTHS: dict[str, bool | None] = {"NULL": None, "TRUE": True, "FALSE": False}
_COMPARISONS = frozenset({"=", "<>", "<", "<=", ">", ">="})
#: What stands between two values, or after one.
_BETWEEN_VALUES = _COMPARISONS | {"+", "*", "/", "%", ",", ")", "AND", "OR", "IN", "BETWEEN", "LIKE", "ESCAPE", "IS"}

_ALL_ANSWERS = "every topic that matches is found, ordered by (created, uuid); how many at a time is asked outside the query"
_TOPICS_THEMSELVES = "the answer is the topics themselves; count or group them afterwards"
_ONE_TABLE = "there is one table, topics, without joins or subqueries; write one predicate over one topic"
_COMBINE = "combine predicates with AND, OR and NOT"
_TYPED = "values keep their types; the only typed literal is TIMESTAMP '2027-01-31T12:00:00Z'"
_PATTERNS = "use LIKE, with lower(…) to ignore case, or ask with a regular expression"
READ_ONLY = "a query is one predicate; it changes nothing and is not followed by another"
#: Words that are never names, unless in double quotes, and what to do instead.
_RESERVED = {
    **dict.fromkeys(("ORDER",), _ALL_ANSWERS),
    **dict.fromkeys(("GROUP", "HAVING", "DISTINCT"), _TOPICS_THEMSELVES),
    **dict.fromkeys(("JOIN", "WITH", "EXISTS", "ANY", "ALL", "ON"), _ONE_TABLE),
    **dict.fromkeys(("UNION", "INTERSECT", "EXCEPT"), _COMBINE),
    **dict.fromkeys(("CASE", "WHEN", "THEN", "ELSE", "END"), f"{_COMBINE}; coalesce gives a value for NULL"),
    **dict.fromkeys(("CAST",), _TYPED),
    **dict.fromkeys(("ILIKE", "GLOB", "REGEXP", "RLIKE"), _PATTERNS),
    **dict.fromkeys(
        ("CURRENT_TIMESTAMP", "CURRENT_DATE", "CURRENT_TIME"), "write the time itself: TIMESTAMP '2027-01-31T12:00:00Z'"
    ),
    **dict.fromkeys(("AS",), "columns and topics get no other names"),
    **dict.fromkeys(
        ("INSERT", "UPDATE", "DELETE", "DROP", "CREATE", "ALTER", "ATTACH", "DETACH", "PRAGMA", "VACUUM", "COMMIT", "ROLLBACK"),
        READ_ONLY,
    ),
}
#: Words that are good names of properties, but mean something else to SQL where they stand out of place.
_OUT_OF_PLACE = {
    **dict.fromkeys(("LIMIT", "OFFSET", "FETCH", "TOP"), _ALL_ANSWERS),
    **dict.fromkeys(("OVER", "WINDOW", "FILTER", "QUALIFY", "COUNT", "SUM", "MIN", "MAX", "AVG"), _TOPICS_THEMSELVES),
    **dict.fromkeys(
        ("SOME", "LATERAL", "NATURAL", "LEFT", "RIGHT", "INNER", "OUTER", "CROSS", "FULL", "USING", "VALUES"), _ONE_TABLE
    ),
    **dict.fromkeys(("XOR", "IF", "IIF", "MINUS"), _COMBINE),
    **dict.fromkeys(("CONVERT", "TRY_CAST", "INTERVAL", "DATE", "TIME", "DATETIME", "TIMESTAMPTZ", "AT"), _TYPED),
    **dict.fromkeys(("SIMILAR", "MATCH", "CONTAINS", "REGEXP_LIKE"), _PATTERNS),
    **dict.fromkeys(("ISNULL", "NOTNULL", "UNKNOWN"), "write IS NULL or IS NOT NULL"),
    **dict.fromkeys(("IFNULL", "NVL"), "write coalesce(a, b)"),
    **dict.fromkeys(("LEN", "CHAR_LENGTH", "CHARACTER_LENGTH"), "write length(a)"),
    **dict.fromkeys(("DIV", "MOD"), "the remainder is a % b; a / b of integers has no fraction"),
    **dict.fromkeys(("COLLATE",), "strings are compared by code point; lower(…) ignores case"),
    **dict.fromkeys(("NOW",), "write the time itself: TIMESTAMP '2027-01-31T12:00:00Z'"),
    **dict.fromkeys(
        ("REPLACE", "MERGE", "TRUNCATE", "EXPLAIN", "COPY", "EXEC", "EXECUTE", "GRANT", "REVOKE", "BEGIN", "SET", "USE", "INTO"),
        READ_ONLY,
    ),
}
_MARKS = {
    **dict.fromkeys("`[]", 'a name with other characters stands in double quotes: "room-temp"'),
    **dict.fromkeys("?:$@{}", "write the value itself; there are no parameters and no casts"),
    **dict.fromkeys("0123456789.", "write numbers as 42, 0.5 or 1e6, and dotted names without spaces"),
    **dict.fromkeys("~^&|", "operators are = <> < <= > >= + - * / % and AND, OR, NOT, IN, BETWEEN, LIKE, IS"),
    "#": "there are no comments",
    "=": "write a single =",
    "!": "write NOT before a predicate, or <> between values",
    "'": "a string ends with ', and a ' inside it is written ''",
    '"': 'a name in double quotes ends with "',
    "\\": "a backslash stands in strings only, where it means itself",
}


def tokenize(text: str) -> list[Token]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise QueryError("the query is not valid Unicode", position=error.start, hint="leave out the lone surrogate") from error
    tokens: list[Token] = []
    #: Where each open ( stands, and how deep it is.
    opened: list[tuple[int, int]] = []
    prefixes = end = 0
    while end < len(text):
        found = _TOKEN.match(text, end)
        if found is None:
            _refuse_character(text, end)
        start, end = end, found.end()
        if found.lastgroup == "space":
            continue
        if len(tokens) == MAX_TOKENS:
            raise QueryError(
                f"the query has more than {MAX_TOKENS} words and signs", position=start, hint="ask in several queries"
            )
        last = tokens[-1] if tokens else None
        if found.lastgroup == "string" and last and last.plain and last.parts[0].upper() == "TIMESTAMP" and len(last.parts) == 1:
            tokens[-1] = Token(f"'{len(tokens) - 1}'", "literal", last.position, value=_time(_unquoted(found[0]), start))
            continue
        depth = opened[-1][1] if opened else 0
        token = _token(str(found.lastgroup), found[0], start, len(tokens))
        if token.shown == "(":
            opened.append((start, depth + prefixes + 1))
            if last and last.kind == "name":
                tokens[-1] = _function(last)
        elif token.shown == ")":
            if not opened:
                raise QueryError("this ) closes nothing", position=start, hint="leave it out, or open a ( before")
            opened.pop()
        # A minus after a value stands between two; any other is a sign before one, and nests like NOT.
        sign = token.shown == "-" and not (last and _ends_value(last))
        if token.shown == "NOT" or sign:
            prefixes += 1
        elif token.kind != "name":
            # After a name they still count: it may be a function's, `- length(- length(…`.
            prefixes = 0
        if (opened[-1][1] if opened else 0) + prefixes > MAX_NESTING:
            raise QueryError(
                f"nested more than {MAX_NESTING} deep", position=start, hint="leave out parentheses that change nothing"
            )
        tokens.append(token)
    if opened:
        raise QueryError("this ( is never closed", position=opened[-1][0], hint="write the ) that belongs to it")
    return tokens


def _token(kind: str, written: str, position: int, index: int) -> Token:
    if kind == "operator":
        return Token("<>" if written == "!=" else written, "operator", position)
    if kind == "string":
        return Token(f"'{index}'", "literal", position, value=_unquoted(written))
    if kind == "number":
        return Token(str(index), "literal", position, value=_number(written, position))
    if kind == "comment":
        raise QueryError(
            "comments are not allowed", position=position, hint="leave it out; to subtract a negative number write - -1"
        )
    word = written.upper()
    if word in _KEYWORDS:
        return Token(word, "word", position)
    if word in _RESERVED:
        raise QueryError(
            f"{word} is not part of this language",
            position=position,
            hint=f'{_RESERVED[word]} (a property of that name: "{written}")',
        )
    parts = tuple(part.strip('"') for part in re.findall(_PART, written))
    return Token(f'"{index}"', "name", position, parts=parts, plain=not written.startswith('"'))


def _unquoted(written: str) -> str:
    return written[1:-1].replace("''", "'")


def _time(text: str, position: int) -> datetime:
    try:
        return parse_time(text)
    except UsageError as error:
        raise QueryError(f"{text[:40]!r} is not a time", position=position, hint="write it as 2027-01-31T12:00:00Z") from error


def _number(written: str, position: int) -> int | float:
    if written.isdigit():
        digits = written.lstrip("0") or "0"
        # The one beyond the largest is the smallest without its sign; `_Walk` takes it after a minus only.
        if len(digits) <= 19 and int(digits) <= MAX_INTEGER + 1:
            return int(digits)
        raise QueryError("the integer does not fit into 64 bits", position=position, hint="write it as a float, such as 1e20")
    value = float(written)
    if not math.isfinite(value):
        raise QueryError("the number is too large for a float", position=position, hint="the largest is about 1.8e308")
    return value


def _function(name: Token) -> Token:
    word = name.parts[0].upper()
    if len(name.parts) == 1 and name.plain and word in FUNCTIONS:
        return Token(word, "word", name.position)
    shown = ".".join(name.parts)[:40]
    hint = _OUT_OF_PLACE.get(word, "there are lower, upper, length and coalesce")
    raise QueryError(f"there is no function {shown!r}", position=name.position, hint=hint)


def _refuse_character(text: str, position: int) -> NoReturn:
    character = text[position]
    hint = _MARKS.get(character, "other characters stand in 'strings' only")
    if character == "'":
        raise QueryError("the string is never closed", position=position, hint=hint)
    if character == '"':
        raise QueryError("the name is never closed", position=position, hint=hint)
    raise QueryError(f"{text[position : position + 2].strip()!r} is not part of this language", position=position, hint=hint)


def predicate_of(tokens: list[Token], length: int) -> list[Token]:
    """The tokens of the predicate, without `SELECT … FROM topics WHERE` and the last semicolon."""
    if tokens and tokens[-1].shown == ";":
        tokens = tokens[:-1]
    if not tokens:
        raise QueryError("the SQL query is empty", hint="write a predicate, such as temperature > 20 AND site = 'roof'")
    start = 1 if tokens[0].shown == "WHERE" else 0
    if tokens[0].shown == "SELECT":
        start = _after_select(tokens, length)
        if start == len(tokens):
            return []
        if tokens[start].shown != "WHERE":
            _refuse_out_of_place(tokens[start], "only WHERE follows the table", _ONE_TABLE)
        start += 1
    if start == len(tokens):
        raise QueryError(
            "there is no predicate after WHERE", position=length, hint="write one, or leave out WHERE after FROM topics"
        )
    for token in tokens[start:]:
        if token.shown == ";":
            raise QueryError("only one statement is allowed", position=token.position, hint=READ_ONLY)
        if token.shown in ("SELECT", "FROM", "WHERE"):
            raise QueryError(f"{token.shown} is not allowed inside a predicate", position=token.position, hint=_ONE_TABLE)
    return tokens[start:]


def _after_select(tokens: list[Token], length: int) -> int:
    """How many tokens `SELECT a, b FROM topics` has. What it selects changes nothing: the answer is always the topics."""
    index = 1
    while True:
        column = tokens[index] if index < len(tokens) else None
        if column is None or not (column.kind == "name" or (column.shown == "*" and index == 1)):
            position = column.position if column else length
            raise QueryError(
                "a column is missing", position=position, hint="select * or the plain names of fields and properties"
            )
        if column.kind == "name":
            check_name(column)
        separator = tokens[index + 1] if index + 1 < len(tokens) else None
        index += 2
        if separator is not None and separator.shown == "FROM":
            break
        if separator is None or separator.shown != "," or column.shown == "*":
            if separator is not None:
                _refuse_out_of_place(separator, "FROM topics is missing here", "select * or plain names, from topics", column)
            raise QueryError("FROM topics is missing", position=length, hint="write SELECT * FROM topics WHERE …")
    table = tokens[index] if index < len(tokens) else None
    if table is None or table.kind != "name" or [part.lower() for part in table.parts] != ["topics"]:
        raise QueryError("the only table is topics", position=table.position if table else length, hint=_ONE_TABLE)
    return index + 1


def check_neighbours(tokens: list[Token], length: int) -> None:
    """Values and operators alternate. sqlglot would join two strings, drop a unary plus, and take a name after a value for an alias."""
    last: Token | None = None
    for token in tokens:
        after_value = last is not None and _ends_value(last)
        if after_value and last is not None and (token.kind in ("name", "literal") or token.shown in {*FUNCTIONS, *TRUTHS, "("}):
            _refuse_out_of_place(
                token, "an operator is missing here", "put AND, OR, = or another operator between two values", last
            )
        if (
            not after_value
            and token.shown in _BETWEEN_VALUES
            and not (last is not None and last.shown == "NOT" and token.shown in ("IN", "LIKE", "BETWEEN"))
        ):
            raise QueryError(
                f"a value is missing before {token.shown}", position=token.position, hint="write a name, a literal or a predicate"
            )
        last = token
    if last is None or not _ends_value(last):
        raise QueryError(
            "the query ends where a value is missing", position=length, hint="write a name, a literal or a predicate"
        )


def _ends_value(token: Token) -> bool:
    return token.kind in ("name", "literal") or token.shown == ")" or token.shown in TRUTHS


def _refuse_out_of_place(token: Token, message: str, hint: str, before: Token | None = None) -> NoReturn:
    for candidate in (token, before):
        if candidate is not None and candidate.plain and candidate.parts[0].upper() in _OUT_OF_PLACE:
            word = candidate.parts[0].upper()
            raise QueryError(f"{word} does not belong here", position=candidate.position, hint=_OUT_OF_PLACE[word])
    if before is not None and before.plain and token.shown.startswith("'") and len(before.parts[0]) == 1:
        hint = "strings are written 'so', without a letter before them"
    raise QueryError(message, position=token.position, hint=hint)


def check_name(token: Token) -> str:
    """The property that a name stands for, unless it is a field's."""
    parts = token.parts[1:] if len(token.parts) > 1 and token.parts[0] == "properties" else token.parts
    name = ".".join(parts)
    if not all(parts) or _PROPERTY_NAME.fullmatch(name) is None:
        raise QueryError(
            f"no property can be called {name[:40]!r}",
            position=token.position,
            hint="names have letters, digits, '_', '.', '-', at most 64; strings stand in single quotes",
        )
    return name
