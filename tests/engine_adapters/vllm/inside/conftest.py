from tests.cache.conftest import make_rig

__all__ = ["make_rig"]
