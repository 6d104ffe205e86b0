"""Regular expressions: RE2's dialect over the descriptor's text, its limits, its errors, and the clues for an index."""

from __future__ import annotations

import pickle
import string
import sys
import time

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import re2

from tdn.errors import QueryError
from tdn.protocol import descriptor
from tdn.queries.model import AllOf, AnyOf, Anything, Clue, Contains, Query, Subject, finds, holds
from tdn.queries.regex import MAX_ASSERTIONS, MAX_INSTRUCTIONS, MAX_PATTERN_CHARACTERS, MAX_STATES, compile_regex
from tdn.queries.regex_literals import MAX_CLUE_TEXTS, MAX_GROUP_DEPTH, MAX_LITERAL_CHARACTERS, NotUnderstood, read


def subject(described: descriptor.Descriptor, synopsis: str = "") -> Subject:
    return Subject("u", "topic", "alice", "alice", "local", "2027-01-01T00:00:00Z", "2027-01-02T00:00:00Z", described, synopsis)


def found(pattern: str, text: str) -> bool:
    compiled: Query = compile_regex(pattern)
    topic = subject(descriptor.text(text))
    found = compiled.matches(topic)
    assert not found or holds(compiled.clue, topic)
    return found


@pytest.mark.parametrize(
    ("pattern", "text", "match"),
    [
        # Unanchored, in this very case.
        ("eat", "weather", True),
        ("Eat", "weather", False),
        ("(?i)EAT", "weather", True),
        ("we(?i)ATHER", "weather", True),
        ("(?i:WE)ATHER", "weather", False),
        ("(?i)we(?-i)ATHER", "weather", False),
        ("(?i)strasse", "Straße", False),
        ("(?i)STRAßE", "straße", True),
        ("(?i)ς", "Σ", True),
        # The text begins and ends once; lines do with (?m).
        ("^rain$", "rain", True),
        ("^rain$", "snow\nrain", False),
        ("rain$", "rain\n", False),
        ("(?m)^rain$", "snow\nrain\nice", True),
        (r"\Arain\z", "rain", True),
        (r"(?m)\Arain", "snow\nrain", False),
        # A dot is any character but the end of a line.
        ("a.b", "a\nb", False),
        ("(?s)a.b", "a\nb", True),
        ("^.$", "天", True),
        ("^.$", "u\u0308", False),
        ("[^a]", "\n", True),
        # Perl's classes know ASCII, Unicode's know Unicode.
        (r"^\w+$", "abc_1", True),
        (r"\w", "é", False),
        (r"\d", "\u0663", False),
        (r"\s", "\u00a0", False),
        (r"\s", "\v", False),
        (r"\bz", "éz", True),
        (r"^\pL+$", "Zürich", True),
        (r"\p{Greek}", "ω", True),
        (r"\p{^Greek}", "ω", False),
        (r"^\PN$", "5", False),
        ("[[:alpha:]]", "é", False),
        # Nothing of a quotation is a pattern.
        (r"\Qa.b*\E", "a.b*", True),
        (r"\Qa.b*\E", "aab", False),
        (r"\Qa.b", "a.b", True),
        # Numbers of characters.
        (r"\x41\x{42}\103", "ABC", True),
        (r"\x{1F600}", "\U0001f600", True),
        ("\\n", "a\nb", True),
        ("a\0b", "a\0b", True),
        # Not composed: what was written is what is seen.
        ("ü", "u\u0308", False),
        # Braces that are no repetition are braces.
        ("a{,2}", "a{,2}", True),
        ("a{01}", "a{01}", True),
        ("{", "{", True),
        ("(?U)a+?b", "aab", True),
        ("a||b", "", True),
    ],
)
def test_matches(pattern: str, text: str, match: bool) -> None:
    """T13: RE2 as it is, with nothing switched on or off."""
    assert found(pattern, text) is match


