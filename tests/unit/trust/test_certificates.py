"""Chains: who somebody is, once it reaches a trusted root; and every way in which it does not."""

from __future__ import annotations

from datetime import timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from pki import T0, YEAR, Pki, der

from tdn.errors import TrustError
from tdn.protocol.names import Name, Role
from tdn.trust.certificates import (
    TrustRoots,
    decode_chain,
    encode_chain,
    key_hash,
    roots_from_ders,
)

PKI = Pki("certificates")
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize("role", list(Role))
def test_identity(role: Role) -> None:
    """T19: role, id, key and institution are the certificate's."""
    leaf = PKI.leaf(role, "who", institution="ETH Zürich")
    identity = PKI.roots.identify(leaf.chain, at=T0)
    assert identity.name == Name(role, "who", key_hash(leaf.key.public_key()))
    assert identity.institution == "ETH Zürich"
    assert identity.chain == leaf.chain
    assert identity.issued == leaf.certificate.not_valid_before_utc
    assert key_hash(identity.public_key) == identity.name.key_hash


def test_no_institution_is_local() -> None:
    leaf = PKI.leaf(Role.ENTITY, "who", institution=None)
    assert PKI.roots.identify(leaf.chain, at=T0).institution == "local"


@pytest.mark.parametrize("cached", [False, True])
def test_valid_from_to(cached: bool) -> None:
    """Inclusive at both ends, and the same whether or not the chain was followed before."""
    roots = PKI.roots
    leaf = PKI.leaf(Role.ENTITY, "who", not_before=T0, not_after=T0 + YEAR)
    if cached:
        roots.identify(leaf.chain, at=T0 + SECOND)
    for good in (T0, T0 + YEAR):
        roots.identify(leaf.chain, at=good)
    for bad in (T0 - SECOND, T0 + YEAR + SECOND):
        with pytest.raises(TrustError, match=r"expired|not valid before|trusted root"):
            (roots if cached else PKI.roots).identify(leaf.chain, at=bad)


def test_the_whole_chain_must_be_valid() -> None:
    """A leaf that outlives its intermediate ends with it, also when the chain is cached."""
    short = PKI.authority("short", not_after=T0 + SECOND)
    leaf = PKI.leaf(Role.ENTITY, "who", issuer=short)
    roots = PKI.roots
    assert roots.identify(leaf.chain, at=T0).not_after == T0 + SECOND
    with pytest.raises(TrustError, match="expired at"):
        roots.identify(leaf.chain, at=T0 + 2 * SECOND)


@pytest.mark.parametrize(
    ("role", "authority", "good"),
    [
        *((role, "nodes", role is not Role.ENTITY) for role in Role),
        *((role, "entities", role is Role.ENTITY) for role in Role),
        *((role, "own", True) for role in Role),
    ],
)
def test_marks_of_intermediates(role: Role, authority: str, good: bool) -> None:
    """T8: an intermediate marked for one kind cannot make the other; a user's own PKI without marks can make both."""
    issuer = {"nodes": PKI.nodes, "entities": PKI.entities, "own": PKI.authority("own")}[authority]
    leaf = PKI.leaf(role, "who", issuer=issuer)
    if good:
        assert PKI.roots.identify(leaf.chain, at=T0).name.role is role
    else:
        with pytest.raises(TrustError, match="issued by an authority for other roles"):
            PKI.roots.identify(leaf.chain, at=T0)


def test_unmarked_authority_below_a_marked_one() -> None:
    """T8: the mark of any authority on the way counts, not only the last one's."""
    marked = PKI.authority("marked", mark="tdn:ca:entities", path_length=1)
    below = PKI.authority("below", issuer=marked)
    assert PKI.roots.identify(PKI.leaf(Role.ENTITY, "who", issuer=below).chain, at=T0)
    with pytest.raises(TrustError, match="authority for other roles"):
        PKI.roots.identify(PKI.leaf(Role.NODE, "who", issuer=below).chain, at=T0)


@pytest.mark.parametrize("usages", [None, (ExtendedKeyUsageOID.SERVER_AUTH,), (ExtendedKeyUsageOID.CODE_SIGNING,)])
def test_extended_key_usage(usages: tuple[object, ...] | None) -> None:
    """RabbitMQ accepts a client certificate with no extended key usage; we do not."""
    leaf = PKI.leaf(Role.ENTITY, "who", usages=usages)  # type: ignore[arg-type]
    with pytest.raises(TrustError):
        PKI.roots.identify(leaf.chain, at=T0)


def test_authority_as_a_leaf() -> None:
    """A certificate that can issue others cannot sign messages."""
    leaf = PKI.leaf(Role.NODE, "who", authority=True, issuer=PKI.root)
    with pytest.raises(TrustError):
        PKI.roots.identify((der(leaf.certificate),), at=T0)
    with pytest.raises(TrustError):
        PKI.roots.identify(PKI.nodes.chain, at=T0)
    with pytest.raises(TrustError):
        PKI.roots.identify((der(PKI.root.certificate),), at=T0)


