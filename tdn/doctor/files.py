"""Checks that need nothing but the home's files: its version, settings, private files, certificates, disk, pending revocations."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tdn.doctor.findings import Finding, of_error, ok, problem, warning
from tdn.errors import NoRoom, TdnError, TrustError, UsageError
from tdn.home_form import HOME_VERSION
from tdn.local import guard_file, node_file
from tdn.local.ca import AUTHORITIES, hosts_of, read_authority, restore
from tdn.local.home import TDN, Home, Settings
from tdn.protocol.names import Role
from tdn.protocol.times import format_time
from tdn.trust import credentials
from tdn.trust.certificates import TrustRoots, decode_chain, key_hash
from tdn.trust.private_files import complaint_about

#: A certificate with less left is worth a word; nothing renews it by itself.
SOON = timedelta(days=30)
#: Authorities are replaced with more care.
_AUTHORITY_SOON = timedelta(days=180)
#: Free room below which something is about to stop (RabbitMQ takes nothing more: `disk_free_limit`), and below which to look for more.
_NO_ROOM_BYTES = 200_000_000
_LITTLE_ROOM_BYTES = 1_000_000_000


def _whose(home: Home) -> os.stat_result:
    """Whose processes run in it. The top of a volume of Kubernetes belongs to root, who gave it to a group (`fsGroup`), and what is in it to the process."""
    top = home.folder.stat()
    return home.run.stat() if top.st_uid == 0 and home.run.is_dir() else top


def look_at_home(home: Home) -> Iterator[Finding]:
    if not home.folder.is_dir():
        yield problem("home", UsageError, f"there is no home at {home}", "`tdn up` makes one; or name another with --home")
        return
    home.require_version()
    if not home.exists:
        yield problem(
            "home", UsageError, f"there is no network in {home}", "`tdn up` makes one; or name another home with --home"
        )
        return
    top, found = home.folder.stat(), _whose(home)
    if found.st_uid != os.geteuid():
        yield warning(
            "home",
            f"{home} belongs to user {found.st_uid}, and this is user {os.geteuid()}: what its owner may read is not known here",
            f"run the doctor as its owner: `setpriv --reuid {found.st_uid} --regid {found.st_gid} --init-groups tdn … doctor`",
        )
    # Of a volume it is nobody's to change, and what is in it has modes of its own.
    if top.st_uid == found.st_uid and top.st_mode & 0o077:
        yield warning("home", f"others may look into {home} (mode {top.st_mode & 0o777:04o})", f"chmod 700 {home}")
    if not os.access(home.run if home.run.is_dir() else home.folder, os.W_OK):
        yield problem(
            "home",
            UsageError,
            f"{home} cannot be written by this user",
            "mount it for writing, or run as its owner; nothing starts in it",
        )
    yield ok("home", f"{home}, version {home.version()} of {HOME_VERSION}, network {home.network[:12]}…")


def look_at_settings(home: Home) -> Iterator[Finding]:
    read: list[str] = []
    try:
        if TDN.read(home.folder)["broker"]["mode"] == "own":
            # What it must name besides. Of a private broker nothing more is asked, and reading on would choose its ports.
            home.settings()
        read.append(TDN.name)
    except TdnError as error:
        yield of_error("settings", error, do="its template is in docs/operations.md")
    for node in home.ids(Role.NODE):
        try:
            node_file.read(home.credentials(Role.NODE, node))
            read.append(f"{node}'s {node_file.FILE}")
        except TdnError as error:
            yield of_error("settings", error, do=f"correct it; node {node} does not start with it")
    for guard in home.ids(Role.GUARD):
        try:
            guard_file.read(home.credentials(Role.GUARD, guard))
            read.append(f"{guard}'s {guard_file.GUARD.name}")
        except TdnError as error:
            yield of_error("settings", error, do=f"correct it; guard {guard} does not start with it")
    if read:
        yield ok("settings", f"{', '.join(read)}: every key is known")


def look_at_private_files(home: Home) -> Iterator[Finding]:
    """Judged as its owner's processes see them, so that root can look at a service's home."""
    owner = _whose(home)
    groups = {owner.st_gid, os.getegid(), *os.getgroups()} if owner.st_uid == os.geteuid() else {owner.st_gid}
    good = 0
    for path in _private(home):
        try:
            complaint = complaint_about(path, path.stat(), owner.st_uid, groups)
        except OSError as error:
            complaint = f"{path}: {error.strerror or error}; run as the owner of the home"
        if complaint is None:
            good += 1
        else:
            yield of_error("private files", TrustError(complaint))
    yield ok("private files", f"{good} keys and passwords are for their owner alone")


def _private(home: Home) -> Iterator[Path]:
    patterns = (
        "ca/*.key",
        "network/management-password",
        "operator/key.pem",
        "broker*/key.pem",
        "*/*/key.pem",
        "broker/**/.erlang.cookie",
    )
    seen = (path for pattern in patterns for path in sorted(home.folder.glob(pattern)))
    return iter(dict.fromkeys(path for path in seen if path.is_file()))


def look_at_certificates(home: Home, settings: Settings, now: datetime) -> Iterator[Finding]:
    roots = credentials.load_roots(settings.roots)
    yield from _authorities(home, now)
    if home.genesis_path.exists() and not {*roots.ders} & {*decode_chain(home.require_genesis().body["roots"])}:
        # Every certificate would be found wrong, and none is.
        do = "restore that file from a backup; certificates that were issued meanwhile are to be issued anew"
        yield problem("certificates", TrustError, f"the roots in {settings.roots} are not those of this network, which its genesis names", do)
        return
    served: list[str] = []
    entities = expired = 0
    for role, folder in _folders(home):
        who = folder.name if role in (Role.OPERATOR, Role.BROKER) else f"{role} {folder.name}"
        findings, ends = _one(folder, role, who, roots, settings, now)
        is_entity = role is Role.ENTITY
        if is_entity:
            entities += 1
            expired += ends is not None and ends <= now
            if ends is not None and ends <= now:
                # Its owner's business, and perhaps meant so: counted, not told apart.
                continue
        elif ends is not None and ends > now:
            served.append(f"{who} {_left(ends, now)}")
        yield from findings
    if served:
        yield ok("certificates", f"days left: {', '.join(served)}")
    if expired:
        yield warning(
            "certificates",
            f"of {entities} entities here, {expired} {'has' if expired == 1 else 'have'} an expired certificate",
            "`tdn ca issue NAME` for those still needed",
        )


def _folders(home: Home) -> Iterator[tuple[Role, Path]]:
    for role, pattern in (
        (Role.OPERATOR, "operator"),
        (Role.BROKER, "broker*"),
        (Role.GUARD, "guards/*"),
        (Role.NODE, "nodes/*"),
        (Role.ENTITY, "entities/*"),
    ):
        for folder in sorted(home.folder.glob(pattern)):
            if (folder / "cert.pem").exists():
                yield role, folder


def _one(
    folder: Path, role: Role, who: str, roots: TrustRoots, settings: Settings, now: datetime
) -> tuple[list[Finding], datetime | None]:
    """What is wrong with one principal's credentials, and when they end."""
    check = "certificates"
    try:
        chain = x509.load_pem_x509_certificates((folder / "cert.pem").read_bytes())
        own_roots = credentials.load_roots(folder / "trust.pem")
        key = serialization.load_pem_private_key((folder / "key.pem").read_bytes(), None)
    except TdnError as error:
        return [of_error(check, error, who)], None
    except FileNotFoundError as error:
        return [problem(check, TrustError, f"{who}: {error.filename} is missing", _another(role, folder))], None
    except OSError as error:
        what = f"{who}: {error.filename or folder} cannot be read: {error.strerror or error}"
        return [problem(check, TrustError, what, "run as the owner of the home, or `chown` it")], None
    except (ValueError, TypeError):
        what = f"{who}: cert.pem or key.pem in {folder} is no unencrypted PEM file"
        return [problem(check, TrustError, what, _another(role, folder))], None
    leaf = chain[0]
    remedy = credentials.remedy(leaf)
    found: list[Finding] = []
    ends = min(certificate.not_valid_after_utc for certificate in chain)
    try:
        ders = [certificate.public_bytes(serialization.Encoding.DER) for certificate in chain]
        identity = own_roots.identify(ders, at=now)
        roots.identify(ders, at=now)
        ends = identity.not_after
        if (identity.name.role, identity.name.id) != (
            role,
            identity.name.id if role in (Role.OPERATOR, Role.BROKER) else folder.name,
        ):
            found.append(problem(check, TrustError, f"{who}: the certificate is for {identity.name.principal}", remedy))
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key_hash(key.public_key()) != identity.name.key_hash:
            found.append(problem(check, TrustError, f"{who}: key.pem and cert.pem do not belong together", remedy))
    except TdnError as error:
        found.append(problem(check, type(error), f"{who}: {error.message}", remedy))
    if not found and now + SOON > ends:
        found.append(warning(check, f"{who}: {_left(ends, now)} days left, until {format_time(ends)}", remedy))
    if missing := _missing_name(role, leaf, settings):
        found.append(
            problem(
                check, TrustError, f"{who}: the certificate does not name {missing}", f"issue it anew with `--host {missing}`"
            )
        )
    return found, ends


