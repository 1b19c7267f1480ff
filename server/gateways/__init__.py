"""Several processes that serve connections on one port.

`parent.py` is what the user starts: it opens the port, and `supervisor.py` starts the gateways and keeps them going.
`process.py` is what one of them runs; `control.py` is what it and its parent tell each other, `place.py` where it
stands. They share the listening sockets (`loads.py`: whose turn it is to accept), know each other (`siblings.py`) and
ask each other over unix sockets (`asking.py`, `routes.py`). `names.py` says who owns a session, `shares.py` and
`pool_share.py` what one process of several may have, `merging.py` adds their metrics up.

A gateway is one of these processes here; what it does with a connection is in `server/gateway`, as where there is one.
"""
