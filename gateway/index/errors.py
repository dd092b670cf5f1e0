"""What can go wrong in the index.

IndexFullError  more caches than the index was made for
"""


class IndexFullError(Exception):
    """No column is free for another replica, rank or store."""
