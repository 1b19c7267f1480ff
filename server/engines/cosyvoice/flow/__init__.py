"""Flow matching: speech codes in, a mel spectrogram out (50 frames a second), whole or block by block with caches."""
