import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest

from tests.cache.stores.object.proxy import Proxy
from tests.ports import free_port

BUCKET = "kv-bucket"
REGION = "us-east-1"


@dataclass(frozen=True)
class S3:
    """A server that checks signatures and rights, and a user who may use it."""

    endpoint: str
    key: str
    secret: str

    def url(self, prefix: str, bucket: str = BUCKET) -> str:
        return f"s3://{bucket}/{prefix}?endpoint={self.endpoint}&region={REGION}"


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    port = free_port()
    log = (tmp_path_factory.mktemp("moto") / "log").open("w")
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait(port, server)
        yield _prepare(f"http://127.0.0.1:{port}")
    finally:
        server.kill()
        server.wait(10)
        log.close()


def _wait(port: int, server: subprocess.Popen[bytes]) -> None:
    while server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
    raise AssertionError("moto's server ended")


def _prepare(endpoint: str) -> S3:
    """Make a bucket and a user who may do everything in it; from then on, check everybody."""
    anybody = {
        "endpoint_url": endpoint,
        "region_name": REGION,
        "aws_access_key_id": "anybody",
        "aws_secret_access_key": "anything",
    }
    iam = boto3.client("iam", **anybody)
    iam.create_user(UserName="engine")
    key = iam.create_access_key(UserName="engine")["AccessKey"]
    policy = (
        '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}'
    )
    iam.put_user_policy(UserName="engine", PolicyName="store", PolicyDocument=policy)
    boto3.client("s3", **anybody).create_bucket(Bucket=BUCKET)
    checked = urllib.request.Request(
        f"{endpoint}/moto-api/reset-auth", data=b"0", headers={"Content-Type": "text/plain"}, method="POST"
    )
    urllib.request.urlopen(checked).close()
    return S3(endpoint, key["AccessKeyId"], key["SecretAccessKey"])


@pytest.fixture
def s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """The server, with the user's credentials in the environment."""
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret)
    return s3_server


@pytest.fixture
def proxy(s3: S3) -> Iterator[Proxy]:
    """The way to the server, with faults."""
    proxy = Proxy(int(s3.endpoint.rpartition(":")[2]))
    yield proxy
    proxy.close()


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return f"{tmp_path.parent.name}/{tmp_path.name}"
