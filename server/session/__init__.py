"""One client's session, without I/O: messages and rendered audio go in, what to render and what to send come out.

`machine.py` has the `Session`. It is made of sides, each a class that builds on the one before: `rendering.py` (audio
onto the timeline), `writing.py` (text, cancel, pause), `sending.py`, `acking.py`, `returning.py` (on another
connection), `clock.py` (what is due when). A shell in `gateway/` moves the bytes and asks for the time.

Under them: `utterance.py` keeps one timeline, `ring.py` what the client does not have yet (its items: `entries.py`),
`flow.py` says how much may be on the way, `delivery.py` what is sent next, `states.py` which message is allowed when.
`observer.py` is told what happens. `journal.py` is what is written down, `restore.py` how that becomes a session again,
`verifying.py` what such a session must prove before it goes on.
"""

from server.session.machine import Session
from server.session.observer import SessionObserver
from server.session.policy import Policy
from server.session.refusal import ResumeRefused
from server.session.work import FinishUtterance, SpeakSegment, SpeakSilence, Work

__all__ = [
    "FinishUtterance",
    "Policy",
    "ResumeRefused",
    "Session",
    "SessionObserver",
    "SpeakSegment",
    "SpeakSilence",
    "Work",
]
