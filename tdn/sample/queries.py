"""Questions about the sample: selective ones with one to ten matches, broad ones, and the most expensive that are allowed.

Selective queries ask for the codes that a topic is told apart by, in every form that a language has for it. Codes never come twice, so a query made for
the first ten thousand topics has the same matches among the first million: the same question can be asked of stores of any size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from tdn.protocol import descriptor as descriptors
from tdn.sample.draws import Draws, scattered
from tdn.sample.topics import Codes, Description, codes, describe

LANGUAGES = ("string", "regex", "sql", "xpath", "xquery")


@dataclass(frozen=True, slots=True)
class SampleQuery:
    language: str
    #: What it shows, in a few words, for the tables of a benchmark.
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class _Found:
    """A topic to ask for: what it says of itself, and the codes that it shows (empty where it does not)."""

    description: Description
    text: str
    codes: Codes
    #: The serial number with its domain's letters.
    serial: str
    campaign: str
    asset: str

    @property
    def kind(self) -> str:
        return str(self.description.descriptor["kind"])

    @property
    def properties(self) -> dict[str, Any]:
        return dict(self.description.descriptor.get("properties", {}))

    @property
    def xml(self) -> str:
        return str(self.description.descriptor.get("xml", ""))


#: A query about a topic, or None where the topic is of another kind or does not show what is asked for.
_Form = Callable[[_Found], str | None]


def selective_queries(
    seed: int, size: int, each: int = 4, languages: Collection[str] = LANGUAGES
) -> dict[str, list[SampleQuery]]:
    """By language: for each form of query `each` queries that have one to ten matches among the first `size` topics, and no more among any number."""
    return {
        language: [
            SampleQuery(language, name, text)
            for name, form in forms.items()
            for text in _asked(seed, size, each, f"{language} {name}", form)
        ]
        for language, forms in _FORMS.items()
        if language in languages
    }


def broad_queries() -> dict[str, list[SampleQuery]]:
    """Queries that a good part of all topics match."""
    return _listed(
        {
            "string": {"a common word": "temperature", "two common words": "zürich serial"},
            "regex": {"a common literal": "status=operational", "no literal": "[0-9]{4}"},
            "sql": {
                "a string": "domain = 'traffic'",
                "a range": "priority >= 3 AND public = true",
                "a field": "institution LIKE 'University%'",
            },
            "xpath": {"an element": "//status", "a comparison": "//site = 'Zürich'"},
            "xquery": {"an element": "for $s in //status return $s", "a comparison": "exists(//*:site[@country = 'CH'])"},
        }
    )


def expensive_queries() -> dict[str, list[SampleQuery]]:
    """Queries that nothing matches and that no index helps with: every topic has to be looked at, as slowly as the language allows."""
    words = " ".join(f"{first}{second}" for first in "aeio" for second in "rnstlcd")
    return _listed(
        {
            "string": {"short words": f"{words} ~~"},
            "regex": {
                # Each letter begins a possible match, so a hundred of them are followed at once: two milliseconds for a text.
                "a gap": "(?s)[a-z].{100}[\\x{2190}-\\x{21ff}]",
                "many ways": "(?s)(?:.?[a-z].?){40}.*[\\x{2190}-\\x{21ff}]",
            },
            "sql": {
                "arithmetic": "(priority * 7 + interval_s) / 3 > 1000000 OR (floor + channel) * (floor - channel) < -1000000",
                "patterns": "site LIKE '%a%e%i%o%u%y%' OR maker LIKE '%x%y%z%' OR status LIKE '%q_q%'",
            },
            "xpath": {
                "all pairs": "//*[count(preceding::*) + count(following::*) + count(ancestor::*) > 100000]",
                "counting": "count(//*[count(//*[count(..//*) > 0]) > 100000]) > 0",
            },
            "xquery": {
                "all threes": "for $a in //*, $b in //*, $c in //* where $a << $b and $b << $c and string-length($c) < 0 return $a",
                "sums": "sum((for $a in //*, $b in //*, $c in //* return count($a | $b | $c))) < 0",
            },
        }
    )


def _listed(queries: dict[str, dict[str, str]]) -> dict[str, list[SampleQuery]]:
    return {language: [SampleQuery(language, name, text) for name, text in forms.items()] for language, forms in queries.items()}


def _asked(seed: int, size: int, each: int, label: str, form: _Form) -> Iterator[str]:
    """Queries about `each` different topics, from places that are scattered over all of them."""
    left = each
    start = Draws(int.from_bytes(scattered(f"query {seed} {label}", size), "big")).below(size)
    # A stride without a common divisor visits every topic once.
    stride = _coprime(size)
    for step in range(size):
        text = form(_found(seed, (start + step * stride) % size))
        if text is not None:
            yield text
            left -= 1
            if left == 0:
                return
    raise ValueError(f"{size} topics are too few: {each - left} of {each} queries found for {label!r}")


def _coprime(size: int) -> int:
    stride = size * 5 // 13 | 1
    while _divisor(stride, size) != 1:
        stride += 2
    return stride


def _divisor(one: int, other: int) -> int:
    while other:
        one, other = other, one % other
    return one


def _found(seed: int, number: int) -> _Found:
    description = describe(seed, number)
    text = descriptors.searchable(description.descriptor)
    known_as = codes(seed, number)
    at = text.find(known_as.serial)
    return _Found(
        description=description,
        text=text,
        codes=known_as,
        serial=text[at - 3 : at + 8] if at >= 0 else "",
        campaign=known_as.campaign if known_as.campaign in text else "",
        asset=str(known_as.asset) if str(known_as.asset) in text else "",
    )


# --- the forms, by language ---------------------------------------------------------------------------------------------------------


def _with_opening(found: _Found) -> str | None:
    """The serial number after the first letters of the text."""
    opening = found.text.removeprefix("/")[:5]
    if not found.serial or not (opening.isascii() and opening.isalpha()):
        return None
    return f"(?s){opening}.*{found.codes.serial}"


def _two_words(found: _Found) -> str | None:
    word = found.text.replace("/", " ").split()[0]
    return f"{word} {found.codes.serial}" if found.serial else None


def _property(name: str, template: str) -> _Form:
    """A query about one property, where it is there and is a string or a whole number."""

    def form(found: _Found) -> str | None:
        value = found.properties.get(name)
        return template.format(_quoted(value) if isinstance(value, str) else value) if value is not None else None

    return form


def _asset(template: str) -> _Form:
    def form(found: _Found) -> str | None:
        value = found.properties.get("asset")
        return template.format(value, value + 1000) if isinstance(value, int) else None

    return form


def _of_property(found: _Found, text: str) -> str | None:
    return text if "serial" in found.properties else None


def _campaign_at_site(found: _Found) -> str | None:
    if found.kind != "properties" or not found.campaign or "site" not in found.properties:
        return None
    return f"campaign = {_quoted(found.campaign)} AND site = {_quoted(found.properties['site'])}"


def _serial_of_creator(found: _Found) -> str | None:
    return _of_property(found, f"creator = '{found.description.creator}' AND serial LIKE '%{found.codes.serial[2:]}'")


def _path_of_institution(found: _Found) -> str | None:
    if found.kind != "path" or not found.serial:
        return None
    return f"institution = {_quoted(found.description.institution)} AND path LIKE '%{found.serial}'"


def _plain_xml(found: _Found) -> bool:
    return found.kind == "xml" and "xmlns" not in found.xml


def _serial_element(found: _Found) -> bool:
    return found.kind == "xml" and bool(found.serial) and f"serial>{found.serial}" in found.xml


def _serial_attribute(found: _Found) -> bool:
    return found.kind == "xml" and bool(found.serial) and f'serial="{found.serial}"' in found.xml


def _root(found: _Found) -> str:
    """The name of the outermost element, where it has no namespace."""
    return found.xml.partition(' id="')[0].rpartition("<")[2]


def _namespace(found: _Found) -> str:
    return found.xml.partition('xmlns:s="')[2].partition('"')[0]


def _if(condition: bool, text: str) -> str | None:
    return text if condition else None


def _quoted(text: str) -> str:
    """As a string of SQL."""
    return "'" + text.replace("'", "''") + "'"


_FORMS: dict[str, dict[str, _Form]] = {
    "string": {
        "serial number": lambda it: it.serial or None,
        "in lower case": lambda it: it.serial.lower() or None,
        "part of it": lambda it: it.codes.serial[2:] if it.serial else None,
        "and another word": _two_words,
        "campaign": lambda it: it.campaign or None,
        "asset number": lambda it: it.asset or None,
        "uuid in the synopsis": lambda it: it.description.uuid,
    },
    "regex": {
        "serial number": lambda it: it.serial or None,
        "with a gap": lambda it: f"{it.serial[:7]}[0-9A-Z]{{2}}{it.serial[9:]}" if it.serial else None,
        "whatever case": lambda it: f"(?i){it.serial.lower()}" if it.serial else None,
        "after other text": _with_opening,
        "alternatives": lambda it: f"(?:{it.serial}|{it.campaign})" if it.serial and it.campaign else None,
        "campaign": lambda it: f"\\b{it.campaign}\\b" if it.campaign else None,
    },
    "sql": {
        "serial number": _property("serial", "serial = {}"),
        "prefix": lambda it: _of_property(it, f"serial LIKE '{it.serial[:8]}%'"),
        "one of": lambda it: _of_property(it, f"serial IN ('{it.serial}', '{it.serial[3:]}', 'none')"),
        "asset number": _asset("asset = {0}"),
        "range": _asset("asset BETWEEN {0} AND {1}"),
        "campaign": _property("campaign", "campaign = {}"),
        "two properties": _campaign_at_site,
        "serial number and creator": _serial_of_creator,
        "path and institution": _path_of_institution,
        "uuid": lambda it: f"uuid = '{it.description.uuid}'",
        "select": lambda it: _of_property(
            it, f"SELECT * FROM topics WHERE serial = '{it.serial}' AND (retired IS NULL OR NOT retired OR retired)"  # noqa: S608  # a sample of a query, for our own parser
        ),
    },
    "xpath": {
        # All of them are XPath 1.0 too, so that other engines can be asked the same.
        "attribute": lambda it: _if(_serial_attribute(it), f"//*[@serial = '{it.serial}']"),
        "attribute of the root": lambda it: _if(
            _serial_attribute(it) and _plain_xml(it), f"/{_root(it)}[@serial = '{it.serial}']/site"
        ),
        "element": lambda it: _if(_serial_element(it) and _plain_xml(it), f"//serial = '{it.serial}'"),
        "element of any namespace": lambda it: _if(
            it.kind == "xml" and bool(it.campaign), f"//*[local-name() = 'campaign' and . = '{it.campaign}']"
        ),
        "part of the text": lambda it: _if(_serial_element(it), f"/*[contains(., '{it.codes.serial}')]"),
        "two conditions": lambda it: _if(
            _serial_element(it) and _plain_xml(it), f"//serial[starts-with(., '{it.serial[:8]}')] and //site/@country"
        ),
    },
    "xquery": {
        "attribute": lambda it: _if(_serial_attribute(it), f"exists(//*[@serial = '{it.serial}'])"),
        "for and where": lambda it: _if(_serial_element(it), f"for $s in //*:serial where $s = '{it.serial}' return $s"),
        "some": lambda it: _if(it.kind == "xml" and bool(it.campaign), f"some $c in //*:campaign satisfies $c = '{it.campaign}'"),
        "namespace": lambda it: _if(
            _serial_element(it) and "xmlns:s=" in it.xml,
            f"declare namespace n = '{_namespace(it)}'; //n:serial[. = '{it.serial}']",
        ),
        "element made": lambda it: _if(
            _serial_attribute(it), f"let $s := /*/@serial where $s = '{it.serial}' return <hit>{{string($s)}}</hit>"
        ),
    },
}
