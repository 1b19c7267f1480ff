"""What the model is given of a speaker, as plain values. Pure."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class VoiceData:
    """One voice. `text` is what is said in the recording; empty: the model continues no text (cross-lingual). `codes`
    are the recording's speech codes (25 a second), `mel` its spectrogram `[2 * len(codes), 80]`, float32; both are
    empty for a speaker that was trained in. `embedding`: `[192]`, float32.
    """

    text: str
    codes: tuple[int, ...]
    mel: npt.NDArray[np.float32]
    embedding: npt.NDArray[np.float32]

    def __post_init__(self) -> None:
        """Raises ValueError where the parts do not fit together."""
        if self.mel.shape != (2 * len(self.codes), 80) or self.embedding.shape != (192,):
            raise ValueError(f"a voice of {len(self.codes)} codes cannot have {self.mel.shape}, {self.embedding.shape}")
