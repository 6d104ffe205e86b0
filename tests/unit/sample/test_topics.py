"""The sample of topics: the same everywhere, sound as requests, and as varied as it promises."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from itertools import islice, pairwise

import pytest

from tdn.protocol import descriptor as descriptors
from tdn.protocol import jsontext, names, schemas, synopsis, xmltext
from tdn.sample import draws, topics
from tdn.sample.topics import Description

SEED = 1


@pytest.fixture(scope="module")
def sample() -> list[Description]:
    return list(islice(topics.descriptions(SEED), 5000))


def fingerprint(descriptions: list[Description]) -> str:
    content = hashlib.sha256()
    for one in descriptions:
        content.update(jsontext.canonical([one.number, one.uuid, one.created_offset_seconds, one.body]))
    return content.hexdigest()


def test_a_seed_gives_the_same_topics_everywhere(sample: list[Description]) -> None:
    """Pinned: another version of Python, or another machine, that gave other topics would make figures incomparable."""
    assert fingerprint(sample[:2000]) == "dd1c66443f8c63a3336a2952a33b808b5be8f3933e02075d7949c85082d50ad4"


def test_another_seed_gives_other_topics(sample: list[Description]) -> None:
    others = list(islice(topics.descriptions(SEED + 1), 200))
    assert {one.uuid for one in others}.isdisjoint(one.uuid for one in sample)
    assert topics.codes(SEED, 7) != topics.codes(SEED + 1, 7)


def test_a_topic_does_not_depend_on_those_before_it(sample: list[Description]) -> None:
    assert topics.describe(SEED, 4321) == sample[4321]
    assert next(topics.descriptions(SEED, start=77)) == sample[77]
    assert topics.creator(topics.creator_rank(SEED, 4321)).id == sample[4321].creator


def test_every_topic_could_be_asked_for(sample: list[Description]) -> None:
    """T2, T3: nothing in the sample would be refused by a node."""
    for one in sample:
        schemas.check("create", one.body)
        descriptors.check(one.descriptor)
        synopsis.check(one.synopsis_type, one.synopsis_placeholder)
        names.check_uuid(one.uuid)
        names.check_id(one.creator)
        # What a certificate can hold as the name of an organisation.
        assert len(one.institution) <= 64
        assert one.institution.isprintable()


def test_kinds_have_their_shares(sample: list[Description]) -> None:
    """T2: all four kinds."""
    kinds = Counter(one.descriptor["kind"] for one in sample)
    for kind, share in (("path", 0.35), ("text", 0.25), ("properties", 0.25), ("xml", 0.15)):
        assert abs(kinds[kind] / len(sample) - share) < 0.03, kinds
    assert set(Counter(one.synopsis_type for one in sample)) == {"string", "tags", "properties", "xml"}


def test_descriptors_have_the_promised_sizes(sample: list[Description]) -> None:
    depths = {one.descriptor["path"].removeprefix("/").count("/") + 1 for one in sample if one.descriptor["kind"] == "path"}
    assert depths == {3, 4, 5, 6, 7}
    lengths = [len(one.descriptor["text"]) for one in sample if one.descriptor["kind"] == "text"]
    assert 40 <= min(lengths) < 100
    assert 350 < max(lengths) <= 400
    elements = [len(xmltext.check(one.descriptor["xml"]).elements) for one in sample if one.descriptor["kind"] == "xml"]
    assert min(elements) == 5
    assert 35 < max(elements) <= 40


def test_few_create_much_and_many_create_little(sample: list[Description]) -> None:
    institutions = Counter(one.institution for one in sample).most_common()
    assert len(institutions) > 250
    assert institutions[0][1] > 20 * institutions[len(institutions) // 2][1]
    creators = Counter(one.creator for one in sample)
    assert len(creators) > 2000
    assert creators.most_common(1)[0][1] > 10
    assert len({topics.institution(rank) for rank in range(topics.INSTITUTION_COUNT)}) == topics.INSTITUTION_COUNT
    known = [topics.creator(rank) for rank in range(topics.CREATOR_COUNT)]
    assert len({creator.id for creator in known}) == topics.CREATOR_COUNT


def test_properties_are_of_all_types_and_sometimes_disagree(sample: list[Description]) -> None:
    """T2: typed properties, as they are in the wild: missing here, of another type there."""
    found: dict[str, Counter[str]] = {}
    with_properties = [one.descriptor for one in sample if one.descriptor["kind"] == "properties"]
    for descriptor in with_properties:
        for name, kind in descriptor["types"].items():
            found.setdefault(name, Counter())[kind] += 1
    assert {kind for kinds in found.values() for kind in kinds} == {"string", "integer", "float", "boolean", "timestamp"}
    assert set(found["asset"]) == {"integer", "string"}
    assert set(found["temperature"]) == {"float", "integer", "string"}
    assert 0 < sum(found["commissioned"].values()) < len(with_properties)
    assert found["domain"]["string"] == len(with_properties)


def test_text_is_unicode_of_many_scripts_and_spellings(sample: list[Description]) -> None:
    texts = [descriptors.searchable(one.descriptor) for one in sample]
    for word in ("Zürich", "São Paulo", "東京", "ZÜRICH"):
        assert any(word in text for text in texts), word
    apart = [text for text in texts if unicodedata.normalize("NFC", text) != text]
    assert 20 < len(apart) < 500


def test_xml_has_namespaces_references_and_mixed_content(sample: list[Description]) -> None:
    documents = [one.descriptor["xml"] for one in sample if one.descriptor["kind"] == "xml"]
    for part in (' xmlns="urn:', ' xmlns:s="urn:', "&amp;", "&lt;", "&#", "<![CDATA[", "<!--", "<?xml ", "</em>, "):
        share = sum(part in document for document in documents) / len(documents)
        assert 0.005 < share < 0.5, (part, share)


def test_topics_come_in_order_and_outlive_the_sample(sample: list[Description]) -> None:
    """Records are applied in this order, and none of the first million ends while the others are made."""
    offsets = [one.created_offset_seconds for one in sample]
    assert all(earlier <= later for earlier, later in pairwise(offsets))
    assert any(earlier == later for earlier, later in pairwise(offsets)), "no two of the same second"
    assert offsets[-1] == pytest.approx(len(sample), rel=0.02)
    assert min(one.lifetime_seconds for one in sample) > topics.describe(SEED, 1_000_000).created_offset_seconds


def test_codes_never_come_twice(sample: list[Description]) -> None:
    known = [topics.codes(SEED, number) for number in range(20_000)]
    assert len({code.serial for code in known}) == len(known)
    assert len({code.asset for code in known}) == len(known)
    assert set(Counter(code.campaign for code in known).values()) == {topics.CAMPAIGN_SIZE}
    showing = sum(topics.codes(SEED, one.number).serial in descriptors.searchable(one.descriptor) for one in sample)
    assert 0.85 < showing / len(sample) < 0.95


def test_code_numbers_are_a_permutation() -> None:
    """Each step of the mixing can be undone, so that different numbers stay different for ever."""

    def undone(mixed: int, salt: int) -> int:
        modulus = 1 << 40
        # The second shift moved 21 of 40 bits, so one application undoes it; the first moved 17, so it takes two.
        mixed ^= mixed >> 21
        mixed = mixed * pow(0xC2B2AE3D27D4EB4F, -1, modulus) % modulus
        mixed ^= mixed >> 17 ^ mixed >> 34
        mixed = mixed * pow(0x9E3779B97F4A7C15, -1, modulus) % modulus
        return (mixed - salt) % modulus

    for salt in (0, 12345, (1 << 40) - 1):
        for number in (0, 1, 2, 999_999, 123_456_789_012):
            assert undone(draws.code_number(salt, number), salt) == number


def test_ranks_stay_within_their_count() -> None:
    ranks = draws.Ranks(10, 3)
    assert [ranks.at(share) for share in (0.0, 0.999999999999, 1.0)] == [0, 9, 9]
