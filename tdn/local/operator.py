"""What the operator signs: the genesis of a network, enrolments of nodes and guards, revocations.

The operator's key is what makes a node a node. Its statements are files that anyone may carry to where they are needed.
"""

from __future__ import annotations

import base64
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from entity_client.session import Session
from tdn.bus.address import write_connection
from tdn.errors import TrustError, UsageError
from tdn.local import node_file
from tdn.local.ca import AUTHORITIES, LEAF_LIFE, REQUESTED_KEY, CertificateAuthority, Rotated, hosts_of
from tdn.local.guard_file import GUARD
from tdn.local.home import MOST_BROKERS, Home, private_broker
from tdn.protocol.names import Role
from tdn.protocol.times import format_time, whole_seconds
from tdn.rules.apply import RULES_VERSION
from tdn.trust import credentials, envelope, statements
from tdn.trust.certificates import encode_chain, institution_of, name_of
from tdn.trust.credentials import Credentials

#: The operator's certificate lasts as long as an authority: it stands in the genesis.
_OPERATOR_LIFE = timedelta(days=3650)
#: An enrolment may be carried to the log this long.
_ENROLMENT_LIFE = timedelta(days=3650)

OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Sent:
    """What a node answered: that it is in the log, and, of a revocation, what was ended at the broker. Both signed."""

    receipt: str
    revocation: str | None


