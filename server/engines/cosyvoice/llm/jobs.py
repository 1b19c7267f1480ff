"""One utterance on its way through the language model: what it reads next, and what was drawn so far."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from server.engines.base import EngineError
from server.engines.cosyvoice.config import LlmConfig
from server.engines.cosyvoice.llm.ids import (
    END_OF_PROMPT,
    check_ids,
    code_id,
    needs_end_of_prompt,
    start_id,
    task_id,
)
from server.engines.cosyvoice.llm.sampling import Allowed, Draws
from server.engines.cosyvoice.llm.slots import SavedKv
from server.engines.cosyvoice.llm.turns import Turns
from server.engines.cosyvoice.llm.watching import Watch, silent_codes


@dataclass(frozen=True, slots=True)
class CodeLimits:
    """How many codes an utterance has: for each token of its own text, and at most in all (None: no such limit). The
    least counts only where the text is whole.
    """

    least_per_token: float = 2.0
    most_per_token: float = 20.0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Manner:
    """How an utterance is drawn. `greedy`: always the likeliest code, never an end. `as_upstream`: mistakes of
    CosyVoice's own code are repeated where text arrives late (its last input is read twice before the last text, codes
    of the prompt are dropped where the text runs out first, text is taken only at its arrival). `watch`: fail where the
    same comes over and over. `keep_scores`: collect the log-probabilities.
    """

    greedy: bool = False
    as_upstream: bool = False
    watch: bool = True
    keep_scores: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class VoicePrefix:
    """Keys and values of the first input ids of a voice's utterances. Immutable; any number of jobs share it."""

    ids: tuple[int, ...]
    saved: SavedKv

    @property
    def bytes(self) -> int:
        """What it takes."""
        return self.saved.bytes + 8 * len(self.ids)


@dataclass(eq=False, slots=True)
class Seat:
    """The decoder's own notes on a job: where its keys and values are, and how many positions they have."""

    slot: int | None = None
    saved: SavedKv | None = None
    fed: int = 0
    served: int = 0  # the tick that it last took part in


