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
    ("document", "elements", "attributes", "texts", "asides"),
    [
        ("<a/>", ["a"], [], "", []),
        ('<a b="1">x<c>y</c>z</a>', ["a", "c"], [("b", "1")], "xyz", []),
        ("<a><a/><a/></a>", ["a", "a", "a"], [], "", []),
        ("<a>&lt;&amp;&#252;&#x41;</a>", ["a"], [], "<&üA", []),
        ('<a b="&quot;&#65;&lt;"/>', ["a"], [("b", '"A<')], "", []),
        ("<a><![CDATA[<b>]]>&gt;</a>", ["a"], [], "<b>>", []),
        ('<?xml version="1.0" encoding="utf-8"?><a>ü</a>', ["a"], [], "ü", []),
        ('<x:a xmlns:x="urn:x" x:b="v"/>', ["a"], [("b", "v")], "", []),
        ('<a xmlns="urn:x"><b c="1"/></a>', ["a", "b"], [("c", "1")], "", []),
        ('<a xml:lang="de"/>', ["a"], [("lang", "de")], "", []),
        ("<a>1<!-- a note -->2<?target some data?>3</a>", ["a"], [], "123", [" a note ", "target some data"]),
        ("<!-- before --><a/><?after?>", ["a"], [], "", [" before ", "after "]),
        ('<a b="one\ntwo\tthree">one\r\ntwo</a>', ["a"], [("b", "one two three")], "one\ntwo", []),
    ],
)
def test_contents(document: str, elements: list[str], attributes: list[tuple[str, str]], texts: str, asides: list[str]) -> None:
    """T2: what a parser makes of the document: references resolved, names without their prefix, nothing of namespaces."""
    contents = xmltext.check(document)
    assert contents.elements == elements
    assert contents.attributes == attributes
    assert "".join(contents.texts) == texts
    assert contents.asides == asides


def test_terms() -> None:
    """The lines of an index: each name and each attribute once, then the document's text in one piece, then comments and instructions."""
    document = '<s:r xmlns:s="urn:s" k="v"><i k="v">Ber</i><i k="w">lin &amp; <b>Ber</b>n</i><!--old--><?go now?></s:r>'
    assert xmltext.terms(document) == [
        "<r>",
        "<i>",
        "<b>",
        "@k=v",
        "@k=w",
        "Berlin & Bern",
        "old",
        "go now",
    ]
    assert xmltext.terms("<a/>") == ["<a>", ""]


def test_terms_of_white_space_in_attributes() -> None:
    """Saxon trims xml:id, and the index must hold what any engine may find there."""
    assert xmltext.terms("<a xml:id='  x   y ' b='c'/>") == ["<a>", "@id=  x   y ", "@id=x y", "@b=c", ""]
    assert xmltext.terms("<a b='\u00a0x'/>") == ["<a>", "@b=\u00a0x", ""]


def test_terms_of_a_long_text() -> None:
    """Long text comes from the parser in pieces; the index sees it whole, also where a reference stands in the middle."""
    body = "wort&#32;" * 10_000
    assert xmltext.terms(f"<a>{body}</a>") == ["<a>", "wort " * 10_000]


def test_terms_of_what_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="DOCTYPE"):
        xmltext.terms(LAUGHS)


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
        # No URI has a space, and expat parts a name from its namespace with one.
        ('<a xmlns="urn:x y"/>', "not well-formed"),
        ("<a>\ud800</a>", "not Unicode"),
        ("<?xml version='1.1'?><a/>", "version"),
        ('<?xml version="1.1" encoding="utf-8"?><a/>', "version"),
        ('<?xml version="1.2"?><a/>', "version"),
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
