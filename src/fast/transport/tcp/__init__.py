"""Frames between hosts over TCP with TLS 1.3.

Job: frames between hosts over TCP with TLS 1.3; who a participant is, and that a peer is who it says.
May import: transport, wire, core, view, errors.
Never: reads the environment, writes a secret or a private key to disk, or lets a text show one.
"""

from fast.transport.tcp.identity import Identity, Peer, client_context, issue, peer_of, server_context
from fast.transport.tcp.secret import Secret, new_secret, parse_secret, read_secret

__all__ = [
    "Identity",
    "Peer",
    "Secret",
    "client_context",
    "issue",
    "new_secret",
    "parse_secret",
    "peer_of",
    "read_secret",
    "server_context",
]
