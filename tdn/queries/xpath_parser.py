"""elementpath's parser of XPath 3.1, cut down to what `xml_functions` allows.

Functions that are not allowed are not in its table of symbols at all, so no way of naming one (a reference, an arrow, an EQName) finds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from elementpath import tdop
from elementpath.collations import UNICODE_CODEPOINT_COLLATION
from elementpath.datatypes import Integer, UntypedAtomic
from elementpath.xpath31 import XPath31Parser
from elementpath.xpath_tokens import ProxyToken, XPathFunction

from tdn.queries.xml_functions import ERR, FN, PREFIXES, XS, refusal
from tdn.queries.xpath_regex import Matches, Replace, Tokenize


class Parser(XPath31Parser):
    """Parses and evaluates nothing while it parses; compares strings by codepoints whatever the locale of the process."""

    DEFAULT_NAMESPACES: ClassVar[dict[str, str]] = {**PREFIXES, "err": ERR}

    def __init__(self, namespaces: dict[str, str] | None = None) -> None:
        super().__init__(namespaces=namespaces, default_collation=UNICODE_CODEPOINT_COLLATION)
        del self.namespaces["err"]

    def parse(self, source: str) -> Any:
        # XPath1Parser.parse evaluates what it has parsed, to find errors: `1 to 10000000000` would be computed here.
        root: Any = tdop.Parser.parse(self, source)
        if root.label in ("sequence type", "function test"):
            raise root.error("XPST0003", "a type is not an expression")
        return root


#: Longest sequence of numbers, `1 to N`. elementpath makes the whole list at once, in one step that no signal interrupts.
MAX_RANGE = 100_000

_To: Any = XPath31Parser.symbol_table["to"]


class Range(_To):  # type: ignore[misc]
    def evaluate(self, context: Any = None) -> list[int]:
        first, last = self.get_operands(context, cls=Integer)
        if first is None or last is None:
            return []
        if last - first >= MAX_RANGE:
            raise self.error("FOAR0002", f"a range of more than {MAX_RANGE} numbers")
        return list(range(first, last + 1))


def _comparing_texts(symbol: str) -> Any:
    """A general comparison whose two sides are untyped compares strings. elementpath 5.1 makes numbers of them: `//a < //b` for 9 and 10."""
    base: Any = XPath31Parser.symbol_table[symbol]

    def iter_comparison_data(self: Any, context: Any) -> Iterator[tuple[Any, Any]]:
        for left, right in base.iter_comparison_data(self, context):
            if isinstance(left, UntypedAtomic) and isinstance(right, UntypedAtomic):
                yield str(left.value), str(right.value)
            else:
                yield left, right

    return type(f"Comparison{base.__name__}", (base,), {"iter_comparison_data": iter_comparison_data})


_Arrow: Any = XPath31Parser.symbol_table["=>"]


class Arrow(_Arrow):  # type: ignore[misc]
    """`=>` before names that have functions in more than one namespace: elementpath 5.1 takes those (`contains`) for unknown."""

    def led(self, left: Any) -> Any:
        following = self.parser.next_token
        if not isinstance(following, ProxyToken):
            return super().led(left)
        self[:] = left, self.parser.symbol_table[f"{{{FN}}}{following.value}"](self.parser)
        self.parser.advance()
        arguments = self.parser.expression(67)
        arguments.expected("(")
        self.append(arguments)
        return self


def _allowed(token_class: Any) -> bool:
    if issubclass(token_class, ProxyToken) or not issubclass(token_class, XPathFunction):
        return True
    # The label tells functions from kind tests; a few classes are both a constructor and a function.
    label = str(token_class.label)
    if "function" not in label or label == "function test" or token_class.symbol == "function":
        return token_class.symbol not in ("schema-element", "schema-attribute")
    namespaces = {token_class.namespace} if token_class.namespace else {FN, XS}
    return any(refusal(uri, token_class.symbol, None) is None for uri in namespaces)


Parser.symbol_table = {name: token_class for name, token_class in Parser.symbol_table.items() if _allowed(token_class)}
Parser.symbol_table.update({"matches": Matches, "replace": Replace, "tokenize": Tokenize, "to": Range, "=>": Arrow})
Parser.symbol_table.update({symbol: _comparing_texts(symbol) for symbol in ("=", "!=", "<", ">", "<=", ">=")})
Parser.tokenizer = None
