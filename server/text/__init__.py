"""From text to tokens: `segmenter` cuts text that is still arriving, `normaliser` turns each cut into what is spoken.

Pure code: no clock, no sockets, no event loop.
"""
