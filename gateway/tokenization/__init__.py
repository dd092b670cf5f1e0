"""From a request to the token ids that its engine will compute, or to an explicit unknown; never a guess."""

from gateway.tokenization.dialects.base import TemplateOptions
from gateway.tokenization.engine import EngineCall
from gateway.tokenization.errors import (
    EngineError,
    EngineRefused,
    EngineUnreachable,
    Overloaded,
    TokenizationError,
    TokenizerUnavailable,
)
from gateway.tokenization.model import Limits, ModelTokenizer
from gateway.tokenization.parity import Difference, Parity, Verdict
from gateway.tokenization.pool import EncodePool
from gateway.tokenization.results import Endpoint, Reason, TokenIds, Tokens, Unknown, token_ids

__all__ = [
    "Difference",
    "EncodePool",
    "Endpoint",
    "EngineCall",
    "EngineError",
    "EngineRefused",
    "EngineUnreachable",
    "Limits",
    "ModelTokenizer",
    "Overloaded",
    "Parity",
    "Reason",
    "TemplateOptions",
    "TokenIds",
    "TokenizationError",
    "TokenizerUnavailable",
    "Tokens",
    "Unknown",
    "Verdict",
    "token_ids",
]
