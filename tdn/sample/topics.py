"""Realistic topics without end, from a seed: who made them, what they describe, how long they live.

Topic `number` of a seed is the same whoever asks, in whatever order, on every version of Python, so that processes can share the work. A few hundred
institutions and twenty thousand creators, of which few make much and most make little; eight domains; all four kinds of descriptors. Most
topics carry a serial number that no other has, and half of them the name of a campaign that at most seven others have: whatever is looked for
by one of these has between one and eight matches, among ten thousand topics as among ten million.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from tdn.protocol import descriptor as descriptors
from tdn.protocol.descriptor import Descriptor
from tdn.protocol.times import format_time
from tdn.sample.draws import Draws, Ranks, code, code_number, scattered
from tdn.sample.vocabulary import DOMAINS, FAMILY, GIVEN, INSTITUTIONS, PLACES, SYSTEMS, Domain, Measure

INSTITUTION_COUNT = 320
CREATOR_COUNT = 20_000
#: Topics of one campaign: at most so many, made one after another.
CAMPAIGN_SIZE = 8
#: Asset numbers are larger than any other number in a topic, so that their digits stand in no other.
_FIRST_ASSET = 1_000_000_000_000

_DAY = 86_400
#: None so short that the first seven million topics, made at one a second, lose one of theirs.
_LIFETIMES_DAYS = (90, 180, 365, 365, 365, 730, 1825, 3650)
_LONGEST_DAYS = 3650
#: Topics come in bursts: so many in as many seconds, the first ones within the same second.
_BURST = 64

_PLACE_RANKS = Ranks(len(PLACES), 4)
_INSTITUTION_RANKS = Ranks(INSTITUTION_COUNT, 3)
_CREATOR_RANKS = Ranks(CREATOR_COUNT, 40)

_FIRST_MOMENT = datetime(1995, 1, 1, tzinfo=UTC)
_MOMENTS_MILLISECONDS = 30 * 365 * _DAY * 1000


@dataclass(frozen=True, slots=True)
class Creator:
    """An entity that makes topics, mostly of one domain."""

    id: str
    institution: str
    #: Where it is, and what its topics are about, as places in the vocabulary.
    place: int
    domain: int


@dataclass(frozen=True, slots=True)
class Codes:
    """What a topic is told apart by. Not every topic shows all of them."""

    serial: str
    campaign: str
    asset: int


@dataclass(frozen=True, slots=True)
class Description:
    """All that a creator says when it asks for a topic; the UUID that a node would mint; and when, in seconds from the first one's beginning."""

    number: int
    uuid: str
    creator: str
    institution: str
    lifetime_seconds: int
    created_offset_seconds: int
    descriptor: Descriptor
    synopsis_type: str
    synopsis_placeholder: str

    @property
    def body(self) -> dict[str, Any]:
        """The body of the request to create it."""
        return {
            "creator": self.creator,
            "institution": self.institution,
            "lifetime_seconds": self.lifetime_seconds,
            "descriptor": self.descriptor,
            "synopsis": {"type": self.synopsis_type, "placeholder": self.synopsis_placeholder},
        }


@dataclass(frozen=True, slots=True)
class _Scene:
    """What one topic is about, whatever kind of descriptor says so."""

    creator: Creator
    domain: Domain
    area: str
    place: str
    country: str
    latitude: float
    longitude: float
    thing: str
    thing_number: int
    maker: str
    state: str
    measure: Measure
    serial: str | None
    campaign: str | None
    asset: int


def descriptions(seed: int, start: int = 0) -> Iterator[Description]:
    """The topics of a seed, without end, from one of them on."""
    number = start
    while True:
        yield describe(seed, number)
        number += 1


def describe(seed: int, number: int) -> Description:
    """One topic."""
    entropy = _entropy(seed, number)
    draws = Draws(int.from_bytes(entropy[24:], "big"))
    who = creator(_creator_rank(entropy))
    scene = _scene(draws, who, codes(seed, number))
    share = draws.share()
    if share < 0.35:
        descriptor = _path(draws, scene)
    elif share < 0.60:
        descriptor = _text(draws, scene)
    elif share < 0.85:
        descriptor = _properties(draws, scene)
    else:
        descriptor = _xml(draws, scene)
    synopsis_type, placeholder = _synopsis(draws, scene)
    return Description(
        number=number,
        uuid=_uuid(entropy),
        creator=who.id,
        institution=who.institution,
        lifetime_seconds=_lifetime_seconds(draws),
        created_offset_seconds=created_offset_seconds(number),
        descriptor=descriptor,
        synopsis_type=synopsis_type,
        synopsis_placeholder=placeholder,
    )


