"""Which folder the learnt voices are in: what the settings say, and what this process finds."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from server.jobs.folder import FolderError
from server.jobs.place import state_directory
from server.settings import Settings
from server.voices.store import VoicesFailed, VoiceStore

OFF: Final = "off"
AUTO: Final = "auto"
_OF_STATE: Final = Path("cosystream", "voices")


def open_voices(settings: Settings, environ: Mapping[str, str] = os.environ) -> VoiceStore:
    """The store that the settings ask for. `auto` is in the user's state directory, made with the first voice; without
    such a directory, and where no text may be at rest, there are none. Raises VoicesFailed for a folder that the
    settings name and that cannot be written.
    """
    place = settings.voices
    if place == OFF or (place == AUTO and settings.no_text_at_rest):
        return VoiceStore(None)
    if place == AUTO:
        try:
            path = state_directory(environ) / _OF_STATE
        except FolderError:
            return VoiceStore(None)
        return VoiceStore(path.absolute(), settings.voices_per_principal)
    store = VoiceStore(Path(place).absolute(), settings.voices_per_principal)
    try:
        store.open()
    except VoicesFailed as error:
        raise VoicesFailed(f"voices: {error}") from error
    return store
