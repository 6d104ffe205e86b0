"""Errors: one word and one exit code for each, and the same error on both ends of the wire."""

from __future__ import annotations

import pytest

from tdn import errors
from tdn.errors import KEPT_BYTES, MalformedMessage, Refused, TdnError, from_object

CLASSES = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, TdnError)]
EXIT_CODES = {"bug": 1, "usage": 2, "unreachable": 3, "trust": 4, "refused": 5, "absent": 6}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_words_and_exit_codes_are_the_interfaces(kind: type[TdnError]) -> None:
    assert EXIT_CODES[kind.word] == kind.exit_code
    assert kind.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_over_the_wire(kind: type[TdnError]) -> None:
    """What a node sends is what the client raises: same word, same message, same detail."""
    sent = kind("what happened", detail={"topic": "x"})
    raised = from_object(sent.as_object())
    if kind is not TdnError:
        assert raised.word == kind.word
    assert (raised.message, raised.detail) == ("what happened", {"topic": "x"})


@pytest.mark.parametrize("error", [{}, {"error": "fine"}, {"error": None}, {"error": "bug"}, {"detail": 1}])
def test_unknown_word_is_never_success(error: dict[str, object]) -> None:
    assert isinstance(from_object(error), Refused)


def test_only_a_bounded_copy_is_kept() -> None:
    assert len(MalformedMessage("x", received=b"a" * 10_000).received) == KEPT_BYTES
