"""SQL predicates over the properties and fields of a topic (T13): `compile_sql(text) -> SqlQuery`.

Three-valued logic: a topic is found when the predicate is TRUE for it, not when it is FALSE or NULL. A property that a topic does not have is NULL.
What the language has, and what everything in it means, is written in docs/queries/sql.md. The text is read by `sql_syntax`, values
are compared and computed with by `sql_values`, `sql_clues` says what an index can use. Here the tree becomes functions, once, so that a match
walks no tree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from tdn.errors import QueryError
from tdn.queries import sql_syntax as syntax
from tdn.queries.model import Clue, Subject
from tdn.queries.sql_clues import necessary
from tdn.queries.sql_values import (
    ARITHMETIC,
    COMPARE,
    FAMILY,
    MIRRORED,
    Value,
    against,
    compare,
    matcher,
    moment,
    negative,
    one_of,
    pieces,
)

#: The value of an expression for a topic.
_Evaluate: TypeAlias = Callable[[Subject], Value]

_TIME_FIELDS = ("created", "expires")


@dataclass(frozen=True, slots=True)
class SqlQuery:
    text: str
    clue: Clue
    #: TRUE, FALSE or NULL.
    evaluate: _Evaluate
    tree: syntax.Expression = field(repr=False, compare=False)

    @property
    def language(self) -> str:
        return "sql"

    def matches(self, subject: Subject) -> bool:
        return self.evaluate(subject) is True


def compile_sql(text: str) -> SqlQuery:
    """The query, or QueryError with its position and a hint, whatever the text is."""
    try:
        tree = syntax.parse(text)
        evaluate = _predicate(tree)
        return SqlQuery(text, necessary(tree), evaluate, tree)
    except RecursionError as error:
        # The limits keep far from it, unless the caller has used up the stack.
        raise QueryError("the query is nested too deeply", hint="leave out parentheses that change nothing") from error


def _predicate(node: syntax.Expression) -> _Evaluate:
    """An expression where a predicate is needed. What is certainly none is a mistake; what turns out to be none is NULL."""
    family = _family(node)
    if family not in (None, "boolean"):
        raise QueryError(
            f"this is a {family}, not a predicate", position=node.position, hint="compare it with something: a = 5, b <> 'x'"
        )
    return _build(node)


def _family(node: syntax.Expression) -> str | None:
    """The only family that the values of an expression can have, if there is one."""
    if isinstance(node, syntax.Literal):
        return FAMILY.get(type(node.value))
    if isinstance(node, syntax.Field):
        return "timestamp" if node.name in _TIME_FIELDS else "string"
    if isinstance(node, (syntax.Negative, syntax.Arithmetic)):
        return "number"
    if isinstance(node, syntax.Call):
        return {"LOWER": "string", "UPPER": "string", "LENGTH": "number"}.get(node.function)
    return None if isinstance(node, syntax.Property) else "boolean"


def evaluation(node: syntax.Expression) -> Callable[[Subject], Value]:
    """What a part of a query that compiled is for a topic."""
    return _build(node)


def _build(node: syntax.Expression) -> _Evaluate:
    return _BUILDERS[type(node)](node)


def _literal(node: syntax.Literal) -> _Evaluate:
    value = node.value
    return lambda subject: value


def _field(node: syntax.Field) -> _Evaluate:
    name = node.name
    if name in _TIME_FIELDS:
        return (lambda subject: _stored(subject.created)) if name == "created" else (lambda subject: _stored(subject.expires))
    if name == "descriptor_kind":
        return lambda subject: subject.descriptor["kind"]
    if name in ("path", "text"):
        return lambda subject: subject.descriptor[name] if subject.descriptor["kind"] == name else None
    return {
        "uuid": lambda subject: subject.uuid,
        "creator": lambda subject: subject.creator,
        "owner": lambda subject: subject.owner,
        "institution": lambda subject: subject.institution,
        "kind": lambda subject: subject.kind,
        "synopsis": lambda subject: subject.synopsis,
    }[name]


def _property(node: syntax.Property) -> _Evaluate:
    name = node.name

    def value_of(subject: Subject) -> Value:
        descriptor = subject.descriptor
        if descriptor["kind"] != "properties":
            return None
        value = descriptor["properties"].get(name)
        if type(value) is str:
            return _stored(value) if descriptor["types"].get(name) == "timestamp" else value
        if type(value) is int and descriptor["types"].get(name) == "float":
            # JSON has one kind of number: 5.0 may arrive as 5, and 5 / 2 would be another number then.
            return float(value)
        return value

    return value_of


def _stored(text: str) -> datetime | None:
    """A time as advertisements hold it, in the one form that `format_time` gives: five times as fast as `parse_time`."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else None


def _negative(node: syntax.Negative) -> _Evaluate:
    operand = _build(node.operand)
    return lambda subject: negative(operand(subject))


def _arithmetic(node: syntax.Arithmetic) -> _Evaluate:
    compute, left, right = ARITHMETIC[node.operator], _build(node.left), _build(node.right)
    return lambda subject: compute(left(subject), right(subject))


def _comparison(node: syntax.Comparison) -> _Evaluate:
    _check_times(node.left, node.right)
    _check_times(node.right, node.left)
    if isinstance(node.right, syntax.Literal):
        value_of, check = _build(node.left), against(node.operator, node.right.value)
    elif isinstance(node.left, syntax.Literal):
        value_of, check = _build(node.right), against(MIRRORED[node.operator], node.left.value)
    else:
        test, left, right = COMPARE[node.operator], _build(node.left), _build(node.right)
        return lambda subject: compare(test, left(subject), right(subject))
    return lambda subject: check(value_of(subject))


