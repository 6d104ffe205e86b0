"""Saxon, the engine of XQuery: one per process, closed to the world outside, started when it is first needed.

Starting costs 0.1 s and 60 MB, so nothing here is imported before. It runs outside Python, and neither a signal handler nor an exception
ends a query in it: whoever runs queries keeps them in a process that can be killed. It is used by one thread.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from typing import Any

#: Closes doc(), collection(), unparsed-text() and entities at the engine as well; steps of one match of a regular expression. None of the
#: engine's 130 settings closes transform(), whose vendor-options make a configuration without these: `xml_functions.refuse_harmful` keeps it out.
_SETTINGS = {
    "http://saxon.sf.net/feature/allowedProtocols": "none",
    "http://saxon.sf.net/feature/allow-external-functions": "off",
    "http://saxon.sf.net/feature/disableXslEvaluate": "true",
    "http://saxon.sf.net/feature/allowSyntaxExtensions": "off",
    "http://saxon.sf.net/feature/regexBacktrackingLimit": "10000",
}
#: Compiled queries that are kept. A node repeats few at a time.
_KEPT_QUERIES = 16


class Failed(Exception):
    """The engine refused a query or gave up on a document. The message is its own."""


class Engine:
    """Compiled queries over documents. Use `engine()`."""

    def __init__(self) -> None:
        # Saxon takes its implicit time zone from TZ, once. A query must not depend on the machine's.
        zone = os.environ.get("TZ")
        os.environ["TZ"] = "UTC"
        try:
            import saxonche

            self._error: type[Exception] = saxonche.PySaxonApiError
            self._processor: Any = saxonche.PySaxonProcessor(license=False)
            for name, value in _SETTINGS.items():
                self._processor.set_configuration_property(name, value)
            # The clock is first looked at here, while TZ is ours.
            first = self._processor.new_xquery_processor()
            first.set_query_content("implicit-timezone() eq xs:dayTimeDuration('PT0S')")
            if not first.run_query_to_value().item_at(0).boolean_value:
                raise RuntimeError("Saxon does not take UTC for its implicit time zone")
        finally:
            if zone is None:
                del os.environ["TZ"]
            else:
                os.environ["TZ"] = zone
        self._queries: OrderedDict[str, Any] = OrderedDict()

    def run(self, query: str, document: str) -> list[bool]:
        """The items of a result that are boolean by themselves; the caller writes queries that give few of them, and nothing else."""
        compiled = self._queries.get(query)
        try:
            if compiled is None:
                compiled = self._processor.new_xquery_processor()
                # Otherwise it is the directory of the process, and `$err:module` tells it.
                compiled.set_query_base_uri("urn:query")
                compiled.set_query_content(query)
            compiled.set_context(xdm_item=self._processor.parse_xml(xml_text=document))
            value = compiled.run_query_to_value()
            found = [] if value is None else [_truth(value.item_at(index)) for index in range(value.size)]
        except self._error as error:
            if _is_memory(str(error)):
                # What is kept may be half made.
                self._queries.clear()
                raise MemoryError("the engine of XQuery has no memory left") from None
            raise Failed(str(error)) from None
        self._queries[query] = compiled
        self._queries.move_to_end(query)
        if len(self._queries) > _KEPT_QUERIES:
            self._queries.popitem(last=False)
        return found


def _is_memory(message: str) -> bool:
    """Whether the engine ran out of memory. Errors that quote a document have a code, so that no document can say so."""
    return _MEMORY.search(message) is not None and _CODE.search(message) is None


_MEMORY = re.compile(r"could not allocate|out of ?memory|heap size exceeded|java heap space", re.IGNORECASE)
_CODE = re.compile(r"\b[A-Z]{4}[0-9]{4}\b")


def _truth(item: Any) -> bool:
    # Saxon 12 gives the node itself for `some $x in 'a' satisfies .`, though the type of that is boolean.
    return not item.is_atomic or item.primitive_type_name != _BOOLEAN or bool(item.boolean_value)


_BOOLEAN = "Q{http://www.w3.org/2001/XMLSchema}boolean"

_engines: dict[int, Engine] = {}


def engine() -> Engine:
    """The engine of this process. One that was started before a fork is not used after it: its threads stayed behind."""
    process = os.getpid()
    if process not in _engines:
        _engines[process] = Engine()
    return _engines[process]
