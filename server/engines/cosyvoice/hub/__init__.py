"""Getting a model: a folder is taken as it is, a name is looked up on a hub and fetched once.

`finding.py` decides, `fetching.py` brings the files and checks them, `huggingface.py` and `modelscope.py` speak with
the two hubs, `progress.py` says how far it is.
"""

from server.engines.cosyvoice.hub.finding import find_model

__all__ = ["find_model"]
