"""What the gateway knows of a request's prompt: its token ids, and which replica holds how much of it."""

from gateway.knowledge.knowledge import Knowledge

__all__ = ["Knowledge"]
