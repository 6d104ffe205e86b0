"""Clues of XPath expressions: names and texts that a document must hold for the expression to find anything in it.

The walk goes over elementpath's tree of tokens and asks three questions. What must hold for the expression to be *not empty*? For it to be
*true*? For one of its items to have a text that *equals or contains* a literal? Whatever it does not know, it takes for "anything": a
clue may be weaker than it could be, and must never be stronger. All of it rests on one fact: every node that an expression can reach
belongs to the one document, because no allowed function and no part of XPath makes another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tdn.queries.model import AllOf, AnyOf, Anything, Clue, Contains, all_of, any_of, contains_literal

#: Largest clue, in parts. A variable's clue is copied to each use, so that a few dozen `let` could make one of astronomical size.
MAX_PARTS = 200
_MAX_UNSIMPLIFIED = 5 * MAX_PARTS

_FN = "{http://www.w3.org/2005/xpath-functions}"
#: Axes on which a name test finds elements only. On the others elementpath may find an attribute of that name.
_ELEMENT_AXES = frozenset(
    {"child", "descendant", "parent", "ancestor", "following", "preceding", "following-sibling", "preceding-sibling"}
)
_NODE_AXES = _ELEMENT_AXES | {"self", "ancestor-or-self", "descendant-or-self", "attribute"}
_KIND_TESTS = frozenset({"text", "node", "comment", "processing-instruction", "element", "attribute", "document-node"})
_GENERAL = {"=": "=", "!=": "!=", "<": "<", ">": ">", "<=": "<=", ">=": ">="}
_VALUE = {"eq": "=", "ne": "!=", "lt": "<", "gt": ">", "le": "<=", "ge": ">="}
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
_ARITHMETIC = frozenset({"+", "-", "div", "mod"})
#: Functions that give nothing for nothing, so that their first argument is not empty if they are not.
_KEEP_EMPTY = frozenset(
    {
        "data",
        "distinct-values",
        "reverse",
        "head",
        "tail",
        "subsequence",
        "zero-or-one",
        "one-or-more",
        "exactly-one",
        "avg",
        "max",
        "min",
    }
    | {"abs", "floor", "ceiling", "round", "round-half-to-even", "unordered", "sort", "innermost", "outermost"}
)
_TEXT_TESTS = frozenset({"contains", "starts-with", "ends-with"})


@dataclass(frozen=True, slots=True)
class Bound:
    """What is known of a variable: what must hold if it is not empty, and whether all its items are nodes of the document."""

    nonempty: Clue
    nodes: bool
    #: The name that all of them have, if they are attributes of one name.
    attribute: str | None = None


@dataclass(frozen=True, slots=True)
class _Scope:
    variables: Mapping[str, Bound]
    #: Whether the context item is a node of the document.
    node: bool

    def bind(self, name: str, bound: Bound) -> _Scope:
        return _Scope({**self.variables, name: bound}, self.node)

    def focus(self, node: bool) -> _Scope:
        return _Scope(self.variables, node)


def of_match(token: Any, variables: Mapping[str, Bound] | None = None) -> Clue:
    """What must hold for the expression to match: a result that is neither empty nor the single value false."""
    scope = _Scope(dict(variables or {}), node=True)
    return bounded(_match(token, scope)) if _known(token) else Anything()


def of_items(token: Any, variables: Mapping[str, Bound]) -> Bound:
    """What is known of the items that the expression gives."""
    scope = _Scope(dict(variables), node=True)
    return _bound(token, scope) if _known(token) else Bound(Anything(), False)


def of_truth(token: Any, variables: Mapping[str, Bound]) -> Clue:
    """What must hold for the expression to be true."""
    return bounded(_true(token, _Scope(dict(variables), node=True))) if _known(token) else Anything()


def _known(token: Any) -> bool:
    """Whether the expression stays clear of namespace nodes, which are nodes whose text is nowhere in the index."""
    return token.symbol not in ("namespace", "namespace-node") and all(_known(child) for child in token)


def _match(token: Any, scope: _Scope) -> Clue:
    token = _plain(token)
    symbol = token.symbol
    if symbol in ("or", "and") or symbol in _GENERAL or symbol in _VALUE or symbol == "some" or _is_boolean_function(token):
        return _true(token, scope)
    if symbol == "if" and len(token) == 3:
        return any_of(all_of(_true(token[0], scope), _match(token[1], scope)), _match(token[2], scope))
    if symbol == "let" and len(token) > 2:
        return _match(token[-1], _let(token, scope))
    return _nonempty(token, scope)


def _true(token: Any, scope: _Scope) -> Clue:
    """What must hold for the effective boolean value to be true; and for a predicate to hold, which may also be a position."""
    token = _plain(token)
    symbol = token.symbol
    if symbol == "or" and len(token) == 2:
        return any_of(_true(token[0], scope), _true(token[1], scope))
    if symbol == "and" and len(token) == 2:
        return all_of(_true(token[0], scope), _true(token[1], scope))
    if (operator := _GENERAL.get(symbol) or _VALUE.get(symbol)) and len(token) == 2:
        return _comparison(operator, token[0], token[1], scope)
    if symbol == "some" and len(token) > 2:
        clues, inner = _for(token, scope)
        return all_of(*clues, _true(token[-1], inner))
    if symbol == "if" and len(token) == 3:
        return any_of(all_of(_true(token[0], scope), _true(token[1], scope)), _true(token[2], scope))
    if symbol == "let" and len(token) > 2:
        return _true(token[-1], _let(token, scope))
    if (function := _function(token)) is not None:
        if function == "exists" and len(token) == 1:
            return _nonempty(token[0], scope)
        if function == "boolean" and len(token) == 1:
            return _true(token[0], scope)
        if function in _TEXT_TESTS and len(token) == 2:
            return _text_test(function, token[0], token[1], scope)
        if _is_boolean_function(token):
            return Anything()
    return _nonempty(token, scope)


def _nonempty(token: Any, scope: _Scope) -> Clue:
    token = _plain(token)
    symbol = token.symbol
    if symbol in ("(name)", ":", "Q{"):
        name = _name_test(token)
        return contains_literal(f"<{name}>") if name else Anything()
    if symbol == "@" or (symbol == "attribute" and token.label == "axis"):
        name = _name_test(token[0]) if len(token) else None
        return contains_literal(f"@{name}=") if name else Anything()
    if token.label == "axis" and symbol in _ELEMENT_AXES and len(token) == 1:
        name = _name_test(token[0])
        return contains_literal(f"<{name}>") if name else Anything()
    if symbol in ("/", "//"):
        if len(token) == 1:
            return _nonempty(token[0], scope.focus(True))
        if len(token) == 2:
            return all_of(_nonempty(token[0], scope), _nonempty(token[1], scope.focus(True)))
    if symbol == "!" and len(token) == 2:
        return all_of(_nonempty(token[0], scope), _nonempty(token[1], scope.focus(_nodes(token[0], scope))))
    if symbol == "[" and token.label != "array" and len(token) == 2:
        return all_of(_nonempty(token[0], scope), _true(token[1], scope.focus(_nodes(token[0], scope))))
    if symbol in (",", "|", "union") and len(token) == 2:
        return any_of(_nonempty(token[0], scope), _nonempty(token[1], scope))
    if symbol == "intersect" and len(token) == 2:
        return all_of(_nonempty(token[0], scope), _nonempty(token[1], scope))
    if symbol == "except" and len(token) == 2:
        return _nonempty(token[0], scope)
    if symbol == "for" and len(token) > 2:
        clues, inner = _for(token, scope)
        return all_of(*clues, _nonempty(token[-1], inner))
    if symbol == "let" and len(token) > 2:
        return _nonempty(token[-1], _let(token, scope))
    if symbol == "if" and len(token) == 3:
        return any_of(all_of(_true(token[0], scope), _nonempty(token[1], scope)), _nonempty(token[2], scope))
    if symbol in _VALUE and len(token) == 2:
        return all_of(_nonempty(token[0], scope), _nonempty(token[1], scope))
    if symbol in _ARITHMETIC or (symbol == "*" and len(token) == 2):
        return all_of(*(_nonempty(operand, scope) for operand in token))
    if symbol == "$" and len(token) == 1:
        bound = scope.variables.get(str(token[0].value))
        return bound.nonempty if bound else Anything()
    if _function(token) in _KEEP_EMPTY and len(token):
        return _nonempty(token[0], scope)
    return Anything()


def _comparison(operator: str, left: Any, right: Any, scope: _Scope) -> Clue:
    """Both sides have items that compare as asked. Equality with strings says what text one side has."""
    left, right = _plain(left), _plain(right)
    for counted, number, sign in ((left, right, operator), (right, left, _MIRRORED[operator])):
        if _function(counted) == "count" and len(counted) == 1 and number.symbol == "(integer)":
            return _nonempty(counted[0], scope) if _excludes_zero(sign, number.value) else Anything()
    both = all_of(_nonempty(left, scope), _nonempty(right, scope))
    if operator != "=":
        return both
    for side, other in ((left, right), (right, left)):
        literals = _literals(other)
        if literals is not None:
            return all_of(both, any_of(*(_text("=", side, literal, scope) for literal in literals)))
    return both


def _excludes_zero(operator: str, number: int) -> bool:
    """Whether `0 <operator> number` is false."""
    return not {"=": number == 0, "!=": number != 0, "<": number > 0, "<=": number >= 0, ">": number < 0, ">=": number <= 0}[
        operator
    ]


def _text_test(function: str, text: Any, literal: Any, scope: _Scope) -> Clue:
    literal = _plain(literal)
    if literal.symbol != "(string)" or not literal.value:
        # Everything contains the empty string, even the text of nothing.
        return Anything()
    return _text(function, text, literal.value, scope)


def _text(test: str, token: Any, literal: str, scope: _Scope) -> Clue:
    """What must hold for an item's text to equal, contain, start or end with a literal that is not empty (for `=`: that may be)."""
    token = _plain(token)
    function = _function(token)
    if function in ("string", "data") and len(token) <= 1 and literal:
        if len(token) == 0:
            return contains_literal(literal) if scope.node else Anything()
        return _text(test, token[0], literal, scope)
    if function == "lower-case" and len(token) == 1 and literal and literal.isascii():
        # The index folds case, and no character becomes ASCII in lower case that does not so when it is folded.
        return _text(test, token[0], literal, scope)
    if function == "upper-case" and len(token) == 1 and literal and literal.isascii() and "I" not in literal:
        # `ı` in upper case is `I`, but folded it stays what it is.
        return _text(test, token[0], literal, scope)
    if function == "normalize-space" and len(token) <= 1 and literal:
        words = [_text("contains", token[0], word, scope) if len(token) else _here(word, scope) for word in literal.split()]
        return all_of(*words)
    if (
        token.symbol in ("/", "!")
        and len(token) == 2
        and literal
        and _function(token[1]) in ("string", "data")
        and not len(token[1])
    ):
        return _text(test, token[0], literal, scope)
    if not _nodes(token, scope):
        return Anything()
    last = _last_step(token, scope)
    if last is not None and test in ("=", "starts-with"):
        return all_of(_nonempty(token, scope), contains_literal(f"@{last}={literal}"))
    return all_of(_nonempty(token, scope), contains_literal(literal))


