"""One generation from request to last byte: streamed or not, with the faults of the moment."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from tests.fakes.faults import Faults, Received
from tests.fakes.scheduler import Job, Scheduler
from tests.fakes.shapes import Choice, Shape, Usage

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[Any], Awaitable[None]]
Tokens = asyncio.Queue[tuple[Choice, int]]


class Generation:
    """What a route answers with when tokens are to be computed: one job a choice."""

    def __init__(self, shape: Shape, choices: Sequence[Choice], jobs: Sequence[Job], details: bool) -> None:
        self._shape = shape
        self._choices = choices
        self._jobs = jobs
        self._details = details

    async def run(
        self,
        request: Received,
        scheduler: Scheduler,
        faults: Faults,
        reset: Callable[[], None],
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer, and stop at once if the client goes away."""
        work = asyncio.create_task(self._work(request, scheduler, faults, reset, send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
            request.aborted = gone.done() and not request.finished
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _work(
        self,
        request: Received,
        scheduler: Scheduler,
        faults: Faults,
        reset: Callable[[], None],
        send: Send,
    ) -> None:
        tokens: Tokens = asyncio.Queue()
        tasks = [
            asyncio.create_task(scheduler.run(job, partial(_emit, tokens, choice)))
            for choice, job in zip(self._choices, self._jobs, strict=True)
        ]
        try:
            if faults.hang_before_first_byte:
                await asyncio.Event().wait()
            if faults.die_before_first_byte:
                reset()
            elif self._shape.body.get("stream"):
                await self._stream(request, tokens, faults, reset, send)
            else:
                await asyncio.gather(*tasks)
                await self._whole(request, faults, send)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _whole(self, request: Received, faults: Faults, send: Send) -> None:
        body = json.dumps(self._shape.full(self._choices, self._usage())).encode()
        if faults.malformed:
            body = body[: len(body) // 2]
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        request.finished = True
        await send({"type": "http.response.body", "body": body})

    async def _stream(
        self, request: Received, tokens: Tokens, faults: Faults, reset: Callable[[], None], send: Send
    ) -> None:
        """As in vLLM, the head goes out at once and the first event when there is a token."""
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        sent = 0
        async for event in self._events(tokens):
            if sent == faults.die_after_chunks:
                reset()
                return
            if sent == faults.hang_after_chunks:
                await asyncio.Event().wait()
            body = event[: len(event) // 2] + b"\n\n" if faults.malformed else event
            await send({"type": "http.response.body", "body": body, "more_body": True})
            sent += 1
        request.finished = True
        await send({"type": "http.response.body", "body": b""})

    async def _events(self, tokens: Tokens) -> AsyncIterator[bytes]:
        for number in range(sum(len(choice.token_ids) for choice in self._choices)):
            choice, at = await tokens.get()
            if number == 0:
                for each in self._choices:
                    for event in self._shape.opening(each):
                        yield event
            yield self._shape.piece(choice, at)
        for event in self._shape.ending(self._choices, self._usage()):
            yield event

    def _usage(self) -> Usage:
        completion = sum(len(choice.token_ids) for choice in self._choices)
        first = self._jobs[0]
        return Usage(len(first.prompt), completion, first.cached_tokens if self._details else None)


def _emit(tokens: Tokens, choice: Choice, at: int) -> None:
    tokens.put_nowait((choice, at))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
