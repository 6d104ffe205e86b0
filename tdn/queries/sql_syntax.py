"""SQL text to a small tree of our own: `parse(text) -> Expression`, or QueryError with the position and what to write instead.

The grammar is sqlglot's in the dialect of PostgreSQL, the one nearest to the standard ("…" names, '…' strings, no backslashes). But sqlglot is
made to translate between databases: it drops comments and a unary plus, reads `ifnull`, `nvl` and `len` as other functions,
`'a' 'b'` as a concatenation, `!a` as NOT, `a = b = c` in its own way, and what it does changes between versions. So it never decides alone:

- A tokenizer here knows every token that the language has and refuses the rest. sqlglot sees only the skeleton: keywords and operators, with a
  numbered stand-in for each name and literal. Their text, their escapes and their digits are read here and nowhere else.
- The walk over sqlglot's tree takes the tokens one by one, in order, and knows each kind of node and each argument of it (an allow-list). A token
  that the tree does not hold, or holds elsewhere, ends in an error.
- Each operand must bind at least as strongly as its place demands, as in the standard. Order and binding together leave one tree only.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError

from tdn.errors import QueryError
from tdn.protocol.descriptor import MAX_INTEGER
from tdn.queries.model import require_length
from tdn.queries.sql_tokens import READ_ONLY, TRUTHS, Constant, Token, check_name, check_neighbours, predicate_of, tokenize

#: Levels of the tree, to which a chain `a + b + c` adds one for each operator. Bounds the stack of every later walk.
MAX_LEVELS = 64

FIELDS = frozenset(
    {"uuid", "creator", "owner", "institution", "created", "expires", "kind", "descriptor_kind", "path", "text", "synopsis"}
)


@dataclass(frozen=True, slots=True)
class Literal:
    value: Constant
    position: int


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Property:
    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Negative:
    operand: Expression
    position: int


@dataclass(frozen=True, slots=True)
class Arithmetic:
    #: + - * / %
    operator: str
    left: Expression
    right: Expression
    position: int


@dataclass(frozen=True, slots=True)
class Comparison:
    #: = <> < <= > >=
    operator: str
    left: Expression
    right: Expression
    position: int


@dataclass(frozen=True, slots=True)
class Both:
    terms: tuple[Expression, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Either:
    terms: tuple[Expression, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Inverse:
    operand: Expression
    position: int


@dataclass(frozen=True, slots=True)
class Among:
    operand: Expression
    items: tuple[Expression, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Within:
    operand: Expression
    low: Expression
    high: Expression
    position: int


@dataclass(frozen=True, slots=True)
class Alike:
    operand: Expression
    pattern: Expression
    escape: str | None
    position: int


@dataclass(frozen=True, slots=True)
class Is:
    """IS NULL, IS TRUE, IS FALSE, by `wanted`."""

    operand: Expression
    wanted: bool | None
    position: int


@dataclass(frozen=True, slots=True)
class Call:
    function: str
    arguments: tuple[Expression, ...]
    position: int


Expression: TypeAlias = (
    Literal | Field | Property | Negative | Arithmetic | Comparison | Both | Either | Inverse | Among | Within | Alike | Is | Call
)


def operands(node: Expression) -> tuple[Expression, ...]:
    """The expressions directly below one."""
    if isinstance(node, (Literal, Field, Property)):
        return ()
    if isinstance(node, (Arithmetic, Comparison)):
        return node.left, node.right
    if isinstance(node, (Both, Either)):
        return node.terms
    if isinstance(node, Among):
        return node.operand, *node.items
    if isinstance(node, Within):
        return node.operand, node.low, node.high
    if isinstance(node, Alike):
        return node.operand, node.pattern
    return node.arguments if isinstance(node, Call) else (node.operand,)


def parse(text: str) -> Expression:
    """The predicate of the query. A SELECT without WHERE is TRUE."""
    require_length("SQL", text)
    tokens = predicate_of(tokenize(text), len(text))
    if not tokens:
        return Literal(True, 0)
    check_neighbours(tokens, len(text))
    return _Walk(tokens, len(text)).predicate(_parsed(tokens, len(text)))


def _named(token: Token) -> Field | Property:
    if len(token.parts) == 1 and token.parts[0] in FIELDS:
        return Field(token.parts[0], token.position)
    return Property(check_name(token), token.position)


def _parsed(tokens: list[Token], length: int) -> exp.Expression:
    skeleton = "SELECT * FROM topics WHERE"
    ends = []
    for token in tokens:
        skeleton += f" {token.shown}"
        ends.append(len(skeleton))
    try:
        statements = sqlglot.parse(skeleton, read="postgres")
    except ParseError as error:
        column = error.errors[0].get("col") if error.errors else None
        index = bisect.bisect_left(ends, column) if isinstance(column, int) else len(tokens)
        position = tokens[index].position if index < len(tokens) else length
        raise QueryError(
            "the query is not understood here", position=position, hint="see the grammar in the documentation of SQL queries"
        ) from error
    except RecursionError:
        raise
    except Exception as error:
        # A parser that was not made for hostile text: whatever breaks inside it is a bad query.
        raise QueryError("the query is not understood", hint="simplify it") from error
    (select, *others) = statements
    held = {key.rstrip("_") for key, value in select.args.items() if value} if isinstance(select, exp.Select) else set()
    if others or select is None or held != {"expressions", "from", "where"}:
        raise QueryError("the query is not one predicate", position=tokens[0].position, hint=READ_ONLY)
    where = select.args["where"].this
    if not isinstance(where, exp.Expression):
        raise QueryError("the query is not one predicate", position=tokens[0].position, hint=READ_ONLY)
    return where


#: How strongly each kind of node binds. A node of another kind is refused.
_OR, _AND, _NOT, _PREDICATE, _SUM, _PRODUCT, _SIGN, _PRIMARY = range(8)
_BINDING: dict[type[exp.Expression], int] = {
    exp.Or: _OR,
    exp.And: _AND,
    exp.Not: _NOT,
    **dict.fromkeys((exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE), _PREDICATE),
    **dict.fromkeys((exp.In, exp.Between, exp.Like, exp.Escape, exp.Is), _PREDICATE),
    **dict.fromkeys((exp.Add, exp.Sub), _SUM),
    **dict.fromkeys((exp.Mul, exp.Div, exp.Mod), _PRODUCT),
    exp.Neg: _SIGN,
    **dict.fromkeys((exp.Paren, exp.Column, exp.Literal, exp.Null, exp.Boolean), _PRIMARY),
    **dict.fromkeys((exp.Lower, exp.Upper, exp.Length, exp.Coalesce), _PRIMARY),
}
_OPERATORS: dict[type[exp.Expression], str] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
    exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%", exp.And: "AND", exp.Or: "OR",
}  # fmt: skip
#: Arguments that say nothing about the text: how other databases divide and coalesce.
_IGNORED = frozenset({"typed", "safe", "coalesce", "binary", "encoding", "is_null", "is_nvl"})


class _Walk:
    """Turns sqlglot's tree into ours, taking each token of the text where the tree has it."""

    def __init__(self, tokens: list[Token], length: int) -> None:
        self.tokens = tokens
        self.length = length
        self.taken = 0

    def predicate(self, node: exp.Expression) -> Expression:
        result = self.walk(node, _OR, 0)
        if self.taken != len(self.tokens):
            self.refuse()
        return result

    def refuse(self) -> NoReturn:
        position = self.tokens[self.taken].position if self.taken < len(self.tokens) else self.length
        raise QueryError(
            "the query is not understood here", position=position, hint="add parentheses around predicates that are compared"
        )

    def next(self) -> str:
        return self.tokens[self.taken].shown if self.taken < len(self.tokens) else ""

    def take(self, shown: str) -> int:
        if self.next() != shown:
            self.refuse()
        self.taken += 1
        return self.tokens[self.taken - 1].position

    def walk(self, node: object, binding: int, level: int) -> Expression:
        if not isinstance(node, exp.Expression) or _BINDING.get(type(node), -1) < binding:
            self.refuse()
        kind = type(node)
        if level > MAX_LEVELS:
            position = self.tokens[min(self.taken, len(self.tokens) - 1)].position
            raise QueryError(f"more than {MAX_LEVELS} operations on each other", position=position, hint="ask something simpler")
        if isinstance(node, (exp.And, exp.Or)):
            return self.connected(node, level)
        if isinstance(node, exp.Not):
            if self.next() != "NOT":
                return self.predicate_after_operand(node.this, level, negated=True)
            position = self.take("NOT")
            return Inverse(self.walk(self.only(node, "this")["this"], _NOT, level + 1), position)
        own = _BINDING[kind]
        if own == _PREDICATE:
            return self.predicate_after_operand(node, level, negated=False)
        if own in (_SUM, _PRODUCT):
            parts = self.only(node, "this", "expression")
            left = self.walk(parts["this"], own, level + 1)
            position = self.take(_OPERATORS[kind])
            return Arithmetic(_OPERATORS[kind], left, self.walk(parts["expression"], own + 1, level + 1), position)
        if own == _SIGN:
            return self.negative(node, level)
        return self.primary(node, level)

    def connected(self, node: exp.Expression, level: int) -> Expression:
        """`a AND b AND c` leans to the left in sqlglot's tree, a thousand levels deep if need be: it is one level here."""
        kind = type(node)
        reversed_terms: list[object] = []
        rest: object = node
        while type(rest) is kind:
            assert isinstance(rest, exp.Expression)  # noqa: S101  # for mypy: `kind` is one
            parts = self.only(rest, "this", "expression")
            reversed_terms.append(parts["expression"])
            rest = parts["this"]
        terms = [self.walk(rest, _BINDING[kind] + 1, level + 1)]
        position = self.tokens[min(self.taken, len(self.tokens) - 1)].position
        for term in reversed(reversed_terms):
            self.take(_OPERATORS[kind])
            terms.append(self.walk(term, _BINDING[kind] + 1, level + 1))
        return Both(tuple(terms), position) if kind is exp.And else Either(tuple(terms), position)

    def negative(self, node: exp.Expression, level: int) -> Expression:
        position = self.take("-")
        operand = self.only(node, "this")["this"]
        token = self.tokens[self.taken] if self.taken < len(self.tokens) else None
        if (
            isinstance(operand, exp.Literal)
            and token is not None
            and token.kind == "literal"
            and type(token.value) in (int, float)
        ):
            self.take(self.shown(operand))
            assert isinstance(token.value, (int, float))  # noqa: S101  # for mypy: a number's token
            return Literal(-token.value, position)
        return Negative(self.walk(operand, _SIGN, level + 1), position)

    def predicate_after_operand(self, node: object, level: int, *, negated: bool) -> Expression:
        """A comparison, IN, BETWEEN, LIKE or IS. In `a NOT IN (b)` sqlglot has the NOT outside, or marks the node with it."""
        escape: object = None
        if isinstance(node, exp.Escape):
            parts = self.only(node, "this", "expression")
            node, escape = parts["this"], parts["expression"]
            if not isinstance(node, exp.Like):
                self.refuse()
        if not isinstance(node, exp.Expression) or _BINDING.get(type(node)) != _PREDICATE:
            self.refuse()
        if node.args.get("negate"):
            if negated:
                self.refuse()
            negated = True
        if type(node) in _OPERATORS:
            if negated:
                self.refuse()
            parts = self.only(node, "this", "expression")
            left = self.walk(parts["this"], _SUM, level + 1)
            position = self.take(_OPERATORS[type(node)])
            return Comparison(_OPERATORS[type(node)], left, self.walk(parts["expression"], _SUM, level + 1), position)
        operand = self.walk(node.this, _SUM, level + 1)
        position = self.tokens[min(self.taken, len(self.tokens) - 1)].position
        if negated and not isinstance(node, exp.Is):
            self.take("NOT")
        result: Expression
        if isinstance(node, exp.In):
            parts = self.only(node, "this", "expressions", "negate")
            self.take("IN")
            result = Among(operand, self.listed(parts["expressions"], level), position)
        elif isinstance(node, exp.Between):
            parts = self.only(node, "this", "low", "high", "negate")
            self.take("BETWEEN")
            low = self.walk(parts["low"], _SUM, level + 1)
            self.take("AND")
            result = Within(operand, low, self.walk(parts["high"], _SUM, level + 1), position)
        elif isinstance(node, exp.Like):
            parts = self.only(node, "this", "expression", "negate")
            self.take("LIKE")
            pattern = self.walk(parts["expression"], _SUM, level + 1)
            result = Alike(operand, pattern, self.escape(escape), position)
        else:
            parts = self.only(node, "this", "expression", "negate")
            self.take("IS")
            if negated:
                self.take("NOT")
            if self.next() not in TRUTHS:
                raise QueryError("IS is followed by NULL, TRUE or FALSE", position=position, hint="compare values with = or <>")
            wanted = self.walk(parts["expression"], _PRIMARY, level + 1)
            if not isinstance(wanted, Literal) or not (wanted.value is None or isinstance(wanted.value, bool)):
                self.refuse()
            result = Is(operand, wanted.value, position)
        return Inverse(result, position) if negated else result

    def escape(self, node: object) -> str | None:
        if node is None:
            return None
        self.take("ESCAPE")
        token = self.tokens[self.taken]
        if not isinstance(node, exp.Literal) or not isinstance(token.value, str) or len(token.value) != 1:
            raise QueryError(
                "ESCAPE is followed by a string of one character", position=token.position, hint="for example ESCAPE '!'"
            )
        self.take(self.shown(node))
        return token.value

    def listed(self, nodes: object, level: int) -> tuple[Expression, ...]:
        if not isinstance(nodes, list) or not nodes:
            self.refuse()
        self.take("(")
        items: list[Expression] = []
        for node in nodes:
            if items:
                self.take(",")
            items.append(self.walk(node, _OR, level + 1))
        self.take(")")
        return tuple(items)

    def primary(self, node: exp.Expression, level: int) -> Expression:
        if isinstance(node, exp.Paren):
            inner = self.only(node, "this")["this"]
            self.take("(")
            result = self.walk(inner, _OR, level + 1)
            self.take(")")
            return result
        if isinstance(node, exp.Column):
            identifier = self.only(node, "this")["this"]
            if not isinstance(identifier, exp.Identifier):
                self.refuse()
            self.take(f'"{identifier.this}"')
            return _named(self.tokens[self.taken - 1])
        if isinstance(node, exp.Literal):
            position = self.take(self.shown(node))
            value = self.tokens[self.taken - 1].value
            if value == MAX_INTEGER + 1 and type(value) is int:
                raise QueryError(
                    "the integer does not fit into 64 bits", position=position, hint="write it as a float, such as 1e20"
                )
            return Literal(value, position)
        if isinstance(node, (exp.Null, exp.Boolean)):
            wanted = None if isinstance(node, exp.Null) else bool(node.this)
            return Literal(wanted, self.take({None: "NULL", True: "TRUE", False: "FALSE"}[wanted]))
        function = type(node).__name__.upper()
        parts = self.only(node, "this", "expressions")
        position = self.take(function)
        others = parts["expressions"]
        return Call(function, self.listed([parts["this"], *(others if isinstance(others, list) else ())], level), position)

    def only(self, node: exp.Expression, *known: str) -> dict[str, object]:
        """The arguments of a node, none of which may be unknown to us: a suffix or a modifier that we would pass over."""
        if any(value and key not in known and key not in _IGNORED for key, value in node.args.items()):
            self.refuse()
        return {key: node.args.get(key) for key in known}

    @staticmethod
    def shown(literal: exp.Literal) -> str:
        return f"'{literal.this}'" if literal.is_string else str(literal.this)
