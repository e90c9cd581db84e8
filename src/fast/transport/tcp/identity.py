"""Who a participant is: a certificate for (session, participant, life), and TLS contexts that accept only such.

    identity = issue(secret, session="a1b2", participant=3, life=0)
    server_context(identity).wrap_socket(connection, server_side=True)
    client_context(identity).wrap_socket(connection)
    peer_of(tls_socket, identity) -> Peer(participant=1, life=0)

Everybody who has the secret derives the same certificate authority (an Ed25519 key; its signatures and so its
certificate are the same bytes everywhere) and issues its own certificate, for a key pair that is fresh and never
leaves the process. Nobody has to be asked, and no private key travels.

What follows from that: a stranger can't take part, read or change anything, nor can someone who recorded a
connection and learns the secret later (TLS 1.3 has forward secrecy). But everybody who has the secret can issue a
certificate with any name: among participants a name is a label, no proof.

Certificates are valid from 1970 to 9999. Hosts' clocks may be years off, and an expiry date would protect nobody:
a certificate is of use only with its key, which dies with its process, and only in its session.

A connecting side has finished its handshake *before* the accepting side has looked at its certificate (so TLS 1.3
works): a refusal arrives with the first read. So the accepting side has to speak first.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import secrets
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, SupportsIndex

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fast.errors import UsageError, WireError
from fast.transport.tcp.secret import Secret

NOT_BEFORE = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
NOT_AFTER = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
"""RFC 5280's own date for "no expiry"."""
_SESSION = r"[A-Za-z0-9._-]{1,64}"
_NUMBER = r"0|[1-9][0-9]{0,17}"
_NAME = re.compile(rf"fast:(?P<session>{_SESSION})/(?P<participant>{_NUMBER})/(?P<life>{_NUMBER})")
_AUTHORITY = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "FAST job")])


@dataclass(frozen=True)
class Peer:
    """The other end of a connection: which participant, and in which of its lives."""

    participant: int
    life: int


@dataclass(frozen=True, eq=False)
class Identity:
    """What a participant shows (its certificate), and the key that proves that it may. The key never shows itself."""

    session: str
    participant: int
    life: int
    authority: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    key: Ed25519PrivateKey = field(repr=False)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("an Identity can't be copied or pickled; every process issues its own")


def issue(secret: Secret, session: str, participant: int, life: int = 0) -> Identity:
    """A fresh key pair and its certificate for this participant, in this session, in this life."""
    name = f"fast:{session}/{participant}/{life}"
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} can't be a participant's name: a session has 1 to 64 letters, digits, dots, underscores and "
            "dashes; participant and life are whole numbers from 0"
        )
    signing = Ed25519PrivateKey.from_private_bytes(secret.derive("authority"))
    key = Ed25519PrivateKey.generate()
    return Identity(
        session=session,
        participant=participant,
        life=life,
        authority=_authority(signing).public_bytes(Encoding.DER),
        certificate=_certificate(name, key.public_key(), signing).public_bytes(Encoding.DER),
        key=key,
    )


def server_context(identity: Identity) -> ssl.SSLContext:
    """The accepting side: TLS 1.3 only, the peer must show a certificate of this job, nothing is resumed."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, identity)
    context.num_tickets = 0
    return context


def client_context(identity: Identity) -> ssl.SSLContext:
    """The connecting side; as `server_context`. There is no name of a host to check: the certificate names
    the participant, see `peer_of`."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, identity)


def peer_of(connection: ssl.SSLSocket | ssl.SSLObject | bytes, identity: Identity) -> Peer:
    """Who is at the other end of a connection after its handshake; or whom a certificate (DER) names.

    Raises WireError if there is no certificate, if it is not of this job or this session, or if its name is
    not as `issue` writes it. The signature is checked here too, so that bytes from elsewhere can't slip through.
    """
    shown = connection if isinstance(connection, bytes) else connection.getpeercert(binary_form=True)
    if not shown:
        raise WireError(
            "the peer showed no certificate; it has to do its TLS handshake with client_context(identity)"
        )
    found = _NAME.fullmatch(_name_in(shown, identity))
    if found is None:
        raise WireError("the peer's certificate doesn't name a participant as fast:SESSION/PARTICIPANT/LIFE")
    if found["session"] != identity.session:
        raise WireError(
            f"the peer belongs to session {found['session']}, and this is {identity.session}: it is left over from "
            "another run with the same secret, or was given the wrong address"
        )
    return Peer(int(found["participant"]), int(found["life"]))


# Certificates


def _builder(
    subject: x509.Name, key: Ed25519PublicKey, signing: Ed25519PrivateKey
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=_AUTHORITY, public_key=key)
        .not_valid_before(NOT_BEFORE)
        .not_valid_after(NOT_AFTER)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False
        )
    )


def _authority(signing: Ed25519PrivateKey) -> x509.Certificate:
    """The certificate that all trust: the same bytes wherever the secret is the same."""
    return (
        _builder(_AUTHORITY, signing.public_key(), signing)
        .serial_number(1)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(signing, None)
    )


def _certificate(name: str, key: Ed25519PublicKey, signing: Ed25519PrivateKey) -> x509.Certificate:
    """A participant's. It is both server and client of TLS, depending on who connects; it can't issue others."""
    roles = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return (
        _builder(x509.Name([]), key, signing)
        .serial_number(x509.random_serial_number())
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(name)]), critical=True)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(roles), critical=False)
        .sign(signing, None)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name_in(shown: bytes, identity: Identity) -> str:
    """The one name in a certificate that this job's authority signed."""
    try:
        certificate = x509.load_der_x509_certificate(shown)
        certificate.verify_directly_issued_by(x509.load_der_x509_certificate(identity.authority))
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound) as found:
        raise WireError(f"the peer's certificate isn't one of this job: {type(found).__name__}") from None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    return uris[0] if len(uris) == len(list(names)) == 1 else ""


# Contexts


def _context(protocol: int, identity: Identity) -> ssl.SSLContext:
    """Not `create_default_context`: that trusts the system's authorities and obeys SSLKEYLOGFILE, which writes the keys
    of connections to a file."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.load_verify_locations(cadata=identity.authority)
    load_key(context, identity)
    return context


def load_key(context: ssl.SSLContext, identity: Identity) -> None:
    """Python's ssl reads keys from files only, so it gets one in memory without a name. Where there is none, the
    file on disk is encrypted with a password that only this process knows, and is removed at once."""
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        with _memory_file(_pem(identity, NoEncryption())) as path:
            context.load_cert_chain(path)
    else:
        load_key_from_disk(context, identity)


def load_key_from_disk(context: ssl.SSLContext, identity: Identity) -> None:
    """The way without a memory file, elsewhere than on Linux."""
    password = secrets.token_bytes(32).hex()
    with tempfile.TemporaryDirectory(prefix="fast-") as folder:
        path = Path(folder, "key.pem")
        path.touch(0o600)
        path.write_bytes(_pem(identity, BestAvailableEncryption(password.encode("ascii"))))
        context.load_cert_chain(path, password=password)


@contextlib.contextmanager
def _memory_file(content: bytes) -> Iterator[str]:
    descriptor = os.memfd_create("fast-key", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _pem(identity: Identity, encryption: KeySerializationEncryption) -> bytes:
    certificate = x509.load_der_x509_certificate(identity.certificate).public_bytes(Encoding.PEM)
    return identity.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption) + certificate