@pytest.mark.parametrize(
    ("described", "pattern", "match"),
    [
        (descriptor.path("weather/Europe/rain"), "^weather/.*/rain$", True),
        (descriptor.text("Rain today", ["snow", "ice"]), "^Rain today\nsnow\nice$", True),
        (descriptor.text("Rain today", ["snow", "ice"]), "(?m)^snow$", True),
        (descriptor.text("Rain today", []), "^Rain today$", True),
        (descriptor.properties(["z=1", "a=2.50", "b=true"]), "^a=2.5\nb=true\nz=1$", True),
        (descriptor.properties(["at=2027-01-01T00:00:00.5Z"]), r"^at=2027-01-01T00:00:00\.500Z$", True),
        (descriptor.xml('<a b="1">&#65;</a>'), '^<a b="1">&#65;</a>$', True),
        (descriptor.xml('<a b="1">&#65;</a>'), ">A<", False),
    ],
)
def test_every_kind_of_descriptor(described: descriptor.Descriptor, pattern: str, match: bool) -> None:
    """T2, T13: the text of the descriptor, and nothing else: the synopsis is not in it."""
    assert finds(compile_regex(pattern), subject(described, "synopsis=1")) is match
    assert not finds(compile_regex("synopsis"), subject(described, "synopsis=1"))


def test_a_sealed_topic_is_found_by_none() -> None:
    """T9: not even by a pattern that the empty text fits."""
    assert not finds(compile_regex("(|x)"), subject({"kind": "sealed"}, "synopsis"))


def test_a_query_is_a_value() -> None:
    """It is cached, compared and sent to other processes."""
    query = compile_regex("Ocean.*Buoy")
    assert query.language == "regex"
    assert query == compile_regex("Ocean.*Buoy")
    assert query != compile_regex("ocean.*buoy")
    assert hash(query) == hash(compile_regex("Ocean.*Buoy"))
    again = pickle.loads(pickle.dumps(query))
    assert again == query
    assert again.matches(subject(descriptor.text("Ocean 7 Buoy")))


@pytest.mark.parametrize(
    ("pattern", "position", "message", "hint"),
    [
        ("a(?=b)", 1, "invalid perl operator", "look-ahead"),
        ("a(?!b)", 1, "invalid perl operator", "look-ahead"),
        ("é(?<=a)b", 1, "invalid perl operator", "look-behind"),
        ("a(?<!a)b", 1, "invalid perl operator", "look-behind"),
        # The same characters stand earlier, and are right there.
        (r"\(?=x(?=y)", 5, "invalid perl operator", "look-ahead"),
        (r"\Q(?=\E(?=y)", 7, "invalid perl operator", "look-ahead"),
        ("(?>a)", 0, "invalid perl operator", "atomic"),
        ("a(?P=n)", 1, "invalid perl operator", "backreference"),
        ("a(?#note)", 1, "invalid perl operator", "comments"),
        ("(?R)", 0, "invalid perl operator", "recursion"),
        ("(?x)a b", 0, "invalid perl operator", "flags are i, m, s and U"),
        ("(?i", 0, "invalid perl operator", "flags are"),
        (r"(a)\1", 3, "invalid escape sequence", "backreference"),
        (r"(?P<n>a)\k<n>", 8, "invalid escape sequence", "backreference"),
        (r"a\Z", 1, "invalid escape sequence", r"\z"),
        (r"\u0041", 0, "invalid escape sequence", r"\x41"),
        (r"\x{110000}", 0, "invalid escape sequence", r"\x41"),
        (r"ab\E", 2, "invalid escape sequence", r"\Q"),
        (r"[\b]", 1, "invalid escape sequence", "backslash"),
        (r"\é", 0, "invalid escape sequence", "backslash"),
        ("a++", 1, "bad repetition operator", "possessive"),
        ("a*+", 1, "bad repetition operator", "possessive"),
        ("a{2}+", 1, "bad repetition operator", "possessive"),
        ("a**", 1, "bad repetition operator", "group"),
        ("a{2}{3}", 1, "bad repetition operator", "group"),
        ("*a", 0, "no argument for repetition", "backslash"),
        ("a|*", 2, "no argument for repetition", "backslash"),
        ("a*(*)", 3, "no argument for repetition", "backslash"),
        ("a{1001}", 1, "invalid repetition size", "1000"),
        ("a{2,1}", 1, "invalid repetition size", "smaller number first"),
        ("(a{100}){100}", 8, "invalid repetition size", "multiplied"),
        ("(((a{10}){10}){10}){10}", 19, "invalid repetition size", "multiplied"),
        ("x(a(b)", 1, "missing )", "close this group"),
        (r"[(]\(\Q(\E(?:a", 10, "missing )", "close this group"),
        ("a)b(", 1, "unexpected )", "nothing is open"),
        (r"(\))[)])", 7, "unexpected )", "nothing is open"),
        ("ab[c", 2, "missing ]", "close this class"),
        ("[b-a]", 1, "invalid character class range", "smaller"),
        (r"\p{Nope}", 0, "invalid character class range", r"\p{Lu}"),
        ("[[:foo:]]", 1, "invalid character class range", "[[:alpha:]]"),
        ("ab\\", 2, "trailing \\", "\\\\"),
        ("a(?P<>b)", 1, "invalid named capture group", "(?P<name>"),
    ],
)
def test_errors(pattern: str, position: int, message: str, hint: str) -> None:
    """T13: a wrong pattern gets its position, in characters, and a hint."""
    with pytest.raises(QueryError) as refused:
        compile_regex(pattern)
    assert refused.value.detail["position"] == position
    assert message in refused.value.message
    assert hint in refused.value.detail["hint"]