def test_leaf_as_an_authority() -> None:
    entity = PKI.leaf(Role.ENTITY, "alice")
    with pytest.raises(TrustError):
        PKI.roots.identify(PKI.leaf(Role.NODE, "who", issuer=entity).chain, at=T0)


def test_path_length() -> None:
    """An intermediate of the embedded CA makes leaves, not authorities."""
    below = PKI.authority("too deep", issuer=PKI.nodes)
    with pytest.raises(TrustError):
        PKI.roots.identify(PKI.leaf(Role.NODE, "who", issuer=below).chain, at=T0)


@pytest.mark.parametrize("curve", [ec.SECP384R1(), ec.SECP521R1()])
def test_other_curves(curve: ec.EllipticCurve) -> None:
    leaf = PKI.leaf(Role.ENTITY, "who", curve=curve)
    with pytest.raises(TrustError):
        PKI.roots.identify(leaf.chain, at=T0)


def test_a_name_cannot_be_lent() -> None:
    """T19: the hash in the name must be that of the certificate's own key."""
    other = PKI.leaf(Role.ENTITY, "other")
    lent = str(Name(Role.ENTITY, "who", key_hash(other.key.public_key())))
    with pytest.raises(TrustError, match="names a key that is not its own"):
        PKI.roots.identify(PKI.leaf(Role.ENTITY, "who", uris=[lent]).chain, at=T0)


@pytest.mark.parametrize("uris", [["urn:x"], ["tdn:entity:who"], ["tdn:ca:entities"], ["urn:x", "urn:y"]])
def test_names_that_are_none(uris: list[str]) -> None:
    with pytest.raises(TrustError, match="no single URI"):
        PKI.roots.identify(PKI.leaf(Role.ENTITY, "who", uris=uris).chain, at=T0)


def test_two_names() -> None:
    """One certificate, one principal: a second name would let the holder choose."""
    key = key_hash(PKI.leaf(Role.ENTITY, "who").key.public_key())
    names = [str(Name(Role.ENTITY, "who", key)), str(Name(Role.NODE, "who", key))]
    with pytest.raises(TrustError, match="no single URI"):
        PKI.roots.identify(PKI.leaf(Role.ENTITY, "who", uris=names).chain, at=T0)


def test_no_name_at_all() -> None:
    with pytest.raises(TrustError):
        PKI.roots.identify(PKI.leaf(Role.ENTITY, "who", uris=[]).chain, at=T0)


def test_unknown_root() -> None:
    leaf = Pki("strangers").leaf(Role.ENTITY, "who")
    with pytest.raises(TrustError, match="does not lead to a trusted root"):
        PKI.roots.identify(leaf.chain, at=T0)
    # Bringing its own root along does not make it trusted.
    with pytest.raises(TrustError, match="does not lead to a trusted root"):
        PKI.roots.identify((*leaf.chain, der(Pki("strangers").root.certificate)), at=T0)


def test_several_roots() -> None:
    both = TrustRoots([PKI.root.certificate, Pki("strangers").root.certificate])
    for pki in (PKI, Pki("strangers")):
        assert both.identify(pki.leaf(Role.ENTITY, "who").chain, at=T0).name.id == "who"
    assert len(both.ders) == 2


def test_no_roots_is_an_error() -> None:
    """An empty "any of" is an error, not a yes."""
    with pytest.raises(TrustError, match="no trusted root"):
        TrustRoots([])


@pytest.mark.parametrize("chain", [(), (b"",), (b"garbage",), (b"\x30\x03\x02\x01\x01",)])
def test_chains_that_are_none(chain: tuple[bytes, ...]) -> None:
    with pytest.raises(TrustError):
        PKI.roots.identify(chain, at=T0)


def test_garbage_behind_a_sound_leaf() -> None:
    leaf = PKI.leaf(Role.ENTITY, "who")
    with pytest.raises(TrustError):
        PKI.roots.identify((leaf.chain[0], b"garbage"), at=T0)


def test_missing_intermediate() -> None:
    leaf = PKI.leaf(Role.ENTITY, "who")
    with pytest.raises(TrustError):
        PKI.roots.identify(leaf.chain[:1], at=T0)


def test_changed_certificate() -> None:
    leaf = PKI.leaf(Role.ENTITY, "who")
    first = leaf.chain[0]
    for place in range(0, len(first), 7):
        changed = first[:place] + bytes([first[place] ^ 1]) + first[place + 1 :]
        with pytest.raises(TrustError):
            PKI.roots.identify((changed, *leaf.chain[1:]), at=T0)


def test_chain_as_messages_carry_it() -> None:
    chain = PKI.leaf(Role.ENTITY, "who").chain
    assert decode_chain(encode_chain(chain)) == chain
    with pytest.raises(TrustError):
        decode_chain(["*"])
    with pytest.raises(TrustError):
        decode_chain(["QUF"])


def test_roots_from_the_log_are_one_object() -> None:
    assert roots_from_ders(PKI.roots.ders) is roots_from_ders(PKI.roots.ders)
