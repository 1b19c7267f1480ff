"""Where the network meets the server: one port for WebSockets and HTTP, keys, and the shells around the pure session.

`listener.py` accepts connections and bounds them, `http.py` and `speak.py` answer HTTP, `websocket.py` runs a session.

This is the inside of one gateway, and all there is where a server is one process. How several gateways, each a process,
serve on one port is in `server/gateways`.
"""