def codes(seed: int, number: int) -> Codes:
    """The serial number (without its domain's letters), the campaign and the asset number that topic `number` may show."""
    serial, campaign, asset = _salts(seed)
    return Codes(code(serial, number), f"CMP{code(campaign, number // CAMPAIGN_SIZE)}", _FIRST_ASSET + code_number(asset, number))


def creator_rank(seed: int, number: int) -> int:
    """Whose topic `number` is; a tenth of the cost of describing it."""
    return _creator_rank(_entropy(seed, number))


@lru_cache(maxsize=CREATOR_COUNT)
def creator(rank: int) -> Creator:
    """A creator, the same for every seed."""
    draws = Draws(int.from_bytes(scattered("creator", rank), "big"))
    home = _INSTITUTION_RANKS.at(draws.share())
    if draws.chance(0.6):
        name = f"{draws.one_of(GIVEN)}-{draws.one_of(FAMILY)}-{rank:05d}"
    else:
        name = f"{DOMAINS[home % len(DOMAINS)].name}-{draws.one_of(SYSTEMS)}-{rank:05d}"
    domain = home % len(DOMAINS) if draws.chance(0.8) else draws.below(len(DOMAINS))
    return Creator(name, institution(home), _institution_place(home), domain)


def institution(rank: int) -> str:
    return INSTITUTIONS[rank % len(INSTITUTIONS)].format(PLACES[_institution_place(rank)][0])


