"""A folder of credentials: read whole, or refused with words that help."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from pki import T0, YEAR, Authority, Pki, derive_key

from tdn.errors import TrustError
from tdn.protocol.names import Role
from tdn.trust import credentials

PKI = Pki("credentials")


def pem_key(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def pem(*ders: bytes) -> bytes:
    return b"".join(x509.load_der_x509_certificate(der).public_bytes(serialization.Encoding.PEM) for der in ders)


@pytest.fixture
def leaf() -> Authority:
    return PKI.leaf(Role.ENTITY, "alice", institution="Example")


@pytest.fixture
def folder(tmp_path: Path, leaf: Authority) -> Path:
    (tmp_path / "key.pem").touch(mode=0o600)
    (tmp_path / "key.pem").write_bytes(pem_key(leaf.key))
    (tmp_path / "cert.pem").write_bytes(pem(*leaf.chain))
    (tmp_path / "trust.pem").write_bytes(pem(*PKI.roots.ders))
    return tmp_path


def test_load(folder: Path, leaf: Authority) -> None:
    who = credentials.load(folder, now=T0)
    assert who.identity.name.principal == "entity:alice"
    assert who.identity.chain == leaf.chain
    assert who.folder == folder
    assert who.identity.institution == "Example"
    assert "PrivateKey" not in repr(who)


@pytest.mark.parametrize("name", ["key.pem", "cert.pem", "trust.pem"])
def test_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(TrustError, match=f"{name} is missing"):
        credentials.load(folder, now=T0)


@pytest.mark.parametrize("name", ["key.pem", "cert.pem", "trust.pem"])
@pytest.mark.parametrize("content", [b"", b"garbage", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_broken_file(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(TrustError):
        credentials.load(folder, now=T0)


def test_expired(folder: Path) -> None:
    """Refused here, before the broker does it vaguely."""
    with pytest.raises(TrustError):
        credentials.load(folder, now=T0 + 2 * YEAR)


def test_key_of_another(folder: Path) -> None:
    (folder / "key.pem").write_bytes(pem_key(derive_key("other")))
    with pytest.raises(TrustError, match="do not belong together"):
        credentials.load(folder, now=T0)


@pytest.mark.parametrize("kind", ["P-384", "RSA"])
def test_key_of_another_kind(folder: Path, kind: str) -> None:
    key = ec.generate_private_key(ec.SECP384R1()) if kind == "P-384" else rsa.generate_private_key(65537, 2048)
    (folder / "key.pem").write_bytes(pem_key(key))
    with pytest.raises(TrustError):
        credentials.load(folder, now=T0)


def test_foreign_roots(folder: Path) -> None:
    (folder / "trust.pem").write_bytes(pem(*Pki("strangers").roots.ders))
    with pytest.raises(TrustError, match="does not lead to a trusted root"):
        credentials.load(folder, now=T0)


def test_locked_key(folder: Path, leaf: Authority) -> None:
    locked = leaf.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    (folder / "key.pem").write_bytes(locked)
    with pytest.raises(TrustError, match=r"key\.pem is no unencrypted PEM file"):
        credentials.load(folder, now=T0)
