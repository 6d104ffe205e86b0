"""An XML descriptor as the tree of nodes that elementpath walks, with string values as XPath defines them.

elementpath 5.1 builds such trees itself, but forgets the text that follows a comment or an instruction (`<a>x<!-- -->y</a>` becomes "x"),
and counts comments beside the root element as text of the document. So this module builds the tree, and says what its string values are.
"""

from __future__ import annotations

from typing import Any

from elementpath.datatypes import UntypedAtomic
from elementpath.xpath_nodes import CommentNode, EtreeDocumentNode, EtreeElementNode, ProcessingInstructionNode, TextNode
from lxml import etree

_PARSER = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, dtd_validation=False, huge_tree=False)


class Element(EtreeElementNode):
    __slots__ = ()

    @property
    def string_value(self) -> str:
        return "".join(_texts(self))

    @property
    def typed_value(self) -> Any:
        return UntypedAtomic(self.string_value)

    @property
    def iter_typed_values(self) -> Any:
        yield UntypedAtomic(self.string_value)

    @property
    def compat_string_value(self) -> str:
        return self.string_value


class Document(EtreeDocumentNode):
    __slots__ = ()

    @property
    def string_value(self) -> str:
        return "".join(_texts(self))

    @property
    def compat_string_value(self) -> str:
        return self.string_value


def _texts(node: Any) -> list[str]:
    found: list[str] = []
    for child in node.children:
        if isinstance(child, TextNode):
            found.append(child.value)
        elif isinstance(child, EtreeElementNode):
            found += _texts(child)
    return found


def read(text: str) -> Document:
    """The document node of a checked descriptor. Entities are not resolved and nothing is fetched, should the check have missed one."""
    root = etree.fromstring(text.encode("utf-8"), _PARSER)
    document: Any = Document(root.getroottree())
    counter = _Counter()
    for sibling in reversed(list(root.itersiblings(preceding=True))):
        counter.aside(sibling, document)
    counter.element(root, document)
    for sibling in root.itersiblings():
        counter.aside(sibling, document)
    return document  # type: ignore[no-any-return]


class _Counter:
    """Adds nodes, numbered in document order: what elementpath sorts by."""

    def __init__(self) -> None:
        self.position = 2

    def element(self, source: Any, parent: Any) -> None:
        node: Any = Element(source, parent, self.position)
        # Room for the namespace and attribute nodes that elementpath makes when they are asked for.
        self.position += len(source.nsmap) + len(source.attrib) + 2
        self.text(source.text, node)
        for child in source:
            if isinstance(child.tag, str):
                self.element(child, node)
            else:
                self.aside(child, node)
            self.text(child.tail, node)

    def text(self, content: str | None, parent: Any) -> None:
        if content:
            TextNode(content, parent, self.position)
            self.position += 1

    def aside(self, source: Any, parent: Any) -> None:
        if source.tag is etree.Comment:
            CommentNode(source, parent, self.position)
        elif source.tag is etree.PI:
            ProcessingInstructionNode(source, None, parent, self.position)
        else:
            raise ValueError("an entity that was not resolved")
        self.position += 1
