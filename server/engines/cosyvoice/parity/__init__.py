"""Whether this engine computes what the original code does: against vectors that were made with it on tiny models.

`python -m server parity DIR` takes any folder of such vectors, see `sets.py`.
"""
