"""The vocoder (HiFT): a mel spectrogram in, samples at 24 kHz out, whole or as the frames come."""
