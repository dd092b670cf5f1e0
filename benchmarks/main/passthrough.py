"""The plainest gateway that FastAPI and httpx2 can be: bytes in, bytes out, nothing else. The yardstick.

Same transport, pool, uvicorn flags and logging as the gateway has.
`python -m benchmarks.main.passthrough PORT URL ...`
"""

import itertools
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import httpx2
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from httpx_aiohttp.httpx2 import AiohttpTransport
from starlette.background import BackgroundTask


def create_app(urls: list[str]) -> FastAPI:
    turn = itertools.cycle(urls)
    transport = AiohttpTransport(
        client=lambda: aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4), cookie_jar=aiohttp.DummyCookieJar()
        )
    )
    client = httpx2.AsyncClient(transport=transport, timeout=300, trust_env=False)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await client.aclose()

    app = FastAPI(lifespan=lifespan)

    @app.get("/health")
    async def health() -> Response:
        return Response()

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        upstream = client.build_request(
            "POST",
            next(turn) + "/v1/chat/completions",
            content=await request.body(),
            headers={"content-type": "application/json"},
        )
        answer = await client.send(upstream, stream=True)
        kind = answer.headers["content-type"]
        if kind.startswith("text/event-stream"):
            closing = BackgroundTask(answer.aclose)
            return StreamingResponse(
                answer.aiter_raw(), answer.status_code, media_type=kind, background=closing
            )
        return Response(await answer.aread(), answer.status_code, media_type=kind)

    return app


if __name__ == "__main__":
    port, *urls = sys.argv[1:]
    uvicorn.run(
        create_app(urls),
        host="127.0.0.1",
        port=int(port),
        loop="uvloop",
        http="httptools",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
    )