def _another(role: Role, folder: Path) -> str:
    """The command that makes credentials in the place of those of which nothing can be read."""
    if role is Role.OPERATOR:
        return "the operator's certificate stands in the genesis and cannot be made anew: restore operator/ and ca/ from one backup"
    flag = {Role.ENTITY: "", Role.NODE: " --node"}.get(role, f" --role {role}")
    return f"`tdn ca issue {folder.name}{flag}` makes others"


def _missing_name(role: Role, leaf: x509.Certificate, settings: Settings) -> str | None:
    """A name by which a server is reached and which its certificate does not carry. Of brokers elsewhere it is not known which is whose."""
    names = hosts_of(leaf)
    if role in (Role.GUARD, Role.BROKER) and settings.private_broker and "localhost" not in names:
        return "localhost"
    if role is Role.BROKER and not settings.private_broker and not {broker.host for broker in settings.hosts} & set(names):
        return settings.hosts[0].host
    return None


def _authorities(home: Home, now: datetime) -> Iterator[Finding]:
    for path in sorted((home.folder / "ca").glob("*.pem")):
        try:
            certificate = read_authority(path)
        except TdnError as error:
            yield of_error("certificates", error)
            continue
        ends = certificate.not_valid_after_utc
        how = (
            f"`tdn ca rotate {path.stem}` makes another"
            if path.stem != "root"
            else "a root cannot be replaced: make a new network in time"
        )
        if ends <= now:
            yield problem("certificates", TrustError, f"the authority {path.name} expired at {format_time(ends)}", how)
        elif ends < now + _AUTHORITY_SOON:
            yield warning("certificates", f"the authority {path.name} has {_left(ends, now)} days left", how)
    for path in (home.folder / "ca" / f"{name}.key" for name in AUTHORITIES):
        # Mode and owner are looked at with the other private files.
        try:
            serialization.load_pem_private_key(path.read_bytes(), None)
        except FileNotFoundError:
            if path.parent.is_dir():
                yield warning("certificates", f"{path} is missing: nothing can be issued with it", restore(path))
        except (ValueError, TypeError):
            yield problem("certificates", TrustError, f"{path} is no unencrypted PEM file: nothing can be issued with it", restore(path))
        except OSError:
            continue


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"


