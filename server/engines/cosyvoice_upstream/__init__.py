"""An engine that hands segments to FunAudioLLM/CosyVoice's own code, for who has that installed: one at a time, with
what it can and cannot do. The engine `cosyvoice` speaks with the same checkpoints and needs none of it.
"""