class CodeJob:
    """Text in, speech codes out; `Decoder.advance` moves it on.

    Without `streaming` the text is whole: read at once, then 2 to 20 codes for each of its tokens. With it, text may go
    on to arrive by `add_text` until `end_text`: 5 text tokens and 15 codes take turns, the voice's first. What is drawn
    does not depend on when text arrives, nor in what pieces (but see `Manner.as_upstream`).

    `known` are ids drawn before (`drawn` of a job like this one): they are taken as they are, read at once, and the
    drawing goes on behind them with the chances that it would have had.
    """

    def __init__(
        self,
        config: LlmConfig,
        text: Sequence[int],
        *,
        prompt_text: Sequence[int] = (),
        prompt_codes: Sequence[int] = (),
        seed: int = 0,
        limits: CodeLimits | None = None,
        known: Sequence[int] = (),
        streaming: bool = False,
        prefix: VoicePrefix | None = None,
        manner: Manner | None = None,
    ) -> None:
        """Raises ValueError where ids are none, there is no text, or version 3 lacks its `<|endofprompt|>`."""
        check_ids("prompt_text", prompt_text, config.vocab)
        check_ids("text", text, config.vocab)
        check_ids("prompt_codes", prompt_codes, config.codes)
        check_ids("known", known, config.rows)
        if not (text or streaming):
            raise ValueError("text: must have at least one token")
        where = "prompt_text" if streaming else "prompt_text or text"
        if needs_end_of_prompt(config) and END_OF_PROMPT not in (prompt_text if streaming else [*prompt_text, *text]):
            raise ValueError(f"{where}: must contain <|endofprompt|> ({END_OF_PROMPT}) for CosyVoice 3")

        self.config, self.prefix, self.seat = config, prefix, Seat()
        self.manner, self.limits = manner or Manner(), limits or CodeLimits()
        self.codes: list[int] = []  # speech codes alone
        self.drawn: list[int] = []  # with the marks among them: what `known` takes
        self.scores: list[Tensor] = []  # log-probabilities, `[rows]` each, on the CPU; see Manner.keep_scores
        self.done = False
        self.error: EngineError | None = None
        self.draws = Draws(seed)
        self.rereads = False  # what was lost: in one tick, or it may be lost again before it is of use
        self._known = deque(known)
        self._read: list[int] = []  # input ids, so that it can be read again
        self._watch = Watch(silent_codes(config.version)) if self.manner.watch else None
        self._tokens = 0
        self._turns: Turns | None = None
        self._fill_at = -1  # in `drawn`; the model is not asked there
        self._asks = False  # for text, before anything can be drawn
        if streaming:
            self._turns = Turns(config, prompt_text, prompt_codes, as_upstream=self.manner.as_upstream)
            self._fill_at = config.code_share - len(prompt_codes) % config.code_share
            self._pending, self._asks = deque(self._turns.first), True
            self._before = list(self._pending)
            self.add_text(text)
        else:
            self._tokens = len(text)
            self._before = [start_id(config), *prompt_text, *text, task_id(config), *map(code_id, prompt_codes)]
            self._pending = deque(self._before)
            self._settle()

    # -- text ---------------------------------------------------------------------------------------------------------

    @property
    def waits_for_text(self) -> bool:
        """Nothing can be done before more text arrives; no slot is needed until then."""
        return self._asks and not self.done

    def add_text(self, tokens: Sequence[int]) -> None:
        """More of the text. Raises ValueError for ids that are none, and after the text's end."""
        check_ids("text", tokens, self.config.vocab)
        if self._turns is None or self._turns.ended:
            raise ValueError("text: nothing can be added, it has ended")
        if tokens:
            self._tokens += len(tokens)
            self._turns.add(tokens)
            self._read_on()

    def end_text(self) -> None:
        """That was all of the text."""
        if self._turns is not None and not self._turns.ended:
            self._turns.end()
            self._read_on()

    # -- for the decoder ----------------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Input ids to be read before the next draw."""
        return len(self._pending)

    def ahead(self, count: int) -> list[int]:
        """The first `count` pending ids, or all."""
        return [self._pending[place] for place in range(min(count, len(self._pending)))]

    def feed(self, count: int) -> None:
        """That many were read."""
        self._read += [self._pending.popleft() for _ in range(count)]
        self.seat.fed += count
        self.rereads = self.rereads and bool(self._pending)

    def rewind(self) -> None:
        """What was kept of its input is lost: all of it is read again, before the next draw. Call it without a slot."""
        self._pending.extendleft(reversed(self._read))
        self._read.clear()
        self.rereads = True
        self.seat.saved, self.seat.fed = None, 0

    @property
    def allowed(self) -> Allowed:
        """What may be drawn now."""
        if self._turns is not None:
            return Allowed.CODES_AND_END if self._turns.last else Allowed.CODES_AND_FILL
        enough = len(self.codes) >= int(self._tokens * self.limits.least_per_token)
        return Allowed.ALL if enough else Allowed.CODES

    def recent(self, window: int) -> list[int]:
        """The last ids drawn, -1 where there are fewer."""
        last = self.drawn[-window:]
        return [-1] * (window - len(last)) + last

    def take(self, drawn: int) -> None:
        """What was drawn behind everything that was read."""
        self._take(drawn)
        self._settle()

    def fail(self, error: EngineError) -> None:
        """It ends here."""
        self.error, self.done = error, True

    # -- inside -------------------------------------------------------------------------------------------------------

    @property
    def _most(self) -> int:
        most = int(self._tokens * self.limits.most_per_token)
        return most if self.limits.most is None else min(most, self.limits.most)

    def _settle(self) -> None:
        """Take what needs no model: known ids, and marks at their fixed places."""
        while not (self.done or self._asks):
            forced = len(self.drawn) == self._fill_at and self._turns is not None and not self._turns.last
            if not (forced or self._known):
                return
            known = self._known.popleft() if self._known else self.config.fill
            self._take(self.config.fill if forced else known)

    def _take(self, drawn: int) -> None:
        self.drawn.append(drawn)
        if self._turns is not None and not self._turns.last and drawn == self.config.fill:
            self._fill_at = len(self.drawn) + self.config.code_share
            self._asks = True
            self._read_on()
        elif drawn >= self.config.codes:
            self.done = True
        else:
            self.codes.append(drawn)
            self._before = [code_id(drawn)]
            self._pending.extend(self._before)
            if self._watch is not None and self._watch.stuck(self.codes):
                self.fail(EngineError("the language model says the same over and over", kind="repeated"))
            self.done = self.done or len(self.codes) >= self._most

    def _read_on(self) -> None:
        """Get text for the model where it asks for some."""
        if self._turns is None or not self._asks:
            return
        ids, ready = self._turns.read(self._before if self.drawn else ())
        self._pending.extend(ids)
        if ids:
            self._before = ids if self.drawn else self._before + ids
        self._asks = not ready
        self._settle()
