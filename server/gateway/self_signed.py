"""A certificate that the server makes itself (`tls_self_signed`): browsers keep much of what they can for pages that
came by https.

It is kept, so that who trusts it once still does after a restart; all servers of a user share the one. `cryptography`
is loaded for this alone.
"""

import fcntl
import ipaddress
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from server.background import in_daemon_thread
from server.gateway.own_names import names_of
from server.settings import Settings

if TYPE_CHECKING:
    from cryptography import x509

VALID: Final = timedelta(days=397)  # what browsers take at most
LEAST_LEFT: Final = timedelta(days=30)  # with less it is made again
SKEW: Final = timedelta(hours=1)  # of a client's clock
MOST_NAMES: Final = 100
KEY_FILE: Final = "server.pem"  # the key, then the certificate: one file, so that they always fit
SHARED_FILE: Final = "certificate.pem"  # the certificate alone, for clients
_LOCK: Final = "lock"
_OF_STATE: Final = Path("cosystream", "tls")

log = structlog.stdlib.get_logger("cosystream.gateway")


@dataclass(frozen=True, slots=True)
class Certificate:
    """One with its key, in `pem`. `fingerprint`: its SHA-256, as browsers show it."""

    pem: bytes
    shared: bytes
    names: tuple[str, ...]
    begins: datetime
    ends: datetime
    fingerprint: str

    def serves(self, names: Sequence[str], now: datetime) -> bool:
        """Whether it has these names, and is good for some time yet."""
        return self.begins <= now <= self.ends - LEAST_LEFT and set(names) <= set(self.names)


@asynccontextmanager
async def certified(settings: Settings, environ: Mapping[str, str] = os.environ) -> AsyncIterator[Settings]:
    """The settings, with the paths of the server's own certificate where they ask for one. Until the end of this the
    files are there. Raises OSError where none can be written anywhere.
    """
    if not settings.tls_self_signed:
        yield settings
        return
    folder, certificate, why_not = await in_daemon_thread(partial(_provide, settings, environ))
    try:
        if why_not:
            log.warning(
                "the certificate cannot be kept: after a restart it is another one, which nobody trusts",
                reason=why_not,
            )
        log.info(
            "serving with a certificate of its own",
            sha256=certificate.fingerprint,
            file=str(folder / SHARED_FILE),
            ends=certificate.ends.date().isoformat(),
            names=",".join(certificate.names),
        )
        path = folder / KEY_FILE
        yield replace(settings, tls_cert=path, tls_key=path, tls_self_signed=False)
    finally:
        if why_not:
            shutil.rmtree(folder, ignore_errors=True)


def _provide(settings: Settings, environ: Mapping[str, str]) -> tuple[Path, Certificate, str]:
    """The folder, the certificate in it, and why that is a temporary one; empty where it is not."""
    names, now = names_of(settings), datetime.now(UTC)
    # Late: metrics come along, which the parent of several gateways has no use for.
    place = import_module("server.jobs.place")
    try:
        folder: Path = place.state_directory(environ) / _OF_STATE
        return folder, keep(folder, names, now), ""
    except (OSError, place.FolderError) as error:
        temporary = Path(tempfile.mkdtemp(prefix="cosystream-tls-"))
        certificate = make(names, now)
        _write(temporary, certificate)
        return temporary, certificate, str(error)


def keep(folder: Path, names: Sequence[str], now: datetime) -> Certificate:
    """The certificate in `folder`, made again where it lacks a name or ends soon. All who ask get the same one.

    Raises OSError where there is none that would do, and none can be written.
    """
    found = _read(folder / KEY_FILE)
    if found is not None and found.serves(names, now):
        return found
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        found = _read(folder / KEY_FILE)
        if found is not None and found.serves(names, now):
            return found
        # Those of before stay: of two servers with other names neither takes the other's away.
        before = found.names if found is not None else ()
        made = make(tuple(dict.fromkeys([*names, *before]))[:MOST_NAMES], now)
        _write(folder, made)
        return made
    finally:
        os.close(descriptor)


def make(names: Sequence[str], now: datetime) -> Certificate:
    """A new one, with a new key (ECDSA, P-256). It is no authority: who trusts it trusts no other one for that."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key()
    serial = x509.random_serial_number()
    # Some browsers take two certificates of one subject for the same one.
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"CosyStream {serial:040x}"[:32])])
    usage = dict.fromkeys(
        (
            "content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "key_cert_sign", "crl_sign",
            "encipher_only", "decipher_only",
        ),
        False,
    )  # fmt: skip
    begins = (now - SKEW).replace(microsecond=0)
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(public)
        .serial_number(serial)
        .not_valid_before(begins)
        .not_valid_after(begins + VALID)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(digital_signature=True, **usage), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return parse(private + signed.public_bytes(serialization.Encoding.PEM))


def _general_name(name: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def parse(pem: bytes) -> Certificate:
    """What `make` made. Raises ValueError where it is something else, or key and certificate do not fit."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    try:
        key = serialization.load_pem_private_key(pem, None)
        found = x509.load_pem_x509_certificate(pem)
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (TypeError, x509.ExtensionNotFound) as error:  # TypeError: the key has a password
        raise ValueError(str(error)) from error
    if key.public_key() != found.public_key():
        raise ValueError("the key is another certificate's")
    return Certificate(
        pem,
        found.public_bytes(serialization.Encoding.PEM),
        (*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))),
        found.not_valid_before_utc,
        found.not_valid_after_utc,
        found.fingerprint(hashes.SHA256()).hex(":").upper(),
    )


def _read(path: Path) -> Certificate | None:
    """What is there; None where nothing is, or it is damaged."""
    try:
        return parse(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def _write(folder: Path, certificate: Certificate) -> None:
    """Both files, each whole or not at all; the one that counts comes last."""
    for name, data, mode in ((SHARED_FILE, certificate.shared, 0o644), (KEY_FILE, certificate.pem, 0o600)):
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}.")  # mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                os.fchmod(file.fileno(), mode)
            Path(temporary).replace(folder / name)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
