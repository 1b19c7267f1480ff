"""What the acks of a session tell about its link, and what follows from it.

That is: streaming or block-wise sending, how many bytes may be unacked, and how large one message may be. `link.py` is
the whole of it for a session; `estimator.py` measures round trips, delays and goodput, `buffer.py` the listener's
buffer, `mode.py` decides. Pure: times are seconds on the caller's monotonic clock.
"""

from server.link.link import Link
from server.link.mode import TRIGGERS, Load, Mode, Switch, Trigger

__all__ = ["TRIGGERS", "Link", "Load", "Mode", "Switch", "Trigger"]
