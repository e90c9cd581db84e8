"""Who is in: pure functions, evidence in, next view out.

Job: decide from what is known about the peers which view holds.
May import: view, errors.
Never: asks anybody, waits, or remembers.
"""

from fast.membership.views import view_now

__all__ = ["view_now"]
