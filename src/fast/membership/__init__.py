"""Who is in: pure functions, evidence in, next view out.

Job: decide from what is known about the peers which view holds.
May import: view, errors.
Never: asks anybody, waits, or remembers.
"""

from fast.membership.grouping import parse_groups
from fast.membership.views import Change, Why, patience_of, view_now

__all__ = ["Change", "Why", "parse_groups", "patience_of", "view_now"]
