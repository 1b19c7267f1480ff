"""One client's session, without I/O: messages and rendered audio go in, what to render and what to send come out.

`machine.py` is the whole of it; `utterance.py` keeps one timeline, `outbox.py` what waits to be sent, `flow.py` says
how much may be on the way, `states.py` which message is allowed when. A shell in `gateway/` moves the bytes and asks
for the time.
"""

from server.session.machine import Policy, Session
from server.session.work import FinishUtterance, SpeakSegment, SpeakSilence, Work

__all__ = ["FinishUtterance", "Policy", "Session", "SpeakSegment", "SpeakSilence", "Work"]
