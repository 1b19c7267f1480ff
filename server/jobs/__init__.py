"""The dead-letter queue: what an engine failed at is written down, to be looked at and tried again.

`letters.py` is what a letter is and how it looks as a line, `reading.py` the way back, `folder.py` the directory of
files that several processes share, `place.py` which directory that is, `queue.py` the way there from the event loop.
`command.py` is `python -m server dlq`, with `listing.py` (what it shows) and `replay.py` (trying again).
"""

from server.jobs.folder import FolderError, LetterFolder
from server.jobs.letters import Letter, Resolved
from server.jobs.place import open_dead_letters
from server.jobs.queue import DeadLetters

__all__ = ["DeadLetters", "FolderError", "Letter", "LetterFolder", "Resolved", "open_dead_letters"]
