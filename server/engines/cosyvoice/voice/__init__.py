"""Voices: what the model is given of a speaker, how that is computed of a recording, and how it is kept."""
