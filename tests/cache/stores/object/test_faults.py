"""What is said when a bucket can't be used, and what a server's faults come to: misses."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore import exceptions

from cache.errors import CacheError, FolderError, ForeignError, SettingsError
from cache.stores.object import Object
from cache.stores.search import FAN
from cache.testing import SPACE, key
from cache.tiers.base import Outcome
from tests.cache.stores.object.conftest import REGION, S3
from tests.cache.stores.object.proxy import Proxy
from tests.cache.stores.object.test_store import get, make, put

SECRET = "thisisverysecret"


def test_a_missing_bucket_is_named(s3: S3, prefix: str) -> None:
    with pytest.raises(
        FolderError, match=r"s3://no-such-bucket/\S+ doesn't exist \(NoSuchBucket\): make the bucket"
    ):
        make(s3.url(prefix, bucket="no-such-bucket"))


@pytest.mark.parametrize(
    ("variable", "says"),
    [("AWS_ACCESS_KEY_ID", "InvalidAccessKeyId"), ("AWS_SECRET_ACCESS_KEY", "SignatureDoesNotMatch")],
)
def test_wrong_credentials_are_named_and_not_repeated(
    s3: S3, prefix: str, variable: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, SECRET)
    with pytest.raises(FolderError, match=rf"refuses these credentials \({says}\)") as caught:
        make(s3.url(prefix))
    for secret in (SECRET, s3.key, s3.secret):
        assert secret not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_server_that_is_not_there(s3: S3, prefix: str) -> None:
    with pytest.raises(FolderError, match="doesn't answer"):
        make(f"s3://bucket/{prefix}?endpoint=http://127.0.0.1:9&region={REGION}", io_seconds=0.5)


def test_a_profile_of_the_credentials_file(
    s3: S3, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    url = s3.url(prefix) + "&profile=kv"
    with pytest.raises(SettingsError, match="can't be read"):
        make(url)
    file.write_text(f"[other]\naws_secret_access_key = {SECRET}\n")
    with pytest.raises(SettingsError, match="has no profile 'kv'") as caught:
        make(url)
    assert SECRET not in str(caught.value)
    file.write_text(f"[kv]\naws_access_key_id = {s3.key}\naws_secret_access_key = {s3.secret}\n")
    assert put(make(url), 0, 1) == [Outcome.DONE]


@pytest.mark.parametrize(
    "url",
    [
        f"s3://bucket/p?secret_access_key={SECRET}",
        f"s3://key:{SECRET}@bucket/p",
        f"az://box/p?sig={SECRET}",
        f"gs://bucket/p?service_account_key={SECRET}",
        f"s3://bucket/p?endpoint=http://key:{SECRET}/%2B=@127.0.0.1:9",
        f"s3://bucket/p?endpoint=http://key:{SECRET}@127.0.0.1:9",
        f"s3://bucket/p?endpoint={SECRET}",
    ],
)
def test_urls_with_secrets_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(SettingsError, match=r"docs/stores\.md|without user and password") as caught:
        make(url)
    assert SECRET not in str(caught.value)


def test_missing_credentials_are_named(s3: S3, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(FolderError, match="has no credentials: set"):
        make(s3.url(prefix), io_seconds=0.5)


@pytest.mark.parametrize("url", ["s3:///prefix", "file://host/path", "gs:///", "s3://bucket/a//b"])
def test_urls_that_name_nothing(url: str) -> None:
    with pytest.raises(SettingsError):
        make(url)


def test_other_services_are_asked_as_they_want_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server here speaks like them: what can be seen is that the client is made and doesn't reach one."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
    with pytest.raises(FolderError, match="az://box/p doesn't answer"):
        make("az://box/p?account=me&endpoint=http://127.0.0.1:9/me", io_seconds=0.5)
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", "/no/such/file")
    with pytest.raises(SettingsError, match="gs://bucket/p: the client refuses its configuration"):
        make("gs://bucket/p", io_seconds=0.5)


def test_a_bucket_with_other_things_in_it_is_refused(s3: S3, prefix: str) -> None:
    store = make(s3.url(prefix))
    store._client.put("photos/cat", b"precious")
    store._client.delete("hpkv.json")
    with pytest.raises(ForeignError, match="photos/cat"):
        make(s3.url(prefix))
    assert store._client.get("photos/cat").bytes() == b"precious"


@pytest.fixture
def store(s3: S3, proxy: Proxy, prefix: str) -> Iterator[Object]:
    store = make(s3.url(prefix).replace(s3.endpoint, proxy.endpoint), io_seconds=0.5)
    assert put(store, 0, 10) == [Outcome.DONE] * 10
    yield store
    store.close()


@pytest.mark.parametrize("fault", ["500", "503", "slow", "truncated", "cut"])
def test_a_fault_is_a_miss_and_is_over_with_it(
    store: Object, proxy: Proxy, fault: str, caplog: pytest.LogCaptureFixture, s3: S3
) -> None:
    proxy.fault = fault
    begin = time.monotonic()
    assert get(store, 0) is Outcome.FAILED
    if fault != "truncated":  # the answer to a write has no body
        assert put(store, 100, 101) == [Outcome.FAILED]
    assert time.monotonic() - begin < 12
    assert sum(store.find(SPACE, [key(200)])) == 0
    proxy.fault = ""
    store.guard.fine()
    assert get(store, 0) is Outcome.DONE
    (outcome,) = put(store, 100, 101)
    assert outcome.whole  # it may have arrived when only its answer was lost
    assert s3.key not in caplog.text
    assert s3.secret not in caplog.text
    assert key(0).hex() not in caplog.text


def test_a_server_that_stays_away_is_left_alone_and_tried_again(
    store: Object, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.fault = "503"
    assert {get(store, number) for number in range(5)} == {Outcome.FAILED}
    assert not store.available
    before = proxy.requests.total()
    assert {get(store, number) for number in range(5)} == {Outcome.FAILED}
    assert store.find(SPACE, [key(0)]) == [False]
    assert proxy.requests.total() == before
    proxy.fault = ""
    store._watch_after = 0.0
    store.tend()
    assert store.available
    assert get(store, 0) is Outcome.DONE
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any("is out of reach" in message for message in messages)


def test_a_look_up_keeps_its_deadline(s3: S3, proxy: Proxy, prefix: str) -> None:
    store = make(s3.url(prefix).replace(s3.endpoint, proxy.endpoint))
    proxy.fault, proxy.delay = "slow", 3.0
    begin = time.monotonic()
    assert sum(store.find(SPACE, [key(n) for n in range(100)])) == 0
    assert time.monotonic() - begin < 3 * store.settings.look_seconds
    store.close()


def test_few_questions_for_a_long_prompt_and_none_for_a_known_one(store: Object, proxy: Proxy) -> None:
    store._presence.forget()
    proxy.requests.clear()
    keys = [key(n) for n in range(1000)]
    assert sum(store.find(SPACE, keys)) == 10
    assert proxy.requests.total() <= 3 * FAN
    proxy.requests.clear()
    assert sum(store.find(SPACE, keys)) == 10
    assert proxy.requests.total() == 0


def test_a_page_that_was_there_a_moment_ago_is_not_sent_again(store: Object, proxy: Proxy) -> None:
    proxy.requests.clear()
    assert put(store, 0, 10) == [Outcome.THERE] * 10
    assert proxy.requests.total() == 0


def test_a_miss_costs_one_look_up(store: Object, proxy: Proxy) -> None:
    store._client.delete([entry.name for entry in store.shelf.entries() if entry.name != "hpkv.json"])
    proxy.requests.clear()
    assert store.find(SPACE, [key(0)]) == [True]
    assert get(store, 0) is Outcome.MISSING
    assert store.find(SPACE, [key(0)]) == [False]
    assert proxy.requests == {"GET": 1}


def test_a_clear_that_fails_says_so(store: Object, proxy: Proxy) -> None:
    proxy.fault = "500"
    with pytest.raises(CacheError, match="the service answers 500"):
        store.clear()


def test_who_may_only_read_reads(s3: S3, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make(s3.url(prefix))
    assert put(store, 0, 3) == [Outcome.DONE] * 3

    def refuse(*arguments: object, **options: object) -> None:
        raise exceptions.PermissionDeniedError("status code: 403: <Code>AccessDenied</Code>")

    monkeypatch.setattr(obstore, "put", refuse)
    assert put(store, 10, 20) == [Outcome.FAILED] * 10
    store.tend()
    assert [get(store, number) for number in range(3)] == [Outcome.DONE] * 3