class Operator:
    def __init__(self, home: Home) -> None:
        self._home = home
        self.authority = CertificateAuthority(home.folder / "ca")

    def found(self) -> None:
        """CA, operator and genesis, if they are not there yet."""
        self.require_here()
        home = self._home
        home.prepare()
        settings = home.settings()
        if settings.embedded_pki and not self.authority.exists:
            self.authority.create()
        folder = home.credentials(Role.OPERATOR, OPERATOR)
        if not (folder / "cert.pem").exists():
            self._require_embedded(Role.OPERATOR, OPERATOR)
            self.authority.issue(Role.OPERATOR, OPERATOR, folder, lifetime=_OPERATOR_LIFE)
        if not home.genesis_path.exists():
            home.genesis_path.write_bytes(self._write_genesis())
        write_connection(folder, home.connection())

    def require_here(self) -> None:
        """Refuse a home that was carried from the operator's: it must not get a CA of its own."""
        if self._home.is_carried:
            known = [(role, name) for role in (Role.NODE, Role.GUARD) for name in self._home.ids(role)]
            start = " and ".join(f"`tdn {role} --id {name}`" for role, name in known) or "systemd or a container"
            raise UsageError(
                f"{self._home} is not the operator's home: it has the network, and no CA and no operator's key. Issue and revoke in the operator's home; "
                f"{start} starts what is here"
            )

    def issue(
        self,
        role: Role,
        name: str,
        *,
        institution: str | None = None,
        lifetime: timedelta = LEAF_LIFE,
        hosts: Sequence[str] = (),
        keep_key: bool = False,
    ) -> Path:
        """Credentials for a principal; a node or a guard is enrolled with them. For one that has them: a later certificate, of the same
        institution and hosts unless others are named, with a new key or for the present one."""
        self._require_embedded(role, name)
        folder = self._home.credentials(role, name)
        present = self._present(role, name, must_be_read=institution is None)
        if institution is None:
            institution = institution_of(present) if present is not None else "local"
        if not hosts and present is not None:
            hosts = hosts_of(present)
        known_as = tuple(dict.fromkeys([*hosts, "localhost", "127.0.0.1"]))
        self.authority.issue(role, name, folder, institution=institution, lifetime=lifetime, hosts=known_as, keep_key=keep_key)
        self.settle(role, name)
        return folder

    def rotate(self, authority: str) -> Rotated:
        """Another intermediate in the place of `nodes` or `entities`."""
        if not self._home.settings().embedded_pki:
            raise UsageError("this network uses a PKI of its own; its intermediates are rotated there")
        return self.authority.rotate(authority)

    def leaves(self, authority: str) -> list[tuple[Role, str]]:
        """Who holds a certificate of `nodes` or `entities` here that could be issued anew: valid, and not the operator's, which stands in
        the genesis."""
        found = [(role, name) for role in (Role.BROKER, Role.GUARD, Role.NODE, Role.ENTITY) for name in self._names(role)]
        return [(role, name) for role, name in found if role in AUTHORITIES[authority] and self._is_valid(role, name)]

    def reissue(self, role: Role, name: str) -> None:
        """Another certificate for the present key, of the present institution and hosts and for as long as the present one was made."""
        present = self._certificate(role, name)
        if present is None:
            raise UsageError(f"{role} {name} has no certificate here")
        self.issue(role, name, lifetime=present.not_valid_after_utc - present.not_valid_before_utc, keep_key=True)

    async def send_enrolment(self, role: Role, name: str, *, timeout: float) -> str:
        """Put an enrolment into the log through a node that runs; gives the receipt. Otherwise the next node that starts does it."""
        session = Session(self._credentials(), self._home.connection())
        try:
            raw = (self._home.enrolments / f"{role}-{name}.jws").read_bytes().strip()
            statement = envelope.authenticate(raw, lambda header: session.credentials.identity)
            reply = await session.change(statement.kind, statement.body, message_id=statement.id, timeout=timeout)
            return statements.read(reply.tail or b"", statements.by_roots(session.credentials.roots)).token
        finally:
            await session.close()

    def settle(self, role: Role, name: str) -> None:
        """What goes with new credentials: where the network is, and for a node or a guard its enrolment."""
        folder = self._home.credentials(role, name)
        write_connection(folder, self._home.connection())
        if role in (Role.NODE, Role.GUARD):
            self._enrol(role, name, credentials.load(folder))
        if role is Role.NODE:
            node_file.write_template(folder)
        elif role is Role.GUARD:
            GUARD.write_template(folder)

    def install(self, role: Role, name: str, chain_pem: bytes) -> Path:
        """A certificate that a user's own PKI made for our request."""
        home = self._home
        home.prepare()
        folder = home.credentials(role, name)
        try:
            leaf = x509.load_pem_x509_certificates(chain_pem)[0]
        except ValueError as error:
            raise UsageError("the file holds no certificates; it is to be PEM: the certificate, then its intermediates") from error
        if name_of(leaf).principal != f"{role}:{name}":
            raise TrustError(f"the certificate is for {name_of(leaf).principal}, not for {role}:{name}")
        requested = folder / REQUESTED_KEY
        if not requested.exists() and not (folder / "key.pem").exists():
            raise UsageError(f"there is no key in {folder}; `tdn ca request {name}` makes one")
        roots = self._roots()
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            # Looked at whole before anything of the present credentials is replaced.
            trial = Path(scratch)
            shutil.copy(requested if requested.exists() else folder / "key.pem", trial / "key.pem")
            (trial / "cert.pem").write_bytes(chain_pem)
            (trial / "trust.pem").write_bytes(roots)
            credentials.load(trial)
            for file in ("key.pem", "cert.pem", "trust.pem"):
                (trial / file).replace(folder / file)
        requested.unlink(missing_ok=True)
        if role is not Role.OPERATOR and role is not Role.BROKER:
            self.found()
            self.settle(role, name)
        return folder

    def revoke(self, role: Role, name: str) -> Path:
        """Sign a revocation of every certificate that a principal has had until now; kept until it is in the log."""
        principal = f"{role}:{name}"
        keys = {entry.key_hash for entry in self.authority.issued_to(principal)}
        now = datetime.now(UTC)
        body = {"principal": principal, "issued_until": format_time(whole_seconds(now)), "keys": sorted(keys)}
        raw = envelope.write("revoke", body, self._credentials(), audience=self._network(), now=now, life=timedelta(days=1))
        path = self._home.pending / f"revoke-{role}-{name}.jws"
        path.write_bytes(raw)
        if self.authority.exists:
            self.authority.note_revocation(principal, whole_seconds(now))
        return path

    async def send_pending(self, *, timeout: float) -> list[Sent]:
        """Put what waits into the log; gives the proofs. What is not decided stays for the next time."""
        session = Session(self._credentials(), self._home.connection())
        sent = []
        try:
            for path in sorted(self._home.pending.glob("*.jws")):
                waiting = envelope.authenticate(path.read_bytes(), lambda header: session.credentials.identity)
                reply = await session.change(waiting.kind, waiting.body, message_id=waiting.id, timeout=timeout)
                receipt = statements.read(reply.tail or b"", statements.by_roots(session.credentials.roots))
                sent.append(Sent(receipt.token, reply.body.get("revocation")))
                path.unlink()
        finally:
            await session.close()
        return sent

    def _enrol(self, role: Role, name: str, who: Credentials) -> None:
        body = {"chain": encode_chain(who.identity.chain)}
        now = datetime.now(UTC)
        raw = envelope.write("enrol", body, self._credentials(), audience=self._network(), now=now, life=_ENROLMENT_LIFE)
        path = self._home.enrolments / f"{role}-{name}.jws"
        fresh = path.with_suffix(".new")
        fresh.write_bytes(raw)
        fresh.replace(path)

    def _certificate(self, role: Role, name: str) -> x509.Certificate | None:
        """The certificate that a principal has here, valid or not."""
        path = self._home.credentials(role, name) / "cert.pem"
        return credentials.read_certificates(path, f"`tdn ca issue` makes another for {role} {name}")[0] if path.exists() else None

    def _present(self, role: Role, name: str, *, must_be_read: bool) -> x509.Certificate | None:
        """The certificate that another one follows. One that cannot be read does not say of which institution the next is to be, so that has to be said."""
        try:
            return self._certificate(role, name)
        except TrustError as error:
            if not must_be_read:
                return None
            hosts = "" if role is Role.ENTITY else ", and `--host H` for each host that it named"
            raise TrustError(
                f"{error.message.partition('; ')[0]}, so it does not say of which institution {name} is; add `--institution X` for another one ('local' unless another was named){hosts}"
            ) from error

    def _names(self, role: Role) -> list[str]:
        if role is not Role.BROKER:
            return self._home.ids(role)
        # The first one's folder does not say what it is called; its certificate does.
        present = self._certificate(role, "")
        further = [name for number in range(2, MOST_BROKERS + 1) if self._certificate(role, name := private_broker(number))]
        return [name_of(present).id, *further] if present is not None else further

    def _is_valid(self, role: Role, name: str) -> bool:
        """Whether a principal's certificate is good, and so worth another: neither expired nor, as far as the CA knows, revoked."""
        present = self._certificate(role, name)
        return (
            present is not None
            and datetime.now(UTC) < present.not_valid_after_utc
            and not self.authority.was_revoked(f"{role}:{name}", name_of(present).key_hash)
        )

    def _write_genesis(self) -> bytes:
        operator = self._credentials()
        roots = x509.load_pem_x509_certificates(self._roots())
        now = datetime.now(UTC)
        body = {
            "operator": encode_chain(operator.identity.chain),
            "roots": [base64.b64encode(root.public_bytes(serialization.Encoding.DER)).decode() for root in roots],
            "rules": RULES_VERSION,
            "created": format_time(whole_seconds(now)),
            "salt": secrets.token_hex(16),
        }
        return envelope.write("genesis", body, operator, audience="tdn:nodes", now=now, life=timedelta(days=1))

    def _roots(self) -> bytes:
        """What this network trusts. Of a PKI of one's own it is for the operator to put there."""
        settings = self._home.settings()
        try:
            credentials.load_roots(settings.roots)
        except TrustError as error:
            if settings.embedded_pki:
                raise
            raise TrustError(f"{error.message.partition('; ')[0]}; put the PEM file with your trusted roots there, or name another: roots below [pki] in tdn.toml") from error
        return settings.roots.read_bytes()

    def _credentials(self) -> Credentials:
        return credentials.load(self._home.credentials(Role.OPERATOR, OPERATOR))

    def _network(self) -> str:
        return f"tdn:network:{self._home.network}"

    def _require_embedded(self, role: Role, name: str) -> None:
        if not self._home.settings().embedded_pki:
            flag = "" if role is Role.ENTITY else f" --role {role}"
            raise UsageError(
                f"this network uses a PKI of its own: `tdn ca request {name}{flag}` makes a request to be signed there, "
                f"and `tdn ca install {name}{flag} CHAIN.pem` takes the result"
            )
