"""What is known of one session, for its lines in the log and its row on the status page. Bounded, and Pure.

Times are seconds since the session began.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from server.link import Switch

MOST_UTTERANCES: Final = 16  # the newest
MOST_CHANGES: Final = 16


@dataclass(slots=True)
class UtteranceAccount:
    """One utterance. `waited_s`: for the engine, from asking for a chunk until it came, all chunks together."""

    began_s: float
    mode: str = ""
    first_audio_s: float | None = None
    stalls: int = 0
    degraded_why: str = ""  # of the latest segment that is
    chunks: int = 0
    waited_s: float = 0.0
    longest_wait_s: float = 0.0
    statistics: Mapping[str, Any] = field(default_factory=dict)

    def detail(self, number: int) -> dict[str, Any]:
        """For the log."""
        first = self.first_audio_s
        return {
            "utterance": number,
            "began_s": round(self.began_s, 2),
            "mode": self.mode,
            "first_audio_ms": None if first is None else round(first * 1000, 1),
            "underruns": self.stalls,
            **({"degraded_why": self.degraded_why} if self.degraded_why else {}),
            "chunks": self.chunks,
            "engine_wait_ms": round(self.waited_s * 1000),
            "longest_wait_ms": round(self.longest_wait_s * 1000),
            **self.statistics,
        }


class SessionAccount:
    """Counts and times of one session."""

    def __init__(self) -> None:
        self.first_audio_s: float | None = None  # of the first utterance that somebody waited for
        self.slowest_s: float | None = None
        self.underruns = 0
        self.degraded_segments = 0
        self.blocks = 0  # changes to block mode
        self.resumes = 0
        self.mode_reason = ""  # of the latest change
        self.waited_s = 0.0
        self._utterances: OrderedDict[int, UtteranceAccount] = OrderedDict()
        self._forgotten = 0
        self._changes: deque[dict[str, Any]] = deque(maxlen=MOST_CHANGES)

    @property
    def degraded(self) -> bool:
        """Whether its listener heard or might have heard that not all was well."""
        return bool(self.underruns or self.blocks or self.degraded_segments)

    def first_audio(self, utterance: int, at_s: float, seconds: float, mode: str) -> None:
        """An utterance's first audio, `seconds` after its first cut was certain."""
        account = self._of(utterance, at_s - seconds)
        account.first_audio_s, account.mode = seconds, mode
        if self.first_audio_s is None:
            self.first_audio_s = seconds
        self.slowest_s = max(self.slowest_s or 0.0, seconds)

    def waited(self, utterance: int, at_s: float, seconds: float) -> None:
        """A chunk came from the engine, `seconds` after it was asked for."""
        account = self._of(utterance, at_s - seconds)
        account.chunks += 1
        account.waited_s += seconds
        account.longest_wait_s = max(account.longest_wait_s, seconds)
        self.waited_s += seconds

    def stalled(self, utterance: int, at_s: float, count: int) -> None:
        """The listener ran dry."""
        self._of(utterance, at_s).stalls += count
        self.underruns += count

    def degraded_segment(self, utterance: int, at_s: float, reason: str) -> None:
        """A segment was rendered otherwise than it was asked for."""
        self._of(utterance, at_s).degraded_why = reason
        self.degraded_segments += 1

    def spoken(self, utterance: int, at_s: float, statistics: Mapping[str, Any]) -> None:
        """All of an utterance was handed out."""
        self._of(utterance, at_s).statistics = statistics

    def switched(self, at_s: float, switch: Switch) -> None:
        """The mode changed."""
        self.blocks += switch.mode == "block"
        self.mode_reason = switch.reason
        self._changes.append({"at_s": round(at_s, 2), "mode": switch.mode, "reason": switch.reason})

    def resumed(self, at_s: float) -> None:
        """Its client came back."""
        self.resumes += 1
        self._changes.append({"at_s": round(at_s, 2), "resumed": self.resumes})

    def detail(self) -> dict[str, Any]:
        """Everything, for the log."""
        return {
            "utterances": [account.detail(number) for number, account in self._utterances.items()],
            "utterances_left_out": self._forgotten,
            "changes": list(self._changes),
            "engine_wait_ms": round(self.waited_s * 1000),
        }

    def _of(self, utterance: int, began_s: float) -> UtteranceAccount:
        account = self._utterances.get(utterance)
        if account is None:
            account = self._utterances[utterance] = UtteranceAccount(began_s)
            if len(self._utterances) > MOST_UTTERANCES:
                self._utterances.popitem(last=False)
                self._forgotten += 1
        return account
