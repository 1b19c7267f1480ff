"""What utterances must sound like: their text cut and rendered at one go, from the client's numbered messages alone."""

from typing import Final

from bench._simulated_speech import EngineModel
from protocol import client_messages as c
from server.engines.base import RenderPlan
from server.session import SpeakSegment, SpeakSilence
from server.session.utterance import Utterance, speech_of
from server.text.segmenter import Segmenter, SegmentLimits
from tests.support.session_driver import capabilities

RATE: Final = 8_000
SEGMENT_CHARACTERS: Final = 60  # no segment has more
ENGINE: Final = EngineModel(samples_per_character=640, first_chunk_s=0.02, chunk_s=0.25)


class Timeline:
    """What an utterance must sound like: its text cut and rendered at one go."""

    def __init__(self, start: c.Start, request: c.Open) -> None:
        limits_ = SegmentLimits(max_tokens=capabilities().max_tokens, count_tokens=capabilities().count_tokens)
        speech = speech_of(request, start, "tone-low")
        self._utterance = Utterance(start.utterance, speech, Segmenter(language=None, limits=limits_), 0.0)
        self._parts: list[bytes] = []
        self.text = ""
        self.spans: list[tuple[int, int]] = []

    def take(self, message: c.Numbered) -> None:
        """One of its messages."""
        match message:
            case c.Text():
                self._utterance.add(message.text, 0.0)
            case c.Flush():
                self._utterance.segmenter.flush(soft=message.soft)
            case c.Silence():
                self._utterance.add_silence(message.ms)
            case c.End():
                self._utterance.end()
            case _:
                pass

    def finish(self) -> None:
        """Nothing follows: render it."""
        utterance = self._utterance
        while isinstance(work := utterance.next_work(RenderPlan()), SpeakSegment | SpeakSilence):
            record = utterance.open_segment
            assert record is not None
            self.spans.append((record.start, record.end))
            if isinstance(work, SpeakSegment):
                chunk = ENGINE.render(work.request)
                self.text += work.request.cut.text
                utterance.place(chunk)
                self._parts.append(chunk.pcm)
            else:
                self._parts.append(bytes(2 * work.samples))
            utterance.close_segment()
        self.pcm = b"".join(self._parts)


def timelines(messages: list[c.Numbered], request: c.Open) -> dict[int, Timeline]:
    """The timeline of each utterance, as far as its text goes."""
    found: dict[int, Timeline] = {}
    writing: Timeline | None = None
    for message in messages:
        if isinstance(message, c.Start):
            writing = found[message.utterance] = Timeline(message, request)
        elif writing is not None and not isinstance(message, c.Cancel | c.Pause | c.Unpause):
            writing.take(message)
    for timeline in found.values():
        timeline.finish()
    return found
