"""The speech server: text in over a WebSocket, speech out as it is made.

`app.py` composes everything; `gateway/` talks to the network, `session/` decides what one client hears,
`text/` cuts and reads text, `engines/` speak it, `cluster/` runs the engines off the event loop.
"""
