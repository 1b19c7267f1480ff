"""Where the network meets the server: one port for WebSockets and HTTP, keys, and the shells around the pure session.

`listener.py` accepts connections and bounds them, `http.py` and `speak.py` answer HTTP, `websocket.py` runs a session.
"""