def _here(word: str, scope: _Scope) -> Clue:
    return contains_literal(word) if scope.node else Anything()


def _literals(token: Any) -> list[str] | None:
    """The strings of a string literal, or of several in a sequence; None if it is anything else."""
    token = _plain(token)
    if token.symbol == "(string)":
        return [token.value]
    if token.symbol == "," and len(token) == 2:
        left, right = _literals(token[0]), _literals(token[1])
        return left + right if left is not None and right is not None else None
    return None


def _last_step(token: Any, scope: _Scope) -> str | None:
    """The name of the attribute, if attributes of one name are all that the expression gives."""
    token = _plain(token)
    if token.symbol in ("/", "//", "!") and len(token):
        return _last_step(token[-1], scope)
    if token.symbol == "[" and token.label != "array" and len(token) == 2:
        return _last_step(token[0], scope)
    if (token.symbol == "@" or (token.symbol == "attribute" and token.label == "axis")) and len(token) == 1:
        return _name_test(token[0])
    if token.symbol == "$" and len(token) == 1:
        bound = scope.variables.get(str(token[0].value))
        return bound.attribute if bound else None
    return None


def _nodes(token: Any, scope: _Scope) -> bool:
    """Whether whatever the expression gives is a node of the document."""
    token = _plain(token)
    symbol = token.symbol
    if symbol in ("(name)", "@", "..") or (symbol == "*" and not len(token)):
        return True
    if symbol in (":", "Q{"):
        return len(token) == 2 and token[1].symbol in ("(name)", "*")
    if symbol in _KIND_TESTS and token.label == "kind test":
        return True
    if token.label == "axis" and symbol in _NODE_AXES:
        return True
    if symbol == ".":
        return scope.node
    if symbol == "/" and not len(token):
        return True
    if symbol in ("/", "//") and len(token):
        return _nodes(token[-1], scope.focus(True))
    if symbol == "!" and len(token) == 2:
        return _nodes(token[1], scope.focus(_nodes(token[0], scope)))
    if symbol == "[" and token.label != "array" and len(token) == 2:
        return _nodes(token[0], scope)
    if symbol in ("|", "union", "intersect", "except"):
        return True
    if symbol == "," and len(token) == 2:
        return _nodes(token[0], scope) and _nodes(token[1], scope)
    if symbol == "$" and len(token) == 1:
        bound = scope.variables.get(str(token[0].value))
        return bound is not None and bound.nodes
    return False


