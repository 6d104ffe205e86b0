"""XML that is safe to read anywhere."""

from __future__ import annotations

import pytest

from tdn.errors import MalformedMessage
from tdn.protocol import xmltext

LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY lol "lol">'
    + "".join(f'<!ENTITY lol{n} "{f"&lol{n - 1};" * 10 if n > 1 else "&lol;" * 10}">' for n in range(1, 10))
    + "]><lolz>&lol9;</lolz>"
)


@pytest.mark.parametrize(
    ("document", "contents"),
    [
        ("<a/>", []),
        ('<a b="1">x<c>y</c></a>', ["1", "x", "y"]),
        ("<a>&lt;&amp;&#252;</a>", ["<&ü"]),
        ("<a><![CDATA[<b>]]></a>", ["<b>"]),
        ('<?xml version="1.0" encoding="utf-8"?><a>ü</a>', ["ü"]),
        ('<x:a xmlns:x="urn:x" x:b="v"/>', ["v"]),
        ("<a><!-- hidden --><?pi hidden?></a>", []),
    ],
)
def test_contents(document: str, contents: list[str]) -> None:
    assert [text for text in xmltext.check(document) if text.strip()] == contents


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ("<!DOCTYPE a><a/>", "DOCTYPE"),
        ('<!DOCTYPE a SYSTEM "http://host.invalid/a.dtd"><a/>', "DOCTYPE"),
        ('<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>', "DOCTYPE"),
        ('<!DOCTYPE a [<!ENTITY % p SYSTEM "http://host.invalid/">%p;]><a/>', "DOCTYPE"),
        (LAUGHS, "DOCTYPE"),
        ("<a>&undeclared;</a>", "not well-formed"),
        ("<a>", "not well-formed"),
        ("<a></b>", "not well-formed"),
        ("<a/><b/>", "not well-formed"),
        ("text", "not well-formed"),
        ("", "not well-formed"),
        ("<a>\x00</a>", "not well-formed"),
        ("<a>\x0b</a>", "not well-formed"),
        ('<a b="1" b="2"/>', "not well-formed"),
        ("<x:a/>", "not well-formed"),
        ('<a x:b="1"/>', "not well-formed"),
        ("<a>\ud800</a>", "not Unicode"),
    ],
)
def test_refused(document: str, why: str) -> None:
    """T2: nothing that could open a file, expand, or be read differently by the next engine."""
    with pytest.raises(MalformedMessage, match=why):
        xmltext.check(document)


@pytest.mark.parametrize(("depth", "good"), [(64, True), (65, False), (10_000, False)])
def test_depth(depth: int, good: bool) -> None:
    document = "<a>" * depth + "</a>" * depth
    if good:
        xmltext.check(document)
    else:
        with pytest.raises(MalformedMessage, match="nested deeper"):
            xmltext.check(document)


def test_width_is_not_depth() -> None:
    xmltext.check("<a>" + "<b/>" * 5000 + "</a>")


def test_a_foreign_encoding_is_refused() -> None:
    """Some engines obey the declaration and some do not; the text travels as UTF-8."""
    xmltext.check('<?xml version="1.0" encoding="UTF-8"?><a/>')
    with pytest.raises(MalformedMessage, match="encoding"):
        xmltext.check('<?xml version="1.0" encoding="ISO-8859-1"?><a/>')
