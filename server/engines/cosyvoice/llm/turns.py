"""Text that arrives late: five of its tokens and fifteen codes take turns, the voice's own text and codes first."""

from collections import deque
from collections.abc import Sequence

from server.engines.cosyvoice.config import LlmConfig
from server.engines.cosyvoice.llm.ids import END_OF_PROMPT, code_id, needs_end_of_prompt, start_id, task_id


class Turns:
    """What is read, turn by turn. `first` are the ids before any turn, `last` says that no turn follows."""

    def __init__(
        self, config: LlmConfig, prompt_text: Sequence[int], prompt_codes: Sequence[int], *, as_upstream: bool
    ) -> None:
        self._config, self._as_upstream = config, as_upstream
        self.first = [start_id(config)]
        self.last = False
        text = list(prompt_text)
        if needs_end_of_prompt(config):
            cut = text.index(END_OF_PROMPT) + 1
            self.first, text = self.first + text[:cut], text[cut:]
        self._text, self._codes = deque(text), deque(prompt_codes)
        self._ended = self._fresh = False
        if as_upstream:
            self._wants_text = not prompt_codes and len(self.first) == 1
        else:
            self._wants_text = len(prompt_codes) % config.code_share == 0

    @property
    def ended(self) -> bool:
        """No more text comes."""
        return self._ended

    def add(self, tokens: Sequence[int]) -> None:
        """More text."""
        self._text.extend(tokens)
        self._fresh = True

    def end(self) -> None:
        """That was all."""
        self._ended = True

    def read(self, before: Sequence[int]) -> tuple[list[int], bool]:
        """The ids that come next, and whether codes may be drawn behind them; if not, more text is needed first.
        `before` was read just before.
        """
        fresh, self._fresh = self._fresh, False
        texts, codes = self._config.text_share, self._config.code_share
        ids: list[int] = []
        while self._codes and len(self._text) >= texts:
            ids += _first(self._text, texts)
            ids += [code_id(code) for code in _first(self._codes, codes)]
        if self._ended and self._as_upstream:
            return [*before, *ids, *self._text, task_id(self._config)], self._finish()
        if not self._codes and (fresh or not self._as_upstream):
            if not self._wants_text:
                self._wants_text = True
                return ids, True
            if len(self._text) >= texts:
                return ids + _first(self._text, texts), True
        if not self._ended:
            return ids, False
        rest = [code_id(code) for code in self._codes]
        return [*ids, *self._text, task_id(self._config), *rest], self._finish()

    def _finish(self) -> bool:
        self.last = True
        return True


def _first(source: "deque[int]", count: int) -> list[int]:
    """Takes them away."""
    return [source.popleft() for _ in range(min(count, len(source)))]


def voice_ids(
    config: LlmConfig, prompt_text: Sequence[int], prompt_codes: Sequence[int], *, streaming: bool
) -> tuple[int, ...]:
    """The first input ids of every utterance of a voice: what depends on the voice alone. See `Decoder.prefix`.
    A whole text comes between the prompt's text and its codes: these belong to them only where text arrives late.
    """
    if not streaming:
        return (start_id(config), *prompt_text)
    turns = Turns(config, prompt_text, prompt_codes, as_upstream=False)
    ids = (*turns.first, *turns.read(())[0])
    return ids[:-1] if len(ids) > 1 else ids  # the last one is read anew: a draw may stand right behind it