def _for(token: Any, scope: _Scope) -> tuple[list[Clue], _Scope]:
    """`for` and `some`: every range is not empty. The variable itself is one item, so using it says nothing more."""
    clues = []
    for index in range(0, len(token) - 1, 2):
        clues.append(_nonempty(token[index + 1], scope))
        one = replace(_bound(token[index + 1], scope), nonempty=Anything())
        scope = scope.bind(str(token[index][0].value), one)
    return clues, scope


def _let(token: Any, scope: _Scope) -> _Scope:
    for index in range(0, len(token) - 1, 2):
        scope = scope.bind(str(token[index][0].value), _bound(token[index + 1], scope))
    return scope


def _bound(token: Any, scope: _Scope) -> Bound:
    return Bound(bounded(_nonempty(token, scope)), _nodes(token, scope), _last_step(token, scope))


def _plain(token: Any) -> Any:
    """A token without the brackets and the prefix (`fn:contains`) around it."""
    while True:
        if token.symbol == "(" and token.label == "expression" and len(token) == 1 and token[0].span[0] > token.span[0]:
            token = token[0]
        elif token.symbol in (":", "Q{") and len(token) == 2 and str(token[1].label).endswith("function"):
            token = token[1]
        else:
            return token


def _name_test(token: Any) -> str | None:
    """The local name that a name test asks for; None for a wildcard, and for anything else."""
    if token.symbol == "(name)":
        return str(token.value)
    if token.symbol in (":", "Q{") and len(token) == 2 and token[1].symbol == "(name)":
        return str(token[1].value)
    return None


