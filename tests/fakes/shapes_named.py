"""The bodies of the two APIs whose stream events have names: Responses and Anthropic's Messages."""

from collections.abc import Sequence

from tests.fakes.shapes import CREATED, Body, Choice, Shape, Usage, sse
from tests.fakes.tokens import Tokenizer


class Responses(Shape):
    """/v1/responses, with one output message."""

    max_tokens_keys = ("max_output_tokens",)

    def prompt(self, tokenizer: Tokenizer) -> list[int]:
        given = self.body["input"]
        messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
        return tokenizer.render(messages)

    def full(self, choices: Sequence[Choice], usage: Usage) -> Body:
        return self._response("completed", choices[0].text, usage)

    def opening(self, choice: Choice) -> list[bytes]:
        return [
            self._event("response.created", response=self._response("in_progress")),
            self._event("response.output_item.added", output_index=0, item=self._item("in_progress", "")),
        ]

    def piece(self, choice: Choice, at: int) -> bytes:
        return self._event(
            "response.output_text.delta", output_index=0, content_index=0, delta=choice.pieces[at]
        )

    def ending(self, choices: Sequence[Choice], usage: Usage) -> list[bytes]:
        text = choices[0].text
        return [
            self._event("response.output_text.done", output_index=0, content_index=0, text=text),
            self._event("response.completed", response=self.full(choices, usage)),
        ]

    def _event(self, name: str, **fields: object) -> bytes:
        return sse({"type": name, **fields}, event=name)

    def _item(self, status: str, text: str) -> Body:
        content: list[Body] = (
            [{"type": "output_text", "text": text, "annotations": [], "logprobs": None}] if text else []
        )
        return {
            "id": f"msg_{self.request_id}",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _response(self, status: str, text: str = "", usage: Usage | None = None) -> Body:
        counts = usage and {
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached or 0},
            "output_tokens": usage.completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt + usage.completion,
        }
        return {
            "id": self.request_id,
            "object": "response",
            "created_at": CREATED,
            "model": self.model,
            "status": status,
            "output": [self._item(status, text)] if text else [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "previous_response_id": self.body.get("previous_response_id"),
            "usage": counts,
        }


class Messages(Shape):
    """/v1/messages, Anthropic's shape."""

    def prompt(self, tokenizer: Tokenizer) -> list[int]:
        system = self.body.get("system")
        head = [{"role": "system", "content": system}] if system else []
        return tokenizer.render([*head, *self.body["messages"]])

    def full(self, choices: Sequence[Choice], usage: Usage) -> Body:
        return self._message([{"type": "text", "text": choices[0].text}], usage) | self._stop(choices[0])

    def opening(self, choice: Choice) -> list[bytes]:
        block = {"type": "text", "text": ""}
        return [
            self._event("message_start", message=self._message([], Usage(0, 0, 0))),
            self._event("content_block_start", index=0, content_block=block),
        ]

    def piece(self, choice: Choice, at: int) -> bytes:
        delta = {"type": "text_delta", "text": choice.pieces[at]}
        return self._event("content_block_delta", index=0, delta=delta)

    def ending(self, choices: Sequence[Choice], usage: Usage) -> list[bytes]:
        return [
            self._event("content_block_stop", index=0),
            self._event("message_delta", delta=self._stop(choices[0]), usage=self._usage(usage)),
            self._event("message_stop"),
        ]

    def _event(self, name: str, **fields: object) -> bytes:
        return sse({"type": name, **fields}, event=name)

    def _stop(self, choice: Choice) -> Body:
        reason = "max_tokens" if choice.finish_reason == "length" else "end_turn"
        return {"stop_reason": reason, "stop_sequence": choice.stop_reason}

    def _usage(self, usage: Usage) -> Body:
        # Anthropic counts what was read from the cache apart from the input.
        cached = usage.cached or 0
        return {
            "input_tokens": usage.prompt - cached,
            "output_tokens": usage.completion,
            "cache_read_input_tokens": cached,
        }

    def _message(self, content: list[Body], usage: Usage) -> Body:
        return {
            "id": self.request_id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(usage),
        }