def test_what_is_no_pattern() -> None:
    with pytest.raises(QueryError, match=r"empty; write \."):
        compile_regex("")
    with pytest.raises(QueryError, match="surrogate") as refused:
        compile_regex("ab\ud800")
    assert refused.value.detail["position"] == 2
    for endless in ("x", "(", "\\", "[", "\0", "\ud800", "a|", "(?i)"):
        with pytest.raises(QueryError, match="characters; at most 4096"):
            compile_regex(endless * 1_000_000)


class TestLimits:
    def test_length(self) -> None:
        compile_regex("(?i)" * (MAX_PATTERN_CHARACTERS // 4 - 1) + "abcd")
        with pytest.raises(QueryError, match="4097 characters"):
            compile_regex("a" * (MAX_PATTERN_CHARACTERS + 1))

    def test_states(self) -> None:
        compile_regex(f"[ab]{{{MAX_STATES}}}")
        with pytest.raises(QueryError, match="too large: it compiles to 601 states"):
            compile_regex(f"[ab]{{{MAX_STATES + 1}}}")
        with pytest.raises(QueryError, match="states, at most 600"):
            compile_regex("a" * 2000)

    def test_instructions(self) -> None:
        compile_regex(r"\pL+ \pL+")
        with pytest.raises(QueryError, match=f"instructions, at most {MAX_INSTRUCTIONS}"):
            compile_regex(r"\pL+ \pL+ \pL+")

    @pytest.mark.parametrize("assertion", [r"\b", r"\B", "^", "$", r"\A", r"\z", "(?m:^)", r"(?:x|\b)"])
    def test_assertions(self, assertion: str) -> None:
        compile_regex(f"(?:a{assertion}b?){{{MAX_ASSERTIONS}}}")
        with pytest.raises(QueryError, match="51 assertions"):
            compile_regex(f"(?:a{assertion}b?){{{MAX_ASSERTIONS + 1}}}")
        with pytest.raises(QueryError, match="60 assertions"):
            compile_regex(f"(?:(?:a{assertion}b?){{6}}){{2,10}}")
        with pytest.raises(QueryError, match="60 assertions"):
            compile_regex(f"(?:a{assertion}b?){{60,}}")

    @pytest.mark.parametrize(
        "pattern", [r"\pL{100}", r"(?:\pL\pN){50}", r"(?i:[^\pL]){200}", ".{1000}", r"(?:(?:[^a]{10}){10}){10}"]
    )
    def test_huge_repetitions(self, pattern: str) -> None:
        """Refused by RE2's memory or by our counts, quickly either way."""
        before = time.thread_time()
        with pytest.raises(QueryError, match="too large") as refused:
            compile_regex(pattern)
        assert time.thread_time() - before < 2
        assert "smaller counts" in refused.value.detail["hint"]

    def test_depth(self) -> None:
        """Deeper than the reader of clues goes: still a query, without a clue, and with a tighter limit."""
        deep = "(" * (MAX_GROUP_DEPTH + 1) + "ocean" + ")" * (MAX_GROUP_DEPTH + 1)
        assert compile_regex(deep[1:-1]).clue == Contains("ocean")
        query = compile_regex(deep)
        assert query.clue == Anything()
        assert query.matches(subject(descriptor.path("ocean/1")))
        with pytest.raises(QueryError, match="1205 instructions, at most 1000"):
            compile_regex(deep + r"\pL")
        compile_regex("(" * 2000 + "a" + ")" * 2000)

    @pytest.mark.parametrize(
        ("pattern", "text"),
        [
            ("(a+)+$", "a" * 100_000 + "b"),
            ("(x+x+)+y", "x" * 100_000),
            ("(a|aa)+$", "a" * 100_000 + "b"),
            ("(.*)*=(.*)*;", "=" * 100_000),
            ("(?:.*a){30}c", "ab" * 50_000),
            ("((a{1,20}){1,20})c", "a" * 16_000),
            (".{149}c", "ab" * 8_000),
            # Near the limits, and beyond what RE2's automaton can hold: the slow way, and still in proportion.
            ("[ab]*a[ab]{590}c", "ab" * 8_000),
            (r"\C{1,590}c", "ab" * 8_000),
            (r"(?:\w?){490}cd", "a" * 16_000),
        ],
    )
    def test_no_pattern_takes_long(self, pattern: str, text: str) -> None:
        """Python's own `re` does not come back from the first three. Measured here: half a second for the slowest; the bound allows for a busy machine."""
        query, topic = compile_regex(pattern), subject(descriptor.text(text))
        before = time.thread_time()
        assert not query.matches(topic)
        assert time.thread_time() - before < 5


ALPHA_OR_BETA = AnyOf((Contains("alpha"), Contains("beta")))


@pytest.mark.parametrize(
    ("pattern", "clue"),
    [
        ("ocean", Contains("ocean")),
        ("OCEAN", Contains("ocean")),
        ("sensor-[0-9]+-roof", AllOf((Contains("sensor-"), Contains("-roof")))),
        ("(alpha|beta)/temperature", AllOf((Contains("a/temperature"), ALPHA_OR_BETA))),
        ("(?i)Ocean.*Buoy", AllOf((Contains("ocean"), Contains("buoy")))),
        ("^/weather/.*/rain$", AllOf((Contains("/weather/"), Contains("/rain")))),
        ("(?m)^status=operational$", Contains("status=operational")),
        ("alpha|beta", ALPHA_OR_BETA),
        ("alpha|beta|.", Anything()),
        ("alpha|be", Anything()),
        ("(?:alpha|beta)?gamma", Contains("gamma")),
        ("(?P<name>alpha|beta)+", ALPHA_OR_BETA),
        ("(?<name>alpha|beta){2,3}", ALPHA_OR_BETA),
        ("(?:alpha|beta){0,3}", Anything()),
        ("(?:alpha|beta)*", Anything()),
        ("(?:alpha|beta)*?", Anything()),
        ("(?:alpha){0}", Anything()),
        ("abc*", Anything()),
        ("abcd*", Contains("abc")),
        ("abcd+", Contains("abcd")),
        ("abcd+efg", AllOf((Contains("abcd"), Contains("defg")))),
        ("abcd{3}efg", Contains("abcdddefg")),
        ("abcd{2,}efg", AllOf((Contains("abcdd"), Contains("ddefg")))),
        ("abcd{0,2}efg", AllOf((Contains("abc"), Contains("efg")))),
        ("x(?:abc){2}y", Contains("xabcabcy")),
        ("x(?:a.c)+y", Anything()),
        ("xyz(?:abc.abc)+xyz", AllOf((Contains("xyzabc"), Contains("abcxyz")))),
        ("abc{,2}", Contains("abc{,2}")),
        ("abc{01}", Contains("abc{01}")),
        ("abc{9999999999}", Contains("abc{9999999999}")),
        (r"\Qa.b+\E", Contains("a.b+")),
        (r"\Qabc\E+", Contains("abc")),
        (r"abc\Q\E*", Anything()),
        (r"\Qabc", Contains("abc")),
        (r"\x41\x{42}\103\.\n\t\_", Contains("abc.\n\t_")),
        (r"\0\01\012x", Contains("\ufffd\x01\nx")),
        (r"\12345", Contains("s45")),
        (r"a\bb\Bc\A\z^$d", Contains("abcd")),
        ("[a][b]c[d]", Contains("abcd")),
        ("[Oo]cean", Contains("ocean")),
        ("oce[ab]an", Contains("oce")),
        ("oce[^a]n", Contains("oce")),
        ("abc[a-a]def", Contains("abcadef")),
        ("abc[a-b]def", AllOf((Contains("abc"), Contains("def")))),
        # From one case of a letter to the other: alike at both ends, and forty others between.
        ("abc[K-k]def", AllOf((Contains("abc"), Contains("def")))),
        ("abc[]]def", Contains("abc]def")),
        ("abc[^]]def", AllOf((Contains("abc"), Contains("def")))),
        ("abc[[]def", Contains("abc[def")),
        (r"abc[\]]def", Contains("abc]def")),
        (r"abc[-]def", Contains("abc-def")),
        ("abc[[:alpha:]]def", AllOf((Contains("abc"), Contains("def")))),
        (r"abc[\d]def", AllOf((Contains("abc"), Contains("def")))),
        (r"abc[\p{Greek}]def", AllOf((Contains("abc"), Contains("def")))),
        (r"abc\p{Greek}def\PNghi", AllOf((Contains("abc"), Contains("def"), Contains("ghi")))),
        (r"abc\Cdef", AllOf((Contains("abc"), Contains("def")))),
        ("Zürich", Contains("zürich")),
        ("(?i)Zürich", Contains("rich")),
        ("(?i:Zü)rich", Contains("rich")),
        ("ü(?i)ber", Contains("über")),
        ("(?i)(?-i)über", Contains("über")),
        ("(?i)ab(?-i:ü)cd", Contains("abücd")),
        ("(?:(?i)abc)ü", Contains("abcü")),
        ("(?:x|(?i)y|üüü)", Anything()),
        ("(?s)abc.def(?U)g+", AllOf((Contains("defg"), Contains("abc")))),
        ("(?im-sU:abc)", Contains("abc")),
        ("(?i)straße", Contains("stra")),
        ("straße", Contains("strasse")),
        ("abc(?i)*", Anything()),
        ("(?)abc", Contains("abc")),
        ("ab(cd|ce)fg", Contains("abc")),
        ("ab(xc|yc)fg", Contains("cfg")),
        ("a\0bc", Contains("a\ufffdbc")),
        (r"abc\x{D800}", Contains("abc")),
        (".", Anything()),
        (".*", Anything()),
        ("()", Anything()),
        ("ab", Anything()),
        ("[0-9]{4}", Anything()),
    ],
)
def test_clue(pattern: str, clue: Clue) -> None:
    """Literals that every match contains, joined as far as they touch."""
    assert compile_regex(pattern).clue == clue


class TestClueBounds:
    def test_long_literals_are_cut(self) -> None:
        alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
        literal = "".join(first + second for first in alphabet[:10] for second in alphabet)[:400]
        clue = read(literal).clue
        assert clue == AllOf((Contains(literal[:MAX_LITERAL_CHARACTERS]), Contains(literal[-MAX_LITERAL_CHARACTERS:])))
        assert holds(clue, subject(descriptor.text(literal)))
        assert read("(?:ab){500}").clue == Contains("ab" * (MAX_LITERAL_CHARACTERS // 2))

    def test_many_literals(self) -> None:
        """The longest are kept."""
        words = [f"{'w' * length}{length}" for length in range(3, 40)]
        clue = read(".".join(words)).clue
        assert isinstance(clue, AllOf)
        assert set(clue.clues) == {Contains(word) for word in words[-8:]}

    @pytest.mark.parametrize(
        "pattern",
        [
            "|".join(f"w{number:03}" for number in range(MAX_CLUE_TEXTS + 1)),
            "(?:aaa|bbb|ccc|ddd|eee|fff|ggg|hhh|iii)" * 100,
            "(?:aaa.bbb|ccc.ddd)" * 200,
            "(" * 100 + "abc" + "|def)" * 100,
            "(?:abc|" * 100 + "x" + ")" * 100,
            "(?:abc.(?:" * 49 + "x" + "|def))" * 49,
            r"\Q\E" * 1000 + "abc",
            "(?i)" * 1000 + "abc",
            "a|" * 2000,
            "." * 4000,
            "[ab]" * 1000,
            "{" * 4000,
            "abc." * 1000,
        ],
    )
    def test_bounded(self, pattern: str) -> None:
        before = time.thread_time()
        clue = read(pattern).clue
        assert time.thread_time() - before < 1
        assert texts(clue) <= MAX_CLUE_TEXTS

    def test_at_the_bound(self) -> None:
        assert texts(read("|".join(f"w{number:03}" for number in range(MAX_CLUE_TEXTS))).clue) == MAX_CLUE_TEXTS
        assert read("|".join(f"w{number:03}" for number in range(MAX_CLUE_TEXTS + 1))).clue == Anything()

    @pytest.mark.parametrize(
        "pattern", ["(", "a)", "[a", "*", "(?=a)", "\\", r"\Z", r"\x{110000}", "(?x)", "(" * 101 + ")" * 101]
    )
    def test_what_it_does_not_understand(self, pattern: str) -> None:
        with pytest.raises(NotUnderstood):
            read(pattern)


def texts(clue: Clue) -> int:
    if isinstance(clue, AllOf | AnyOf):
        return sum(map(texts, clue.clues))
    return int(isinstance(clue, Contains))


def test_ignoring_case_folds_ascii_alike() -> None:
    """What `(?i)` takes for an ASCII character has that character's case folding, in all of Unicode: else its clue would lose topics."""
    everything = "".join(map(chr, [*range(0xD800), *range(0xE000, sys.maxunicode + 1)]))
    others = set()
    for letter in string.ascii_letters:
        taken = re2.findall(f"(?i){letter}", everything)
        assert {letter.lower(), letter.upper()} <= set(taken)
        assert {character.casefold() for character in taken} == {letter.lower()}
        others.update(character for character in taken if not character.isascii())
    assert others == {"\u017f", "\u212a"}, "long s and the Kelvin sign: the test would see others"
    assert all(character.isascii() for character in re2.findall(r"(?i)[\x00-\x40\x5b-\x60\x7b-\x7f]", everything))


@pytest.mark.parametrize(
    "pattern", [r"\pL", r"\pN", r"\p{Lu}", r"\p{Greek}", r"\pM", r"\w", r"\s", "(?i)[a-zäßſ]", r"(?i)\p{Lu}", ".", "[[:punct:]]"]
)
def test_arrow_has_the_same_re2(pattern: str) -> None:
    """Bulk search lets Arrow look at many topics at once: its RE2 means the same by every class, for all characters that have a meaning."""
    characters = [chr(number) for number in range(1, 0x33480) if not 0xD800 <= number <= 0xDFFF]
    found = pc.filter(pa.array(characters), pc.match_substring_regex(pa.array(characters), pattern))
    runs = compile_regex(f"(?:{pattern})+")._compiled.findall("".join(characters).encode())
    assert "".join(found.to_pylist()) == b"".join(runs).decode()
