"""XML that is safe to read anywhere: well-formed, no DOCTYPE, no entities of its own, of bounded depth.

Checked with expat before anything is signed, so that no engine that later reads it (XPath, XQuery, Spark) can be made to open files
or to expand entities.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn
from xml.parsers import expat

from tdn.errors import MalformedMessage

#: Deepest element. Engines recurse over elements, and no sensible descriptor is near it.
MAX_ELEMENT_DEPTH = 64


@dataclass(slots=True)
class Contents:
    """What a document says, as an XML parser reads it."""

    #: Local names of elements, and local names with values of attributes.
    elements: list[str]
    attributes: list[tuple[str, str]]
    #: Text in document order; joined without a separator it is the string value of the document.
    texts: list[str]
    #: Comments, and targets and contents of processing instructions.
    asides: list[str]


def terms(document: str) -> list[str]:
    """The lines that an index keeps of a checked document: elements, attributes, its string value, comments and instructions."""
    contents = check(document)
    attributes = [f"@{name}={form}" for name, value in contents.attributes for form in (value, _collapsed(value))]
    return [
        *dict.fromkeys(f"<{name}>" for name in contents.elements),
        *dict.fromkeys(attributes),
        "".join(contents.texts),
        *contents.asides,
    ]


def check(document: str) -> Contents:
    """Refuse a document that is not well-formed or not safe; return what it says."""
    # With a separator expat knows namespaces, and refuses a prefix that nothing declares, as XPath and XQuery engines do.
    parser = expat.ParserCreate(encoding="utf-8", namespace_separator=" ")
    parser.buffer_text = True
    depth = 0
    contents = Contents([], [], [], [])

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > MAX_ELEMENT_DEPTH:
            raise MalformedMessage(f"XML nested deeper than {MAX_ELEMENT_DEPTH} elements")
        contents.elements.append(_local(name))
        contents.attributes.extend((_local(key), value) for key, value in attributes.items())

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1

    def refuse(*_: object) -> NoReturn:
        raise MalformedMessage("XML with a DOCTYPE or entity declarations is refused")

    def declared(version: str, encoding: str | None, standalone: int) -> None:
        # In XML 1.1 two more characters are ends of lines. Engines that know it read another text than expat, which does not.
        if version != "1.0":
            raise MalformedMessage(f"XML of version {version[:20]!r} is refused; write 1.0")
        # The text travels as UTF-8. A declaration that says otherwise is obeyed by some engines and not by others.
        if encoding is not None and encoding.lower() not in ("utf-8", "us-ascii", "ascii"):
            raise MalformedMessage(f"XML that declares the encoding {encoding[:20]!r} is refused; it is sent as UTF-8")

    parser.XmlDeclHandler = declared
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = contents.texts.append
    parser.CommentHandler = contents.asides.append
    parser.ProcessingInstructionHandler = lambda target, data: contents.asides.append(f"{target} {data}")
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(document.encode("utf-8", "strict"), True)
    except expat.ExpatError as error:
        raise MalformedMessage(f"not well-formed XML: {error}") from error
    except UnicodeEncodeError as error:
        raise MalformedMessage("text that is not Unicode") from error
    return contents


def _collapsed(value: str) -> str:
    """A value as an engine gives it that knows the attribute for an identifier or a token, such as Saxon for xml:id."""
    return " ".join(part for part in _XML_SPACES.split(value) if part)


_XML_SPACES = re.compile(r"[ \t\r\n]+")


def _local(name: str) -> str:
    """A name as expat gives it (`namespace local`) without its namespace."""
    return name.rpartition(" ")[2]
