"""What the lab's tests compare: a user's own task and strategies, in files beside this one."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
OWN = f"{HERE / 'problems.py'}:Dropout"
TUNED = f"{HERE / 'problems.py'}:Sealed"
BROKEN, DIVERGING = f"{HERE / 'ideas.py'}:Broken", f"{HERE / 'ideas.py'}:Diverging"
