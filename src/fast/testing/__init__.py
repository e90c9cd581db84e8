"""Public kits: what every implementation of a contract must pass, in one line of its own test.

Job: check a topology, a codec, a strategy or a transport against its contract, whatever it is given.
May import: everything but cli and lab.
Never: is imported by the rest of the package, or asks for more than the contract says.
"""

from fast.testing.codec import check_codec
from fast.testing.strategy import check_strategy
from fast.testing.topology import check_topology, mixing_matrix
from fast.testing.transport import check_shared_memory, check_transport

__all__ = [
    "check_codec",
    "check_shared_memory",
    "check_strategy",
    "check_topology",
    "check_transport",
    "mixing_matrix",
]
