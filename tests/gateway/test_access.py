import pytest

from gateway.access import Access
from gateway.errors import Forbidden, Unauthorized
from gateway.settings import AccessSettings, hash_key

KEYS = AccessSettings.model_validate({"api_keys": ["user"], "admin_keys": ["admin"]})


def test_without_keys_everyone_may_ask() -> None:
    access = Access(AccessSettings())
    access.check_api(None)
    access.check_admin(None)


def test_api_keys_and_admin_keys_may_ask() -> None:
    access = Access(KEYS)
    access.check_api(b"user")
    access.check_api(b"admin")
    for credential in (None, b"", b"other", b"\xff"):
        with pytest.raises(Unauthorized):
            access.check_api(credential)


def test_the_stored_hash_is_not_a_key() -> None:
    with pytest.raises(Unauthorized):
        Access(KEYS).check_api(hash_key(b"user").encode())


def test_only_admin_keys_may_administer() -> None:
    access = Access(KEYS)
    access.check_admin(b"admin")
    with pytest.raises(Forbidden):
        access.check_admin(b"user")
    with pytest.raises(Unauthorized):
        access.check_admin(b"other")


def test_with_api_keys_alone_nobody_may_administer() -> None:
    access = Access(AccessSettings.model_validate({"api_keys": ["user"]}))
    with pytest.raises(Forbidden, match="admin_keys_file"):
        access.check_admin(b"user")


def test_with_admin_keys_alone_administration_is_closed() -> None:
    access = Access(AccessSettings.model_validate({"admin_keys": ["admin"]}))
    access.check_api(None)
    with pytest.raises(Unauthorized):
        access.check_admin(None)