def _check_times(operand: syntax.Expression, other: syntax.Expression) -> None:
    """`created > '2027-01-31'` would be NULL for every topic, which nobody means."""
    if not isinstance(operand, syntax.Field) or operand.name not in _TIME_FIELDS:
        return
    if isinstance(other, syntax.Literal) and isinstance(other.value, str) and moment(other.value) is None:
        raise QueryError(
            f"{operand.name} is a time and {other.value[:40]!r} is none",
            position=other.position,
            hint="write the time whole, with its zone: '2027-01-31T12:00:00Z'",
        )


def _both(node: syntax.Both) -> _Evaluate:
    terms = tuple(_predicate(term) for term in node.terms)

    def evaluate(subject: Subject) -> Value:
        result: bool | None = True
        for term in terms:
            value = term(subject)
            if value is False:
                return False
            if value is not True:
                result = None
        return result

    return evaluate


def _either(node: syntax.Either) -> _Evaluate:
    terms = tuple(_predicate(term) for term in node.terms)

    def evaluate(subject: Subject) -> Value:
        result: bool | None = False
        for term in terms:
            value = term(subject)
            if value is True:
                return True
            if value is not False:
                result = None
        return result

    return evaluate


def _inverse(node: syntax.Inverse) -> _Evaluate:
    operand = _predicate(node.operand)

    def evaluate(subject: Subject) -> Value:
        value = operand(subject)
        return not value if type(value) is bool else None

    return evaluate


def _among(node: syntax.Among) -> _Evaluate:
    for item in node.items:
        _check_times(node.operand, item)
        _check_times(item, node.operand)
    operand = _build(node.operand)
    literals = tuple(item.value for item in node.items if isinstance(item, syntax.Literal))
    if len(literals) == len(node.items):
        check = one_of(literals)
        return lambda subject: check(operand(subject))
    items, equal = tuple(map(_build, node.items)), COMPARE["="]

    def evaluate(subject: Subject) -> Value:
        value = operand(subject)
        result: bool | None = False
        for item in items:
            same = compare(equal, value, item(subject))
            if same:
                return True
            if same is None:
                result = None
        return result

    return evaluate


def _within(node: syntax.Within) -> _Evaluate:
    for bound in (node.low, node.high):
        _check_times(node.operand, bound)
        _check_times(bound, node.operand)
    operand = _build(node.operand)
    from_low, to_high = _bound(">=", node.low), _bound("<=", node.high)

    def evaluate(subject: Subject) -> Value:
        value = operand(subject)
        above = from_low(subject, value)
        if above is False:
            return False
        below = to_high(subject, value)
        return below if above or below is False else None

    return evaluate


def _bound(operator: str, node: syntax.Expression) -> Callable[[Subject, Value], bool | None]:
    if isinstance(node, syntax.Literal):
        check = against(operator, node.value)
        return lambda subject, value: check(value)
    test, bound = COMPARE[operator], _build(node)
    return lambda subject, value: compare(test, value, bound(subject))


def _alike(node: syntax.Alike) -> _Evaluate:
    if isinstance(node.operand, syntax.Field) and node.operand.name in _TIME_FIELDS:
        raise QueryError(
            f"{node.operand.name} is a time, and LIKE compares strings",
            position=node.position,
            hint="use >= and <, or BETWEEN, with times",
        )
    operand, escape = _build(node.operand), node.escape
    if isinstance(node.pattern, syntax.Literal) and isinstance(node.pattern.value, str):
        try:
            matches = matcher(pieces(node.pattern.value, escape))
        except QueryError as error:
            raise QueryError(
                error.message, position=node.pattern.position, hint="see LIKE in the documentation of SQL queries"
            ) from error

        def evaluate(subject: Subject) -> Value:
            value = operand(subject)
            return matches(value) if type(value) is str else None

        return evaluate
    pattern_of = _build(node.pattern)

    def evaluate_both(subject: Subject) -> Value:
        value, pattern = operand(subject), pattern_of(subject)
        if type(value) is not str or type(pattern) is not str:
            return None
        try:
            return matcher(pieces(pattern, escape))(value)
        except QueryError:
            return None

    return evaluate_both


def _is(node: syntax.Is) -> _Evaluate:
    operand = _build(node.operand) if node.wanted is None else _predicate(node.operand)
    wanted = node.wanted
    return lambda subject: operand(subject) is wanted


def _call(node: syntax.Call) -> _Evaluate:
    first, *others = map(_build, node.arguments)
    if node.function == "COALESCE":
        arguments = (first, *others)

        def coalesce(subject: Subject) -> Value:
            for argument in arguments:
                value = argument(subject)
                if value is not None:
                    return value
            return None

        return coalesce
    if others:
        raise QueryError(
            f"{node.function.lower()} takes one value", position=node.position, hint=f"write {node.function.lower()}(a)"
        )
    apply: Callable[[str], Value] = {"LOWER": str.lower, "UPPER": str.upper, "LENGTH": len}[node.function]

    def call(subject: Subject) -> Value:
        value = first(subject)
        return apply(value) if type(value) is str else None

    return call


_BUILDERS: dict[type, Callable[..., _Evaluate]] = {
    syntax.Literal: _literal,
    syntax.Field: _field,
    syntax.Property: _property,
    syntax.Negative: _negative,
    syntax.Arithmetic: _arithmetic,
    syntax.Comparison: _comparison,
    syntax.Both: _both,
    syntax.Either: _either,
    syntax.Inverse: _inverse,
    syntax.Among: _among,
    syntax.Within: _within,
    syntax.Alike: _alike,
    syntax.Is: _is,
    syntax.Call: _call,
}
