"""Who is meant by a name, and whom a topic's lists let see it."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdn.errors import UsageError
from tdn.protocol.access import (
    COLLECTION_LISTS,
    MAX_LISTED,
    NO_ACCESS,
    TOPIC_LISTS,
    Access,
    Asker,
    Lists,
    access,
    check_who,
    lists,
    read_access,
)

ALICE = Asker("alice", "Physics")
BOB = Asker("bob", "Physics")
CAROL = Asker("carol", "Zürich")
OPERATOR = Asker(None, "Physics")

names = st.sampled_from(["*", "alice", "bob", "carol", "institution:Physics", "institution:Zürich", "institution:alice"])
askers = st.sampled_from([ALICE, BOB, CAROL, OPERATOR])
pairs = st.builds(lists, st.lists(names, max_size=3), st.lists(names, max_size=3))
#: What a collection has lists about and, without one, lets its owner alone do.
OWNERS_ALONE = ("add", "owner", "include")
SUBJECTS = sorted({*TOPIC_LISTS, *COLLECTION_LISTS})


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
    assert chosen.restrict == bool(allow or deny)


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


# --- several pairs, by what they are about ---


@given(st.dictionaries(st.sampled_from(SUBJECTS), pairs))
def test_pairs_are_read_back_as_written(chosen: dict[str, Lists]) -> None:
    """T18, T23, T32: what restricts nobody has no text, so that the same choice has the same text; the rest is read back."""
    made = access("zoe", **chosen)
    assert read_access(made.as_object()) == made
    assert made.pairs == {subject: pair for subject, pair in chosen.items() if pair.restrict}
    assert made.restrict == any(pair.restrict for pair in chosen.values()) == bool(made.as_object())
    for subject in SUBJECTS:
        assert made.about(subject) == chosen.get(subject, Lists())
    assert made.discover == made.about("discover")


def test_members_of_messages() -> None:
    """The names that schemas have: what a pair is about, and which side."""
    made = access("alice", discover=lists(["bob"], ["carol"]), hierarchy=lists(["*"]), include=lists((), ["institution:Physics"]))
    assert made.as_object() == {
        "discover_allow": ["bob"],
        "discover_deny": ["carol"],
        "hierarchy_allow": ["*"],
        "include_deny": ["institution:Physics"],
    }
    assert NO_ACCESS.as_object() == {}
    assert read_access({}) == NO_ACCESS
    assert not NO_ACCESS.restrict


@pytest.mark.parametrize("subject", SUBJECTS)
def test_without_a_list(subject: str) -> None:
    """T18, T32: everybody may discover, see the place, register and watch; adding, whose topics and inclusion are for the owner alone."""
    may = {asker.entity for asker in (ALICE, BOB, CAROL, OPERATOR) if NO_ACCESS.admit(subject, asker, "alice")}
    assert may == ({"alice"} if subject in OWNERS_ALONE else {"alice", "bob", "carol", None})


@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize(
    ("pair", "may"),
    [
        (lists(["bob"]), {"alice", "bob"}),
        (lists(["*"]), {"alice", "bob", "carol", None}),
        (lists(["*"], ["bob"]), {"alice", "carol", None}),
        (lists(["institution:Zürich"]), {"alice", "carol"}),
        (lists(["bob"], ["*"]), {"alice"}),
    ],
)
def test_with_an_allow_list(subject: str, pair: Lists, may: set[str | None]) -> None:
    """T18, T23, T32: it decides alike whatever it is about; the owner always may; a pair about one thing says nothing of another."""
    chosen = Access({subject: pair})
    assert {asker.entity for asker in (ALICE, BOB, CAROL, OPERATOR) if chosen.admit(subject, asker, "alice")} == may
    for other in SUBJECTS:
        if other != subject:
            assert [chosen.admit(other, asker, "alice") for asker in (ALICE, BOB)] == [True, other not in OWNERS_ALONE]


@pytest.mark.parametrize("subject", OWNERS_ALONE)
def test_a_list_of_those_barred_opens_nothing(subject: str) -> None:
    """T32: who names only whom it bars has not thereby let in everybody else."""
    chosen = Access({subject: lists((), ["bob"])})
    assert [asker.entity for asker in (ALICE, BOB, CAROL, OPERATOR) if chosen.admit(subject, asker, "alice")] == ["alice"]


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_creator_that_bars_itself(subject: str) -> None:
    """A mistake that is told, and not quietly without effect; on an allow list, or by an institution, its name is no mistake."""
    with pytest.raises(UsageError, match=rf"barred \({subject}\) names alice, its own creator, who always may; leave it out"):
        access("alice", **{subject: lists((), ["alice", "bob"])})
    for pair in (lists(["alice"]), lists((), ["institution:Physics"]), lists((), ["*"]), lists((), ["bob"])):
        assert access("alice", **{subject: pair}).admit(subject, ALICE, "alice")


# --- under an ancestor's (T27) ---


@given(st.sampled_from(TOPIC_LISTS), pairs, pairs)
def test_below(subject: str, own: Lists, above: Lists) -> None:
    """T27: bars add up; the allow list is the nearest one. About each thing by itself."""
    held = Access({subject: own}).below(Access({subject: above})).about(subject)
    assert held.deny == tuple(sorted({*own.deny, *above.deny}))
    assert held.allow == (above.allow if own.allow is None else own.allow)
    for other in TOPIC_LISTS:
        if other != subject:
            assert not Access({subject: own}).below(Access({subject: above})).about(other).restrict


@given(askers, pairs, pairs, pairs)
def test_nobody_gets_past_an_ancestors_bar(asker: Asker, own: Lists, above: Lists, root: Lists) -> None:
    """T27: whoever any ancestor bars is barred below, however allowed there; and the nearest allow list decides, three levels deep."""
    held = Access({"discover": own}).below(Access({"discover": above}).below(Access({"discover": root}))).discover
    barred = any(asker.is_meant_by(pair.deny) for pair in (own, above, root))
    nearest = next((pair.allow for pair in (own, above, root) if pair.allow is not None), None)
    allowed = nearest is None or asker.is_meant_by(nearest)
    assert held.admit(asker, "somebody-else") == (allowed and not barred)


@given(pairs, pairs, pairs)
def test_below_goes_level_by_level_or_at_once(own: Lists, above: Lists, root: Lists) -> None:
    """What is carried down in each topic's fact is what one would find by walking up."""
    one, two, three = (Access({"register": pair}) for pair in (own, above, root))
    assert one.below(two).below(three) == one.below(two.below(three))


def test_below_examples() -> None:
    parent = access("alice", discover=lists(["bob", "carol"], ["dave"]), hierarchy=lists((), ["carol"]))
    assert NO_ACCESS.below(parent).as_object() == parent.as_object()
    own = access("bob", discover=lists(["dave", "erin"], ["frank"]), register=lists(["bob"]))
    assert own.below(parent).as_object() == {
        "discover_allow": ["dave", "erin"],
        "discover_deny": ["dave", "frank"],
        "hierarchy_deny": ["carol"],
        "register_allow": ["bob"],
    }


def test_longest() -> None:
    """What a limit on inherited names looks at: the longest single list, whatever it is about."""
    assert NO_ACCESS.longest == 0
    assert access("a", discover=lists(["x"]), watch=lists(["x"], ["b", "c", "d"])).longest == 3
    assert access("a", hierarchy=lists(["b", "c"])).longest == 2