def _institution_place(rank: int) -> int:
    """Institutions of one form are at different places, so no two are called the same."""
    forms = len(INSTITUTIONS)
    return (rank // forms + 9 * (rank % forms)) % len(PLACES)


def _entropy(seed: int, number: int) -> bytes:
    return scattered(f"topic {seed}", number)


def _creator_rank(entropy: bytes) -> int:
    return _CREATOR_RANKS.at(int.from_bytes(entropy[:6], "big") / 2**48)


def _uuid(entropy: bytes) -> str:
    text = entropy[8:24].hex()
    variant = "89ab"[entropy[6] & 3]
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-{text[20:]}"


@lru_cache(maxsize=16)
def _salts(seed: int) -> tuple[int, int, int]:
    entropy = scattered("codes", seed)
    return int.from_bytes(entropy[:5], "big"), int.from_bytes(entropy[5:10], "big"), int.from_bytes(entropy[10:15], "big")


def created_offset_seconds(number: int) -> int:
    burst, place = divmod(number, _BURST)
    return burst * _BURST + place * place // _BURST


def _lifetime_seconds(draws: Draws) -> int:
    days = draws.one_of(_LIFETIMES_DAYS)
    return days * _DAY + (0 if days == _LONGEST_DAYS else draws.below(_DAY))


def _scene(draws: Draws, who: Creator, known_as: Codes) -> _Scene:
    domain = DOMAINS[who.domain]
    place, country, latitude, longitude = PLACES[who.place if draws.chance(0.6) else _PLACE_RANKS.at(draws.share())]
    spelling = draws.share()
    if spelling < 0.04:
        # The same name in other characters, as some systems write it: letters and their accents apart.
        place = unicodedata.normalize("NFD", place)
    elif spelling < 0.07:
        place = place.upper()
    return _Scene(
        creator=who,
        domain=domain,
        area=draws.one_of(domain.areas),
        place=place,
        country=country,
        latitude=round(latitude + draws.share() * 0.4 - 0.2, 5),
        longitude=round(longitude + draws.share() * 0.4 - 0.2, 5),
        thing=draws.one_of(domain.things),
        thing_number=draws.between(1, 9999),
        maker=draws.one_of(domain.makers),
        state=draws.one_of(domain.states) if draws.chance(0.4) else domain.states[0],
        measure=draws.one_of(domain.measures),
        serial=f"{domain.prefix}-{known_as.serial}" if draws.chance(0.9) else None,
        campaign=known_as.campaign if draws.chance(0.5) else None,
        asset=known_as.asset,
    )


def _path(draws: Draws, scene: _Scene) -> Descriptor:
    """Three to seven steps, from the general to the particular."""
    below = (f"zone-{draws.between(1, 12)}", f"floor {draws.between(0, 40)}", f"line{draws.between(1, 80):02d}", "main")
    steps: list[str] = [scene.domain.name, scene.area, scene.place, f"{scene.thing}-{scene.thing_number}"]
    steps.append(scene.campaign if scene.campaign is not None and draws.chance(0.6) else draws.one_of(below))
    steps.append(scene.measure.name)
    depth = draws.between(3, 7)
    if scene.serial is not None:
        steps.append(scene.serial)
    # What names the thing stays; of the rest some are left out.
    while len(steps) > depth:
        spare = [at for at, step in enumerate(steps) if step not in (scene.serial, f"{scene.thing}-{scene.thing_number}")]
        del steps[draws.one_of(spare)]
    if draws.chance(0.15):
        steps[0] = steps[0].capitalize()
    return descriptors.path(("/" if draws.chance(0.2) else "") + "/".join(steps))


def _text(draws: Draws, scene: _Scene) -> Descriptor:
    """Forty to four hundred characters, and up to eight keywords."""
    sentences = _sentences(draws, scene)
    body = [sentences[0]]
    keywords = draws.some_of(scene.domain.keywords, draws.between(0, 5))
    if draws.chance(0.5):
        keywords.append(scene.place)
    if scene.serial is not None:
        if draws.chance(0.5):
            body.append(f"Serial number {scene.serial}.")
        else:
            keywords.append(scene.serial)
    if scene.campaign is not None:
        if draws.chance(0.5):
            body.append(f"Campaign {scene.campaign}, {scene.creator.institution}.")
        else:
            keywords.append(scene.campaign)
    wanted = draws.between(40, 400)
    written = " ".join(body)
    for sentence in draws.some_of(sentences[1:], len(sentences)):
        if len(written) + 1 + len(sentence) <= wanted:
            written = f"{written} {sentence}"
    return descriptors.text(written, keywords)


def _sentences(draws: Draws, scene: _Scene) -> list[str]:
    words = {
        "thing": scene.thing,
        "n": scene.thing_number,
        "place": scene.place,
        "measure": scene.measure.name.replace("_", " "),
        "unit": scene.measure.unit,
        "area": scene.area,
        "maker": scene.maker,
        "state": scene.state,
        "value": _reading(draws, scene.measure),
        "minutes": draws.one_of((1, 2, 5, 10, 15, 30, 60)),
    }
    sentences = [sentence.format_map(words) for sentence in scene.domain.sentences]
    sentences.append(f"Note: {draws.one_of(scene.domain.notes)}.")
    return sentences


def _properties(draws: Draws, scene: _Scene) -> Descriptor:
    """Typed properties, none of which every topic has but its domain; some names have another type now and then, as data in the wild has."""
    values: dict[str, Any] = {}
    types: dict[str, str] = {}

    def put(name: str, kind: str, value: Any) -> None:
        values[name] = value
        types[name] = kind

    put("domain", "string", scene.domain.name)
    if draws.chance(0.9):
        put("site", "string", scene.place)
    if draws.chance(0.6):
        put("country", "string", scene.country)
    if draws.chance(0.55):
        put("geo.lat", "float", scene.latitude)
        put("geo.lon", "float", scene.longitude)
    if draws.chance(0.6):
        put("maker", "string", scene.maker)
    if draws.chance(0.4):
        put("model", "string", f"{scene.maker[:2].upper()}{draws.between(1, 99) * 10}{draws.one_of(('', '-B', ' mk2'))}")
    if scene.serial is not None:
        put("serial", "string", scene.serial)
    if scene.campaign is not None:
        put("campaign", "string", scene.campaign)
    if draws.chance(0.6):
        put("asset", "integer", scene.asset) if draws.chance(0.95) else put("asset", "string", str(scene.asset))
    for measure in draws.some_of(scene.domain.measures, draws.between(1, 3)):
        _put_reading(draws, measure, put)
    if draws.chance(0.6):
        put("unit", "string", scene.measure.unit)
    if draws.chance(0.7):
        put("interval_s", "integer", draws.one_of((1, 5, 10, 60, 60, 300, 900, 3600)))
    if draws.chance(0.7):
        put("status", "string", scene.state)
    if draws.chance(0.7):
        put("public", "boolean", draws.chance(0.8))
    if draws.chance(0.25):
        put("retired", "boolean", draws.chance(0.05))
    if draws.chance(0.55):
        put("commissioned", "timestamp", _moment(draws))
    if draws.chance(0.3):
        put("last_service", "timestamp", _moment(draws))
    if draws.chance(0.8 if scene.domain.name == "buildings" else 0.05):
        floor = draws.between(-3, 40)
        put("floor", "integer", floor) if draws.chance(0.92) else put("floor", "string", f"{floor}a")
    if draws.chance(0.3):
        put("channel", "integer", draws.between(0, 63)) if draws.chance(0.7) else put("channel", "string", "BHZ")
    if draws.chance(0.5):
        put("priority", "integer", draws.between(1, 5))
    if draws.chance(0.15):
        put("note", "string", draws.one_of(scene.domain.notes))
    return {"kind": "properties", "properties": values, "types": types}


def _put_reading(draws: Draws, measure: Measure, put: Any) -> None:
    value = _reading(draws, measure)
    odd = draws.share()
    if odd < 0.02:
        put(measure.name, "string", "n/a")
    elif isinstance(value, int) != (odd < 0.10):
        put(measure.name, "integer", int(value))
    else:
        put(measure.name, "float", float(value))


def _reading(draws: Draws, measure: Measure) -> int | float:
    value = draws.number(measure.low, measure.high, measure.decimals)
    return value if measure.decimals else int(value)


def _moment(draws: Draws) -> str:
    """A time, to the second or, for one in seven, to the millisecond."""
    milliseconds = int(draws.share() * _MOMENTS_MILLISECONDS)
    if draws.chance(0.85):
        milliseconds -= milliseconds % 1000
    return format_time(_FIRST_MOMENT + timedelta(milliseconds=milliseconds))


def _xml(draws: Draws, scene: _Scene) -> Descriptor:
    """Five to forty elements: attributes, mixed content, references, and in a third of the documents a namespace."""
    wanted = 5 + min(draws.below(36), draws.below(36))
    style = draws.share()
    prefix, declaration = "", ""
    if style < 0.15:
        declaration = f' xmlns="{scene.domain.namespace}"'
    elif style < 0.35:
        prefix, declaration = "s:", f' xmlns:s="{scene.domain.namespace}"'
    gap = "\n  " if draws.chance(0.5) else ""

    def element(name: str, content: str, attributes: str = "") -> str:
        if not content:
            return f"{gap}<{prefix}{name}{attributes}/>"
        return f"{gap}<{prefix}{name}{attributes}>{content}</{prefix}{name}>"

    attributes = f'{declaration} id="{scene.thing}-{scene.thing_number}"'
    inside = [
        element("site", _escaped(scene.place), f' country="{scene.country}"'),
        element("area", scene.area),
        element("status", scene.state),
    ]
    if scene.serial is not None:
        if draws.chance(0.5):
            attributes += f' serial="{scene.serial}"'
        else:
            inside.append(element("serial", scene.serial))
    if scene.campaign is not None:
        inside.append(element("campaign", scene.campaign))
    spare = [
        element("position", "", f' lat="{scene.latitude}" lon="{scene.longitude}"'),
        element("maker", _escaped(scene.maker)),
        element("operator", _escaped(scene.creator.institution)),
        element("asset", str(scene.asset)),
    ]
    for part in spare:
        if 1 + len(inside) < wanted and draws.chance(0.6):
            inside.append(part)
    count = 1 + len(inside)
    if wanted - count >= 2 and draws.chance(0.4):
        note = draws.one_of(scene.domain.notes)
        em = f"<{prefix}em>{scene.state}</{prefix}em>"
        body = f"<![CDATA[{note}]]> {em}" if draws.chance(0.1) else f"{_escaped(note)} {em}, {draws.between(2, 90)} %"
        inside.append(element("note", body))
        count += 2
    readings: list[str] = []
    while count + len(readings) < max(wanted, 5):
        measure = draws.one_of(scene.domain.measures)
        unit = _escaped(measure.unit)
        if draws.chance(0.1):
            # As tools write it that keep to ASCII.
            unit = "".join(letter if letter.isascii() else f"&#{ord(letter)};" for letter in unit)
        readings.append(element(measure.name, str(_reading(draws, measure)), f' unit="{unit}"'))
    if len(readings) > 2:
        # The element that holds them is one of those wanted.
        inside.append(element("readings", "".join(readings[1:]) + gap))
    else:
        inside += readings
    if draws.chance(0.06):
        inside.insert(0, f"{gap}<!-- exported {_moment(draws)} -->")
    root = f"{prefix}{scene.thing}"
    opening = '<?xml version="1.0" encoding="UTF-8"?>\n' if draws.chance(0.2) else ""
    closing = "\n" if gap else ""
    return descriptors.xml(f"{opening}<{root}{attributes}>{''.join(inside)}{closing}</{root}>")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")


def _synopsis(draws: Draws, scene: _Scene) -> tuple[str, str]:
    share = draws.share()
    if share < 0.55:
        return "string", "{uuid}"
    if share < 0.75:
        return "tags", f"topic={{uuid}},domain={scene.domain.name},country={scene.country}"
    if share < 0.90:
        return "properties", f'{{"topic": "{{uuid}}", "area": "{scene.area}", "qos": {draws.between(0, 2)}}}'
    return "xml", f'<topic uuid="{{uuid}}" domain="{scene.domain.name}"/>'
