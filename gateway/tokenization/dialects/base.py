"""What differs from engine to engine: how a request's body becomes the text or the ids of its prompt."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from gateway.tokenization.dialects.content import ContentFormat
from gateway.tokenization.results import Endpoint, Reason, Tokens
from gateway.tokenization.template import ChatTemplate, Templates

Body = Mapping[str, Any]

# A request may not set these in `chat_template_kwargs`: they are the engine's own arguments, not template
# variables.
RESERVED_VARIABLES = frozenset(
    {
        *("chat_template", "conversation", "messages", "model_config", "tools"),
        *("tokenize", "tokenizer", "tokenizer_kwargs", "padding", "truncation", "max_length"),
        *("return_assistant_tokens_mask", "return_dict", "return_tensors"),
    }
)


class Unrenderable(Exception):
    """The prompt of this body can't be known here. `detail` names fields, never their text."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class Text(NamedTuple):
    """A prompt's text, to be encoded. More tokens than `limit` would be truncated by the engine."""

    text: str
    add_special_tokens: bool
    limit: int | None


class Question(NamedTuple):
    """A request that makes the engine tell the ids that it computes: they are its answer's `field`."""

    path: str
    body: Body
    field: str


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """The flags of the engine that change what it renders; they must be those that it was started with."""

    chat_template: str | None = None
    """The template's source in place of the model's own (`--chat-template`)."""
    content_format: Literal["auto", "string", "openai"] = "auto"
    """Whether templates get content as text or as parts (`--chat-template-content-format`)."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of template variables (`--default-chat-template-kwargs`)."""
    exclude_tools_when_tool_choice_none: bool = False

    def __post_init__(self) -> None:
        if reserved := RESERVED_VARIABLES & self.chat_template_kwargs.keys():
            raise ValueError(f"chat_template_kwargs can't set {sorted(reserved)}: remove them")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a dialect knows of a model."""

    templates: Templates
    architectures: tuple[str, ...] = ()
    model_type: str = ""
    mistral_format: bool = False
    """The repository has Mistral's own tokenizer and weights, which engines prefer."""


class Dialect(ABC):
    """One engine's way from a body to its prompt."""

    def __init__(self, model: ModelFacts, options: TemplateOptions) -> None:
        """Prepare for one model; does no I/O."""
        self._templates = model.templates
        self._options = options
        self._mistral = model.mistral_format
        self._coded = self.coded(model)
        self._formats: dict[str, ContentFormat] = {}

    def renders(self, endpoint: Endpoint) -> bool:
        """Whether `prompt` can render this endpoint's bodies for this model; if not, only the engine can."""
        if self._mistral:
            return False
        return endpoint is Endpoint.COMPLETIONS or (endpoint is Endpoint.CHAT and not self._coded)

    def content_format(self, template: ChatTemplate) -> ContentFormat:
        """In which form the engine gives this template the contents of messages."""
        if template.source not in self._formats:
            self._formats[template.source] = self.detect(template)
        return self._formats[template.source]

    @staticmethod
    @abstractmethod
    def coded(model: ModelFacts) -> bool:
        """Whether the engine renders this model's chats by code of its own, instead of a template."""

    @staticmethod
    @abstractmethod
    def detect(template: ChatTemplate) -> ContentFormat:
        """Find out what `content_format` remembers."""

    @abstractmethod
    def prompt(self, endpoint: Endpoint, body: Body) -> Text | Tokens:
        """The prompt that the engine will make of `body`, which is left as it is.

        Raises:
            Unrenderable: it can't be known here.
        """

    @abstractmethod
    def questions(self, endpoint: Endpoint, body: Body) -> Iterator[Question]:
        """The ways to ask the engine for this body's ids, the nearest to what it will do itself first."""
