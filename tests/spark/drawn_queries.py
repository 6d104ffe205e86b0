"""Queries from a seed: words, patterns, predicates, paths and expressions put together from what topics say and from what they do not; some broken, some hostile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tdn.protocol import descriptor as descriptors
from tdn.sample.queries import expensive_queries

_SQL_FIELDS = ("uuid", "creator", "owner", "institution", "created", "expires", "kind", "descriptor_kind", "path", "text", "synopsis")
_LITERALS = (
    *("5", "-5", "0", "1.5", "9007199254740993", "9007199254740992", "1e300", "-0.0", "TRUE", "FALSE", "NULL", "''", "'true'", "'5'"),
    *("'Zürich'", "'%ü%'", "'2027-01-31T12:00:00Z'", "TIMESTAMP '2026-12-31T23:59:59.5Z'", "'institution'", "'a''b'"),
)
_BROKEN = {
    "string": ("", "   ", "a\0b"),
    "regex": ("(", "a{99999}", "(?=x)", r"\1", "[", "*"),
    "sql": ("", "a =", "SELECT 1", "a = 1; DROP TABLE topics", "created > 'tomorrow'", "(((", "a LIKE 'x' ESCAPE 'xx'", "load_extension('x')"),
    "xpath": ("//", "doc('x')", "$unbound", "p:a", "1 +", "unparsed-text('/etc/passwd')"),
    "xquery": ("for $x in", "doc('file:///etc/passwd')", "$unbound", "declare variable $x external; $x", "let $x := 1 return $y", "p:a"),
}


def hostile() -> list[dict[str, Any]]:
    """The most expensive that are allowed."""
    queries = expensive_queries()
    return [
        {"id": f"hostile {language} {query.name}", "language": language, "query": query.text}
        for language in ("regex", "sql", "xpath", "xquery")
        for query in queries[language]
    ]


def endless() -> list[dict[str, Any]]:
    """Those that never end."""
    return [
        {"id": "endless xpath", "language": "xpath", "query": "count(for $a in 1 to 10000, $b in 1 to 10000 return $a * $b) = 1"},
        {"id": "endless xquery", "language": "xquery", "query": "declare function local:f($n) { if ($n = 0) then 0 else local:f($n - 1) + local:f($n - 1) }; local:f(60) = 1"},
        {"id": "slow xquery", "language": "xquery", "query": "count(for $x in 1 to 100000, $y in 1 to 100000 return $x * $y) = 1"},
    ]


class Drawn:
    """Draws queries about some topics."""

    def __init__(self, seed: str, topics: Sequence[descriptors.Descriptor]) -> None:
        self._draws = Random(seed)
        self._texts = [descriptors.searchable(topic) for topic in topics if topic["kind"] != "sealed"]
        properties = [topic for topic in topics if topic["kind"] == "properties"]
        self._names = sorted({name for topic in properties for name in topic["properties"]} | {"missing", "no_such"})
        self._values = [(name, value) for topic in properties for name, value in topic["properties"].items()]
        self._documents = [topic["xml"] for topic in topics if topic["kind"] == "xml"]

    def some(self, each: int) -> list[dict[str, Any]]:
        """So many of each language, a few of them broken, some with times."""
        found = []
        makers: dict[str, Callable[[], str]] = {
            "string": self._string,
            "regex": self._regex,
            "sql": self._sql,
            "xpath": self._xpath,
            "xquery": self._xquery,
        }
        for language, make in makers.items():
            for number in range(each):
                query: dict[str, Any] = {"id": f"{language}-{number}", "language": language, "query": make()}
                if self._draws.random() < 0.15:
                    query["created_after"] = f"2027-01-01T00:00:{self._draws.randrange(60):02}Z"
                if self._draws.random() < 0.1:
                    query["expires_before"] = f"2027-01-0{self._draws.randrange(1, 4)}T12:00:00Z"
                if self._draws.random() < 0.05:
                    query["valid_at_least"] = "2h"
                found.append(query)
            found += [
                {"id": f"broken {language}-{number}", "language": language, "query": text}
                for number, text in enumerate(_BROKEN[language])
            ]
        return found

    def _piece(self, shortest: int = 1, longest: int = 9) -> str:
        text = self._draws.choice(self._texts)
        start = self._draws.randrange(max(1, len(text) - shortest))
        return text[start : start + self._draws.randint(shortest, longest)]

    def _string(self) -> str:
        words = [self._piece() for _ in range(self._draws.randint(1, 3))]
        words = [self._draws.choice((str.upper, str.lower, str))(word) for word in words]
        return " ".join(words).strip() or "a"

    def _regex(self) -> str:
        escape = lambda text: "".join(f"\\{c}" if c in r"\.+*?()|[]{}^$" else c for c in text)  # noqa: E731
        parts = [escape(self._piece(1, 6)) for _ in range(self._draws.randint(1, 3))]
        joined = self._draws.choice((".*", "", "[^/]+", r"\s*", "|", ".?")).join(parts)
        return self._draws.choice(("", "", "(?i)", "^", "(?s)", "(?m)^", r"\b")) + joined + self._draws.choice(("", "", "$", "+", r"\d", "?"))

    def _sql(self, depth: int = 0) -> str:
        draws = self._draws
        shape = draws.randrange(9 if depth < 3 else 5)
        if shape < 2 and self._values:
            name, value = draws.choice(self._values)
            return f'"{name}" {self._operator()} {_literal(value)}'
        if shape == 2:
            return f"{self._operand()} {self._operator()} {self._operand()}"
        if shape == 3:
            pattern = f"%{self._piece(1, 5)}%".replace("'", "''").replace("\n", "_")
            return f"{self._operand()} LIKE '{pattern}'"
        if shape == 4:
            return draws.choice(
                (
                    f"{self._operand()} IS NULL",
                    f"{self._operand()} IN ({', '.join(draws.choice(_LITERALS) for _ in range(3))})",
                    f"{self._operand()} BETWEEN {draws.choice(_LITERALS)} AND {draws.choice(_LITERALS)}",
                    f"COALESCE({self._operand()}, {draws.choice(_LITERALS)}) = {draws.choice(_LITERALS)}",
                    f"LENGTH({self._operand()}) > {draws.randrange(30)}",
                    f"{self._operand()} + {self._operand()} > {draws.randrange(10)}",
                )
            )
        if shape == 5:
            return f"NOT ({self._sql(depth + 1)})"
        return f"({self._sql(depth + 1)}) {draws.choice(('AND', 'OR'))} ({self._sql(depth + 1)})"

    def _operand(self) -> str:
        draws = self._draws
        return draws.choice((f'"{draws.choice(self._names)}"', draws.choice(_SQL_FIELDS), draws.choice(_LITERALS), f'LOWER("{draws.choice(self._names)}")'))

    def _operator(self) -> str:
        return self._draws.choice(("=", "<>", "<", ">", "<=", ">="))

    def _tag(self) -> str:
        import re

        document = self._draws.choice(self._documents)
        tags = re.findall(r"<([A-Za-z][\w.-]*)[\s/>]", document)
        return self._draws.choice([*tags, "nothing", "a", "price"])

    def _attribute(self) -> str:
        import re

        document = self._draws.choice(self._documents)
        return self._draws.choice([*re.findall(r"\s([A-Za-z][\w.-]*)=", document), "k", "none"])

    def _quoted(self) -> str:
        import re

        document = self._draws.choice(self._documents)
        texts = re.findall(r">([^<>&]{1,30})<", document) + re.findall(r'"([^"<>&]{1,20})"', document)
        return '"' + self._draws.choice([*texts, "9", "10", "x"]).replace('"', "") + '"'

    def _step(self) -> str:
        tag, attribute = self._tag(), self._attribute()
        return self._draws.choice(
            (
                f"//{tag}",
                f"//*:{tag}",
                f"/*/{tag}",
                f"//{tag}[@{attribute}]",
                f"//*[@{attribute} = {self._quoted()}]",
                f"//{tag}/text()",
                f"//@{attribute}",
                f"//Q{{urn:one}}{tag}",
                f"//{tag}[. = {self._quoted()}]",
                f"//{tag}[contains(., {self._quoted()})]",
                "//comment()",
                "//processing-instruction()",
            )
        )

    def _xpath(self) -> str:
        first, second = self._step(), self._step()
        return self._draws.choice(
            (
                first,
                f"{first} = {self._quoted()}",
                f"count({first}) > {self._draws.randrange(3)}",
                f"{first} < {self._draws.choice(('9', '10', '100'))}",
                f"exists({first}) and not({second})",
                f"{first} | {second}",
                f"some $x in {first} satisfies starts-with($x, {self._quoted()})",
                f"string-length(string-join({first}, '')) mod 2 = 1",
                f"matches(string(/), {self._quoted()})",
                "false()",
                f"number({first}[1]) ge 9",
            )
        )

    def _xquery(self) -> str:
        first, second = self._step(), self._step()
        return self._draws.choice(
            (
                self._xpath(),
                f"for $x in {first} where $x = {self._quoted()} return $x",
                f"for $x in {first} let $y := string($x) where string-length($y) > {self._draws.randrange(8)} order by $y return <hit>{{$y}}</hit>",
                f"let $n := count({first}) return if ($n > 1) then $n else ()",
                f"every $x in {first} satisfies exists({second})",
                f"declare namespace q = 'urn:two'; //q:a or {first} = {self._quoted()}",
            )
        )


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)
