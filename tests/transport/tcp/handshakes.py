"""Handshakes of two contexts: in memory, step by step, so that no test waits for anything."""

from __future__ import annotations

import datetime
import ssl
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from fast.transport.tcp import Identity


@dataclass(frozen=True)
class Handshake:
    """How a handshake ended on both sides, and the two connections."""

    server: ssl.SSLObject
    client: ssl.SSLObject
    server_refused: str
    client_refused: str
    sent_by_client: tuple[bytes, ...]
    """Every piece that the connecting side sent, as it lay on the wire."""

    @property
    def done(self) -> bool:
        return not self.server_refused and not self.client_refused


def shake_hands(
    server_side: ssl.SSLContext, client_side: ssl.SSLContext, offered: ssl.SSLSession | None = None
) -> Handshake:
    """A whole handshake, until both sides are through or have refused; then the connecting side reads once, since in
    TLS 1.3 it hears of a refusal only there."""
    to_server, from_client, to_client = ssl.MemoryBIO(), ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    client = client_side.wrap_bio(to_client, from_client, session=offered)
    refused = {server: "", client: ""}
    waiting, pieces = [client, server], []
    for _ in range(10):
        for side in tuple(waiting):
            if from_client.pending:
                pieces.append(from_client.read())
                to_server.write(pieces[-1])
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as wrong:
                refused[side] = str(wrong)
            waiting.remove(side)
    if not refused[client] and client not in waiting:
        try:
            client.read(1)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as wrong:
            refused[client] = str(wrong)
    for side in waiting:
        refused[side] = "left waiting"
    return Handshake(server, client, refused[server], refused[client], tuple(pieces))


def certificate_for(
    uris: list[str],
    signing: Ed25519PrivateKey,
    key: Ed25519PrivateKey,
    *,
    issuer: x509.Name | None = None,
    dates: tuple[datetime.datetime, datetime.datetime] | None = None,
) -> bytes:
    """A certificate as none of ours is."""
    name = issuer or x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "stranger")])
    soon = (
        datetime.datetime(1980, 1, 1, tzinfo=datetime.UTC),
        datetime.datetime(2080, 1, 1, tzinfo=datetime.UTC),
    )
    not_before, not_after = dates or soon
    alternatives = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris])
    return (
        x509.CertificateBuilder(subject_name=name, issuer_name=name, public_key=key.public_key())
        .serial_number(7)
        .not_valid_before(not_before)
        .not_valid_after(not_after)
        .add_extension(alternatives, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False
        )
        .sign(signing, None)
        .public_bytes(Encoding.DER)
    )


def pem_of(certificate: bytes, key: Ed25519PrivateKey | None = None) -> bytes:
    own = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) if key else b""
    return own + x509.load_der_x509_certificate(certificate).public_bytes(Encoding.PEM)


def authority_name(identity: Identity) -> x509.Name:
    return x509.load_der_x509_certificate(identity.authority).subject
