"""XQuery by Saxon, a library in C that has threads of its own and cannot be interrupted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import saxonche


def make(argument: Any) -> Callable[[dict[str, Any]], tuple[dict[str, Any], Sequence[bytes]]]:
    processor = saxonche.PySaxonProcessor(license=False)

    def handle(job: dict[str, Any]) -> tuple[dict[str, Any], Sequence[bytes]]:
        queries = processor.new_xquery_processor()
        queries.set_query_content(job["query"])
        try:
            return {"text": queries.run_query_to_string()}, []
        except saxonche.PySaxonApiError as error:
            # How a large array ends that the kernel has no memory for. Small objects end the process instead.
            if "Could not allocate" in str(error):
                raise MemoryError from error
            raise

    return handle
