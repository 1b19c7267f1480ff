"""CosyVoice 2 and 3: the official checkpoints, spoken by code of our own that batches sessions and recomputes nothing.

`engine.py` is the engine; `config.py`, `weights.py` and `folder.py` read a model folder; `llm/` makes speech codes of
text, `flow/` a mel spectrogram of codes, `vocoder/` samples of a spectrogram; `voice/` holds what is known of a voice,
and learns new ones; `text/` makes the LLM's tokens of words. Importing this package loads nothing heavy: torch and what
else the extra `cosyvoice` brings are loaded when an engine is made.
"""
