"""Who is meant by a name, and whom a topic's lists let see it."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdn.errors import UsageError
from tdn.protocol.access import MAX_LISTED, Asker, Lists, check_who, lists, read_lists

ALICE = Asker("alice", "Physics")
BOB = Asker("bob", "Physics")
CAROL = Asker("carol", "Zürich")
OPERATOR = Asker(None, "Physics")

names = st.sampled_from(["*", "alice", "bob", "carol", "institution:Physics", "institution:Zürich", "institution:alice"])
askers = st.sampled_from([ALICE, BOB, CAROL, OPERATOR])


def test_names_of_an_asker() -> None:
    """An entity is meant by its id, its institution and everyone; whoever is no entity has no id that could be meant."""
    assert ALICE.names == {"*", "alice", "institution:Physics"}
    assert OPERATOR.names == {"*", "institution:Physics"}
    assert ALICE.is_meant_by(["bob", "alice"])
    assert ALICE.is_meant_by(("institution:Physics",))
    assert ALICE.is_meant_by({"*"})
    for nobody in ([], ["bob"], ["institution:physics"], ["Physics"], ["institution:alice"], [""], ["entity:alice"]):
        assert not ALICE.is_meant_by(nobody)


def test_an_institution_named_like_an_entity() -> None:
    """T18: the name of an institution cannot stand for an id, nor an id for an institution."""
    odd = Asker("physics", "alice")
    assert not odd.is_meant_by(["alice"])
    assert odd.is_meant_by(["institution:alice"])
    assert not Asker("alice", "*").is_meant_by(["institution:Physics"])
    assert Asker("alice", "*").names == {"*", "alice", "institution:*"}


@pytest.mark.parametrize(
    ("allow", "deny", "seen_by"),
    [
        ((), (), {"alice", "bob", "carol", None}),
        (("bob",), (), {"alice", "bob"}),
        (("institution:Zürich",), (), {"alice", "carol"}),
        (("institution:Physics",), (), {"alice", "bob", None}),
        (("*",), (), {"alice", "bob", "carol", None}),
        ((), ("bob",), {"alice", "carol", None}),
        ((), ("institution:Physics",), {"alice", "carol"}),
        ((), ("*",), {"alice"}),
        (("bob", "carol"), ("institution:Physics",), {"alice", "carol"}),
        (("*",), ("*",), {"alice"}),
        (("bob",), ("bob",), {"alice"}),
        (("carol",), ("bob",), {"alice", "carol"}),
        ((), ("alice",), {"alice", "bob", "carol", None}),
    ],
)
def test_admit(allow: tuple[str, ...], deny: tuple[str, ...], seen_by: set[str | None]) -> None:
    """T18: the owner (alice) always; barred wins over allowed; with an allow list, only those on it."""
    chosen = lists(allow, deny)
    assert {asker.entity for asker in (ALICE, BOB, CAROL, OPERATOR) if chosen.admit(asker, "alice")} == seen_by


def test_somebody_without_an_id_owns_nothing() -> None:
    assert not lists((), ("*",)).admit(OPERATOR, "")
    assert not lists((), ("*",)).admit(OPERATOR, "operator")


@given(askers, st.lists(names, max_size=4), st.lists(names, max_size=4), names)
def test_more_on_a_list(asker: Asker, allow: list[str], deny: list[str], another: str) -> None:
    """T18: barring one more never shows a topic to anybody; allowing one more, where there is a list, never hides it."""
    before = lists(allow, deny).admit(asker, "alice")
    assert before or not lists(allow, [*deny, another]).admit(asker, "alice")
    if allow:
        assert not before or lists([*allow, another], deny).admit(asker, "alice")


@given(st.lists(names, max_size=6), st.lists(names, max_size=6))
def test_one_choice_has_one_text(allow: list[str], deny: list[str]) -> None:
    """Sorted and without doubles, so that equal lists are equal when signed; and read back as they were."""
    chosen = lists(allow, deny)
    assert chosen == lists(reversed(allow), [*deny, *deny])
    assert chosen.deny == tuple(sorted(set(deny)))
    assert chosen.allow == (tuple(sorted(set(allow))) or None)
    assert read_lists(chosen.as_object()) == chosen
    assert chosen.restrict == bool(allow or deny)
    assert (chosen.as_object() == {}) == (not chosen.restrict)


def test_an_empty_allow_list_is_no_list() -> None:
    """None allowed by name means that everybody is. Messages cannot carry an empty list; a value that says so admits nobody else."""
    assert lists().allow is None
    assert not lists().restrict
    assert Lists(allow=()).restrict
    assert not Lists(allow=()).admit(BOB, "alice")
    assert Lists(allow=()).admit(ALICE, "alice")


@pytest.mark.parametrize(
    "who", ["*", "alice", "a-b_9", "institution:X", "institution:Zürich, West", f"institution:{'x' * 128}", "institution:*"]
)
def test_sound_names(who: str) -> None:
    assert check_who(who) == who


@pytest.mark.parametrize(
    ("who", "fragment"),
    [
        *product(
            ["", "Alice", "entity:alice", "**", "a b", "a" * 64, "-a", "Institution:X", "alice\n"],
            ["names nobody; write an entity's id"],
        ),
        *product(
            ["institution:", f"institution:{'x' * 129}", "institution:a\nb", "institution:\x7f", "institution:\0"],
            ["names no institution"],
        ),
    ],
)
def test_names_of_nobody(who: str, fragment: str) -> None:
    """What is refused is named, shortened, with what to write instead."""
    with pytest.raises(UsageError, match=fragment) as caught:
        check_who(who)
    assert len(caught.value.message) < 200
    for allow, deny in (([who], []), ([], [who])):
        with pytest.raises(UsageError, match=fragment):
            lists(allow, deny)


def test_longest_list() -> None:
    """T18: 500 names, counted without doubles; a 501st is refused on either list, with what to do instead."""
    most = [f"e{number}" for number in range(MAX_LISTED)]
    assert len(lists([*most, *most], most).deny) == MAX_LISTED == 500
    for allow, deny in (([*most, "one-more"], []), ([], [*most, "one-more"])):
        with pytest.raises(UsageError, match="501 names; at most 500 are allowed: name an institution instead"):
            lists(allow, deny)
