"""Media formats that both ends use: Opus packets, Ogg pages around them, WAV headers.

Pure: nothing here opens a file or a socket, apart from loading libopus when the first codec is made. Import the modules
directly, `from protocol.media import ogg, opus, wav`.
"""
