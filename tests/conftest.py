"""What all tests share."""

from hypothesis import settings

settings.register_profile("tests", deadline=None)  # a busy machine takes long over an example now and then
settings.load_profile("tests")

pytest_plugins = ["tests.engines"]