def _left(ends: datetime, now: datetime) -> int:
    return (ends - now).days


def look_at_disk(home: Home) -> Iterator[Finding]:
    places = {"the home": home.folder} | {
        f"the data of {path.parent.name}": path for path in home.folder.glob("broker*/rabbitmq")
    }
    told: dict[int, str] = {}
    for name, path in places.items():
        if not path.is_dir() or path.stat().st_dev in told:
            continue
        usage = shutil.disk_usage(path)
        told[path.stat().st_dev] = name
        what = f"{_size(usage.free)} of {_size(usage.total)} are free where {name} is"
        do = "free some room; `tdn archive export` and docs/operations.md say what may go"
        if usage.free < _NO_ROOM_BYTES:
            yield problem("disk", NoRoom, what, do)
        elif usage.free < _LITTLE_ROOM_BYTES:
            yield warning("disk", what, do)
        else:
            yield ok("disk", what)
        entries = os.statvfs(path)
        if entries.f_files and entries.f_favail < 1000:
            yield problem(
                "disk",
                NoRoom,
                f"only {entries.f_favail} more files can be made where {name} is",
                "remove some, or make a larger file system",
            )


def look_at_pending(home: Home) -> Iterator[Finding]:
    waiting = sorted(path.stem for path in home.pending.glob("*.jws"))
    if waiting:
        yield warning(
            "revocations",
            f"{len(waiting)} not in the log yet: {', '.join(waiting[:5])}",
            "`tdn ca revoke NAME` once more sends them, while brokers and nodes run; so does `tdn up` in a home that has them all",
        )
    else:
        yield ok("revocations", "none is waiting for the log")
