"""Several processes that serve connections on one port.

`supervisor.py` is the parent: it opens the port, starts the gateways and keeps them going. `process.py` is what one of
them runs. They share the listening sockets (`loads.py` says whose turn it is to accept), know each other
(`siblings.py`) and ask each other over unix sockets (`asking.py`); `names.py` says who owns a session, `shares.py` what
one process of several may have, `merging.py` adds their metrics up.
"""