def _function(token: Any) -> str | None:
    """The name of a function of the default namespace that is called here with all its arguments."""
    # Some classes of elementpath are a function and a constructor at once; the number of arguments and the label do not tell them
    # apart, but `string` and `boolean` of XML Schema give the same texts and truths for what is asked of them here.
    if not str(token.label).startswith("function") and "function" not in getattr(token.label, "values", ()):
        return None
    if token.label in ("function test", "partial function") or token.symbol in ("function", "#"):
        return None
    name = getattr(token, "namespace", None)
    if name not in (None, _FN[1:-1]):
        return None
    return str(token.symbol)


def _is_boolean_function(token: Any) -> bool:
    return _function(token) in _BOOLEAN


_BOOLEAN = _TEXT_TESTS | {
    "exists",
    "empty",
    "not",
    "boolean",
    "true",
    "false",
    "matches",
    "contains-token",
    "lang",
    "has-children",
    "codepoint-equal",
}


def bounded(clue: Clue) -> Clue:
    """The same condition, written shorter; nothing at all if it is too long all the same."""
    clue = _simplified(clue) if _size(clue) <= _MAX_UNSIMPLIFIED else Anything()
    return clue if _size(clue) <= MAX_PARTS else Anything()


def _simplified(clue: Clue) -> Clue:
    """The same condition without brackets in brackets, and without texts that other texts imply (`@id=` beside `@id=x42`)."""
    if isinstance(clue, AllOf):
        parts = [
            part for inner in map(_simplified, clue.clues) for part in (inner.clues if isinstance(inner, AllOf) else (inner,))
        ]
        texts = [part.text for part in parts if isinstance(part, Contains)]
        return all_of(*(part for part in parts if not (isinstance(part, Contains) and _implied(part.text, texts))))
    if isinstance(clue, AnyOf):
        parts = [
            part for inner in map(_simplified, clue.clues) for part in (inner.clues if isinstance(inner, AnyOf) else (inner,))
        ]
        return any_of(*parts)
    return clue


def _implied(text: str, texts: list[str]) -> bool:
    return any(text != other and text in other for other in texts)


def _size(clue: Clue) -> int:
    if not isinstance(clue, AllOf | AnyOf):
        return 1
    total = 1
    for part in clue.clues:
        total += _size(part)
        if total > _MAX_UNSIMPLIFIED:
            break
    return total
