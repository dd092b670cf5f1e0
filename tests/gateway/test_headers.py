from gateway.headers import sort_answer, sort_request


def test_hop_by_hop_headers_and_credentials_stay_here() -> None:
    incoming = sort_request(
        [
            (b"host", b"h"),
            (b"authorization", b"Bearer key"),
            (b"cookie", b"c"),
            (b"connection", b"keep-alive, X-Hop"),
            (b"x-hop", b"1"),
            (b"te", b"trailers"),
            (b"content-length", b"12"),
            (b"content-type", b"application/json"),
            (b"x-tenant", b"t"),
        ]
    )
    assert incoming.upstream == [(b"content-type", b"application/json"), (b"x-tenant", b"t")]
    assert incoming.credential == b"key"
    assert incoming.content_length == 12


def test_clients_do_not_steer_engines() -> None:
    steering = [b"x-data-parallel-rank", b"x-override-bootstrap-host", b"x-override-rid"]
    assert sort_request([(name, b"1") for name in steering]).upstream == []


def test_a_key_may_come_as_x_api_key() -> None:
    assert sort_request([(b"x-api-key", b"k")]).credential == b"k"
    both = sort_request([(b"x-api-key", b"k"), (b"authorization", b"bearer b")])
    assert both.credential == b"b"


def test_basic_authorization_is_no_key() -> None:
    assert sort_request([(b"authorization", b"Basic abc")]).credential is None


def test_an_answers_headers() -> None:
    kept = sort_answer(
        [
            (b"Content-Type", b"text/plain"),
            (b"Server", b"uvicorn"),
            (b"Date", b"now"),
            (b"Set-Cookie", b"a"),
            (b"Connection", b"x-hop"),
            (b"X-Hop", b"1"),
            (b"X-Request-Id", b"engine's"),
            (b"X-Custom", b"1"),
        ]
    )
    assert kept == [(b"content-type", b"text/plain"), (b"x-custom", b"1")]
