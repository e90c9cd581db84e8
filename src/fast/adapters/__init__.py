"""A framework's model <-> flat tensors.

Job: implement `core.Replica` for a framework's model and optimizer.
May import: core, parts, view, errors.
Never: sends anything, starts anything, or knows which strategy runs.
"""

from fast.adapters.optimizer_spec import KNOWN
from fast.adapters.server_replica import ServerReplica
from fast.adapters.torch_replica import TorchReplica

__all__ = ["KNOWN", "ServerReplica", "TorchReplica"]
