"""The embedded CA makes what `trust` accepts: roles told apart by the certificate itself, keys readable by their owner alone."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tdn.errors import TrustError, UsageError
from tdn.local.ca import CertificateAuthority, write_request
from tdn.protocol.names import Role
from tdn.trust import credentials


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    authority = CertificateAuthority(tmp_path_factory.mktemp("ca") / "ca")
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
    from cryptography import x509

    path = write_request(Role.NODE, "n1", tmp_path, "Example")
    request = x509.load_pem_x509_csr(path.read_bytes())
    assert request.is_signature_valid
    uris = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(
        x509.UniformResourceIdentifier
    )
    assert uris[0].startswith("tdn:node:n1:")
    assert stat.S_IMODE((tmp_path / "requested-key.pem").stat().st_mode) == 0o600
