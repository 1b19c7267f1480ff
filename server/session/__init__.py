"""One client's session, without I/O: messages and rendered audio go in, what to render and what to send come out.

`machine.py` is the whole of it, on top of `rendering.py`, the side of text and audio; `utterance.py` keeps one
timeline, `ring.py` what the client does not have yet, `flow.py` says how much may be on the way, `delivery.py` what is
sent next, `states.py` which message is allowed when, `journal.py` what is written down and `restore.py` how that
becomes a session again. A shell in `gateway/` moves the bytes and asks for the time.
"""

from server.session.machine import Session
from server.session.policy import Policy
from server.session.resuming import ResumeRefused
from server.session.work import FinishUtterance, SpeakSegment, SpeakSilence, Work

__all__ = ["FinishUtterance", "Policy", "ResumeRefused", "Session", "SpeakSegment", "SpeakSilence", "Work"]
