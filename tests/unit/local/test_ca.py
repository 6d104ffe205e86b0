"""The embedded CA makes what `trust` accepts: roles told apart by the certificate itself, keys readable by their owner alone."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from tdn.errors import TrustError, UsageError
from tdn.local import ca
from tdn.local.ca import AUTHORITIES, CertificateAuthority, hosts_of, write_request
from tdn.local.home import Home
from tdn.local.operator import OPERATOR, Operator
from tdn.protocol.names import Role
from tdn.protocol.times import parse_time
from tdn.trust import credentials
from tdn.trust.certificates import institution_of


def ticking() -> Callable[[], datetime]:
    """A clock that is half an hour behind and a second later each time: nobody waits for a later certificate, and all are valid now."""
    start, seconds = datetime.now(UTC) - timedelta(minutes=30), count()
    return lambda: start + timedelta(seconds=next(seconds))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    authority = CertificateAuthority(tmp_path_factory.mktemp("ca") / "ca", clock=ticking())
    assert not authority.exists
    authority.create()
    assert authority.exists
    return authority


@pytest.mark.parametrize("role", list(Role))
def test_issued_credentials_load(authority: CertificateAuthority, tmp_path: Path, role: Role) -> None:
    """T8, T19: every role gets a certificate that says so."""
    issued = authority.issue(role, f"who-{role}", tmp_path, institution="Example")
    who = credentials.load(tmp_path)
    assert who.identity.name.role is role
    assert who.identity.name.key_hash == issued.key_hash
    assert who.identity.thumbprint == issued.thumbprint
    assert who.identity.institution == "Example"
    assert issued in authority.issued_to(f"{role}:who-{role}")


def test_private_files(authority: CertificateAuthority, tmp_path: Path) -> None:
    authority.issue(Role.ENTITY, "private", tmp_path / "private")
    keys = [tmp_path / "private" / "key.pem", *authority.folder.glob("*.key")]
    assert len(keys) == 4
    for key in keys:
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o700
    assert not list(tmp_path.glob("**/*.new"))


def test_nodes_and_entities_have_their_own_authority(authority: CertificateAuthority, tmp_path: Path) -> None:
    """T8: an entity's certificate hangs under another intermediate than a node's."""
    authority.issue(Role.ENTITY, "e", tmp_path / "e")
    authority.issue(Role.NODE, "n", tmp_path / "n")
    entity, node = (credentials.load(tmp_path / name).identity.chain for name in ("e", "n"))
    assert entity[1] != node[1]


def test_lifetime(authority: CertificateAuthority, tmp_path: Path) -> None:
    authority.issue(Role.ENTITY, "brief", tmp_path, lifetime=timedelta(hours=1))
    credentials.load(tmp_path)
    with pytest.raises(TrustError):
        credentials.load(tmp_path, now=datetime.now(UTC) + timedelta(hours=2))


@pytest.mark.parametrize("name", ["", "Alice", "a.b", "../x", "a" * 64])
def test_names_refused(authority: CertificateAuthority, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        authority.issue(Role.ENTITY, name, tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("institution", ["", "a" * 65, "two\nlines"])
def test_institutions_refused(authority: CertificateAuthority, tmp_path: Path, institution: str) -> None:
    with pytest.raises(UsageError):
        authority.issue(Role.ENTITY, "alice", tmp_path / "x", institution=institution)


def test_request_for_a_users_own_pki(tmp_path: Path) -> None:
    """T19: the name that the network expects, and a key that stays where it was made."""
    path = write_request(Role.NODE, "n1", tmp_path, "Example")
    request = x509.load_pem_x509_csr(path.read_bytes())
    assert request.is_signature_valid
    uris = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(
        x509.UniformResourceIdentifier
    )
    assert uris[0].startswith("tdn:node:n1:")
    assert stat.S_IMODE((tmp_path / "requested-key.pem").stat().st_mode) == 0o600


# --- rotation ----------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> CertificateAuthority:
    """An authority that a test may rotate."""
    authority = CertificateAuthority(tmp_path / "ca", clock=ticking())
    authority.create()
    return authority


@pytest.mark.parametrize("role", list(Role))
def test_another_certificate_for_the_same_key(authority: CertificateAuthority, tmp_path: Path, role: Role) -> None:
    first = authority.issue(role, f"kept-{role}", tmp_path)
    key = (tmp_path / "key.pem").read_bytes()
    second = authority.issue(role, f"kept-{role}", tmp_path, keep_key=True)
    assert (tmp_path / "key.pem").read_bytes() == key
    assert (second.key_hash, second.thumbprint != first.thumbprint) == (first.key_hash, True)
    assert second.not_before > first.not_before, "a later beginning is what makes it the current one"
    assert credentials.load(tmp_path).identity.thumbprint == second.thumbprint


def test_no_key_to_keep(authority: CertificateAuthority, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no key here"):
        authority.issue(Role.ENTITY, "nobody", tmp_path / "nobody", keep_key=True)
    assert not (tmp_path / "nobody").exists()


def test_a_revoked_key_is_not_kept(authority: CertificateAuthority, tmp_path: Path) -> None:
    """T19: the log refuses a revoked key in any certificate, so none is made for it. A later key of that name can be kept."""
    authority.issue(Role.ENTITY, "revoked", tmp_path)
    authority.note_revocation("entity:revoked", parse_time(authority.issued_to("entity:revoked")[-1].not_before))
    with pytest.raises(UsageError, match="was revoked"):
        authority.issue(Role.ENTITY, "revoked", tmp_path, keep_key=True)
    later = authority.issue(Role.ENTITY, "revoked", tmp_path)
    assert authority.issue(Role.ENTITY, "revoked", tmp_path, keep_key=True).key_hash == later.key_hash


def test_a_crash_between_key_and_certificate_is_mended(
    authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority.issue(Role.ENTITY, "torn", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted(os.replace, 2))
        with pytest.raises(KeyboardInterrupt):
            authority.issue(Role.ENTITY, "torn", tmp_path)
    with pytest.raises(TrustError, match="do not belong together"):
        credentials.load(tmp_path)
    kept = authority.issue(Role.ENTITY, "torn", tmp_path, keep_key=True)
    assert kept.key_hash == authority.issued_to("entity:torn")[1].key_hash, "registered before it was anybody's"
    credentials.load(tmp_path)


@pytest.mark.parametrize("name", list(AUTHORITIES))
def test_a_new_intermediate(own: CertificateAuthority, tmp_path: Path, name: str) -> None:
    """T8, T19: it issues from now on; what the former one issued stays valid; the other one is left alone."""
    for role in Role:
        own.issue(role, f"who-{role}", tmp_path / role)
    before = {role: credentials.load(tmp_path / role).identity for role in Role}
    key = (own.folder / f"{name}.key").read_bytes()
    rotated = own.rotate(name)
    for role in Role:
        assert credentials.load(tmp_path / role).identity == before[role]
        own.issue(role, f"who-{role}", tmp_path / role)
        after = credentials.load(tmp_path / role).identity
        assert (after.chain[1] != before[role].chain[1]) == (role in AUTHORITIES[name]), role
        assert after.name.role is role
    intermediates = x509.load_pem_x509_certificates((own.folder / f"{name}.pem").read_bytes() + rotated.retired.read_bytes())
    assert len({certificate.subject for certificate in intermediates}) == 2
    assert rotated.subject in intermediates[0].subject.rfc4514_string()
    assert intermediates[1].public_bytes(ca.serialization.Encoding.DER) in {who.chain[1] for who in before.values()}
    assert not [path for path in own.folder.rglob("*") if path.is_file() and key in path.read_bytes()], "the former key is gone"
    assert stat.S_IMODE((own.folder / f"{name}.key").stat().st_mode) == 0o600
    assert not list(own.folder.rglob("*.new"))


def test_intermediates_rotate_again_and_again(own: CertificateAuthority, tmp_path: Path) -> None:
    subjects = {own.rotate("entities").subject for _ in range(3)}
    assert len(subjects) == 3
    assert len(list((own.folder / "retired").iterdir())) == 3
    own.issue(Role.ENTITY, "alice", tmp_path / "alice")
    credentials.load(tmp_path / "alice")


def test_an_intermediate_ends_with_the_root(own: CertificateAuthority) -> None:
    root = x509.load_pem_x509_certificate((own.folder / "root.pem").read_bytes())
    own.rotate("nodes", now=root.not_valid_after_utc - timedelta(days=30))
    later = x509.load_pem_x509_certificate((own.folder / "nodes.pem").read_bytes())
    assert later.not_valid_after_utc == root.not_valid_after_utc


def test_an_expired_intermediate_says_what_to_do(tmp_path: Path) -> None:
    own = CertificateAuthority(tmp_path / "ca")
    own.create(now=datetime.now(UTC) - timedelta(days=3651))
    with pytest.raises(TrustError, match="`tdn ca rotate entities`"):
        own.issue(Role.ENTITY, "alice", tmp_path / "alice")
    own.rotate("entities")
    own.issue(Role.ENTITY, "alice", tmp_path / "alice")
    credentials.load(tmp_path / "alice")


def interrupted(step: Callable[..., Any], number: int) -> Callable[..., Any]:
    """A step that is interrupted the nth time that it is taken, before it does anything."""
    taken = iter(range(1, 1000))

    def take(*arguments: Any, **options: Any) -> Any:
        if next(taken) == number:
            raise KeyboardInterrupt
        return step(*arguments, **options)

    return take


@pytest.mark.parametrize(
    ("where", "number", "is_new"),
    [
        ("_write", 1, False),
        ("_write", 2, False),
        ("write_private", 1, False),
        ("_sync", 3, False),
        ("replace", 1, False),
        ("replace", 2, True),
    ],
)
def test_an_interrupted_rotation(
    own: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, number: int, is_new: bool
) -> None:
    """Wherever it ends, the former intermediate serves or the new one does, and it can be rotated again."""
    own.issue(Role.NODE, "n1", tmp_path / "before")
    before = credentials.load(tmp_path / "before").identity
    module: Any = os if where == "replace" else ca
    with monkeypatch.context() as patch:
        patch.setattr(module, where, interrupted(getattr(module, where), number))
        with pytest.raises(KeyboardInterrupt):
            own.rotate("nodes")
    again = CertificateAuthority(own.folder, clock=ticking())
    again.issue(Role.NODE, "n2", tmp_path / "after")
    after = credentials.load(tmp_path / "after").identity
    assert (after.chain[1] != before.chain[1]) is is_new
    again.rotate("nodes")
    again.issue(Role.NODE, "n3", tmp_path / "last")
    assert credentials.load(tmp_path / "last").identity.chain[1] not in (before.chain[1], after.chain[1])
    assert credentials.load(tmp_path / "before").identity == before
    assert not list(own.folder.rglob("*.new"))


def test_a_key_of_another_certificate_is_not_used(own: CertificateAuthority, tmp_path: Path) -> None:
    """A folder that was put together from two backups signs nothing, rather than what nobody can verify."""
    shutil.copy(own.folder / "nodes.key", own.folder / "entities.key")
    with pytest.raises(TrustError, match="do not belong together"):
        own.issue(Role.ENTITY, "alice", tmp_path / "alice")
    with pytest.raises(TrustError, match="do not belong together"):
        own.rotate("entities")


@pytest.mark.parametrize("rest", [b'{"principal": "entity:b', b"\0" * 300, b'{"principal": "entity:b"', b"{"], ids=["torn", "zeros", "nearly whole", "a byte"])
def test_what_a_crash_left_of_an_entry_counts_for_nothing(own: CertificateAuthority, tmp_path: Path, rest: bytes) -> None:
    """A power cut, or a full disk, between the register and the certificate: issuing and revoking go on, and every other entry stays."""
    first = own.issue(Role.ENTITY, "alice", tmp_path / "alice")
    own.note_revocation("entity:bob", datetime.now(UTC))
    for name in ("issued.jsonl", "revoked.jsonl"):
        with open(own.folder / name, "ab") as register:
            register.write(rest)
    assert own.issued_to("entity:alice") == [first]
    assert not own.was_revoked("entity:alice", first.key_hash)
    second = own.issue(Role.ENTITY, "alice", tmp_path / "alice")
    own.note_revocation("entity:alice", datetime.now(UTC))
    assert own.issued_to("entity:alice") == [first, second]
    assert own.was_revoked("entity:alice", second.key_hash)
    for name in ("issued.jsonl", "revoked.jsonl"):
        assert [json.loads(line)["principal"] for line in (own.folder / name).read_text().splitlines()][-1] == "entity:alice"


def test_an_entry_without_its_end_of_line_is_one(own: CertificateAuthority, tmp_path: Path) -> None:
    first = own.issue(Role.ENTITY, "alice", tmp_path / "alice")
    register = own.folder / "issued.jsonl"
    register.write_bytes(register.read_bytes()[:-1])
    assert own.issued_to("entity:alice") == [first]
    second = own.issue(Role.ENTITY, "alice", tmp_path / "alice")
    assert own.issued_to("entity:alice") == [first, second]


def test_a_register_that_was_changed_is_not_guessed_at(own: CertificateAuthority, tmp_path: Path) -> None:
    own.issue(Role.ENTITY, "alice", tmp_path / "alice")
    register = own.folder / "issued.jsonl"
    register.write_bytes(b"garbage\n" + register.read_bytes())
    with pytest.raises(TrustError, match=r"line 1 of .*issued.jsonl is no entry; restore"):
        own.issue(Role.ENTITY, "alice", tmp_path / "alice")
    with pytest.raises(TrustError, match=r"line 1 of .*issued.jsonl is no entry; restore"):
        own.issued_to("entity:alice")


@pytest.mark.parametrize("name", ["nodes.key", "nodes.pem"])
@pytest.mark.parametrize(("content", "said"), [(None, "is missing"), (b"garbage", "is no unencrypted PEM file|holds no certificates")])
def test_an_authority_that_cannot_be_read_is_named(own: CertificateAuthority, tmp_path: Path, name: str, content: bytes | None, said: str) -> None:
    if content is None:
        (own.folder / name).unlink()
    else:
        (own.folder / name).write_bytes(content)
    with pytest.raises(TrustError, match=rf"ca/{name} ({said}); restore .* from a backup"):
        own.issue(Role.NODE, "n1", tmp_path / "n1")
    own.issue(Role.ENTITY, "alice", tmp_path / "alice")


# --- the operator, who has the certificates of a home ---


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    """Of a network with a broker elsewhere, so that no port is looked for."""
    home = Home(tmp_path / "home")
    home.prepare()
    (home.folder / "tdn.toml").write_text(
        '[broker]\nmode = "own"\nhosts = ["rabbit.example:5671"]\nmanagement_url = "https://rabbit.example:15671"\n'
    )
    operator = Operator(home)
    operator.authority = CertificateAuthority(home.folder / "ca", clock=ticking())
    operator.found()
    return operator


def certificate(folder: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificates((folder / "cert.pem").read_bytes())[0]


def test_a_rotation_keeps_institution_and_hosts(operator: Operator) -> None:
    first = operator.issue(Role.GUARD, "g1", institution="ACME", hosts=["guard.example", "192.0.2.7"])
    hosts = {"guard.example", "localhost", "192.0.2.7", "127.0.0.1"}
    assert set(hosts_of(certificate(first))) == hosts
    for keep_key in (False, True):
        assert set(hosts_of(certificate(operator.issue(Role.GUARD, "g1", keep_key=keep_key)))) == hosts
        assert institution_of(certificate(first)) == "ACME"
    moved = certificate(operator.issue(Role.GUARD, "g1", hosts=["other.example"], institution="Other"))
    assert set(hosts_of(moved)) == {"other.example", "localhost", "127.0.0.1"}


def test_in_the_place_of_a_certificate_that_cannot_be_read(operator: Operator) -> None:
    """Another one is made, once it was said of which institution: the former does not say it any more."""
    folder = operator.issue(Role.GUARD, "g1", institution="ACME", hosts=["guard.example"])
    (folder / "cert.pem").write_bytes(b"garbage")
    with pytest.raises(TrustError, match=r"guards/g1/cert.pem holds no certificates, so .* add `--institution X` .* and `--host H`"):
        operator.issue(Role.GUARD, "g1")
    operator.issue(Role.GUARD, "g1", institution="ACME", hosts=["guard.example"])
    assert credentials.load(folder).identity.institution == "ACME"
    assert "guard.example" in hosts_of(certificate(folder))


def test_a_key_that_cannot_be_read_is_not_kept(operator: Operator) -> None:
    folder = operator.issue(Role.ENTITY, "alice")
    (folder / "key.pem").write_bytes(b"garbage")
    with pytest.raises(TrustError, match=r"alice/key.pem is no unencrypted PEM file; leave out --keep-key"):
        operator.issue(Role.ENTITY, "alice", keep_key=True)
    operator.issue(Role.ENTITY, "alice")


def test_whose_certificates_are_issued_anew(operator: Operator) -> None:
    """Everybody's below that intermediate, but neither the operator's, nor one that has expired or was revoked."""
    home = Home(operator.authority.folder.parent)
    operator.issue(Role.BROKER, "rabbit", hosts=["rabbit.example"])
    operator.issue(Role.GUARD, "g1")
    operator.issue(Role.NODE, "n1", lifetime=timedelta(days=30))
    for name in ("alice", "gone"):
        operator.issue(Role.ENTITY, name)
    operator.issue(Role.ENTITY, "expired", lifetime=timedelta(seconds=1))
    operator.revoke(Role.ENTITY, "gone")
    assert operator.leaves("nodes") == [(Role.BROKER, "rabbit"), (Role.GUARD, "g1"), (Role.NODE, "n1")]
    assert operator.leaves("entities") == [(Role.ENTITY, "alice")]
    genesis = home.genesis()
    root = credentials.load(home.credentials(Role.OPERATOR, OPERATOR)).identity
    rotated = operator.rotate("nodes")
    for role, name in operator.leaves("nodes"):
        folder = home.credentials(role, name)
        before = certificate(folder)
        operator.reissue(role, name)
        after = certificate(folder)
        assert after.public_key() == before.public_key()
        assert (after.subject, hosts_of(after)) == (before.subject, hosts_of(before))
        life = before.not_valid_after_utc - before.not_valid_before_utc
        assert after.not_valid_after_utc - after.not_valid_before_utc == life
        assert rotated.subject in after.issuer.rfc4514_string()
        credentials.load(folder)
    assert home.genesis() == genesis
    assert credentials.load(home.credentials(Role.OPERATOR, OPERATOR)).identity == root
