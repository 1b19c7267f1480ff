"""Voices that users had learnt from recordings: a folder of files that several processes share.

`voice_file.py` is how one looks, `store.py` the folder, `place.py` which folder that is;
`watch.py` tells who keeps something of a voice that it is gone.
What an engine learnt is bytes that the engine alone understands; the recording itself is never kept.
"""

from server.voices.store import TooManyVoices, VoicesFailed, VoiceStore
from server.voices.voice_file import OwnVoice, is_own
from server.voices.watch import VoiceWatch

__all__ = ["OwnVoice", "TooManyVoices", "VoiceStore", "VoiceWatch", "VoicesFailed", "is_own"]
