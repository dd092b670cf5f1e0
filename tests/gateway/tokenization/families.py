"""Tokenizers of several families, trained here on a few sentences, and model folders made of them."""

import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = [
    "The quick brown fox jumps over the lazy dog, then sleeps until noon.",
    "You are a helpful assistant. What's the weather in Paris today? It is grey and 12 degrees.",
    "def encode(text: str) -> list[int]:\n    return tokenizer(text)['input_ids']\n\n",
    "Übermut tut selten gut; l'été dernier à Zürich. 日本語のテキスト。 Привет, мир!",
    "assistant user system tool <tool_call> </tool_call> {'city': 'Paris', \"n\": 1.5}",
] * 4

CONTROL = ["<|bos|>", "<|eot|>", "<|role|>", "<|role|>x"]
"""Special tokens; one begins another."""

CHATML = (
    "{% for m in messages %}<|role|>{{ m.role }}\n{{ m.content }}<|eot|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|role|>assistant\n{% endif %}"
)

RICH = """
{%- set ns = namespace(last_user=-1) -%}
{%- for message in messages -%}
  {%- if message.role == 'user' -%}{%- set ns.last_user = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- macro text(content) -%}
  {%- if content is string -%}{{ content }}
  {%- else -%}{%- for part in content -%}{{ part.text }}{{ part | tojson }}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{{- bos_token -}}
{%- if tools -%}<|role|>tools
{% for tool in tools -%}{{ tool | tojson }}
{% endfor -%}<|eot|>{%- endif -%}
{%- if documents -%}{{ documents | tojson(indent=1) }}{%- endif -%}
{%- if reasoning_effort is defined -%}effort {{ reasoning_effort }} {% endif -%}
{%- if enable_thinking is defined -%}thinking {{ enable_thinking }} {% endif -%}
{%- if flavour is defined -%}flavour {{ flavour | tojson }} {% endif -%}
{%- for message in messages -%}
<|role|>{{ message.role }}{% if message.name %} {{ message.name }}{% endif %}

{% if message.reasoning_content is defined and loop.index0 > ns.last_user -%}
<think>{{ message.reasoning_content }}</think>{%- endif -%}
{{- text(message.content) -}}
{%- for call in message.tool_calls or [] -%}
<tool_call>{{ call.function.arguments | tojson }}{{ call | tojson }}</tool_call>
{%- endfor -%}
{{ message | tojson }}<|eot|>
{% endfor -%}
{%- if add_generation_prompt -%}<|role|>assistant
{% endif -%}
""".strip()
"""A template that shows whatever it is given."""


def _special(**flags: bool) -> list[AddedToken]:
    return [AddedToken(text, special=True, **{"normalized": False, **flags}) for text in CONTROL]


def _train(tokenizer: Tokenizer, trainer: trainers.Trainer, tokens: Iterable[AddedToken]) -> Tokenizer:
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(list(tokens))
    tokenizer.add_tokens(
        [AddedToken("</tool_call>", normalized=False), AddedToken("helpful", normalized=True)]
    )
    return tokenizer


def _byte_level(tokens: Iterable[AddedToken]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _train(
        tokenizer, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False), tokens
    )


def byte_level() -> Tokenizer:
    """As SmolLM2, Qwen and Llama 3."""
    return _byte_level(_special())


def stripping() -> Tokenizer:
    """As Phi: the space around special tokens belongs to them."""
    return _byte_level(_special(lstrip=True, rstrip=True))


def whole_words() -> Tokenizer:
    """Special tokens count only where no letter touches them."""
    return _byte_level(_special(single_word=True))


def normalized() -> Tokenizer:
    """As some conversions of Llama 2: special tokens are looked for in the normalized text."""
    return _byte_level(_special(normalized=True))


def prefix_space() -> Tokenizer:
    """As Llama 2: a normalizer puts a space before each piece; begins with a special token."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=pieces, show_progress=False)
    _train(tokenizer, trainer, _special())
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", tokenizer.token_to_id("<|bos|>"))]
    )
    return tokenizer


def metaspace_first() -> Tokenizer:
    """As Mistral: only the first piece of a text gets the space."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>"], show_progress=False)
    return _train(tokenizer, trainer, _special())


def unigram() -> Tokenizer:
    """As T5 and XLM-R: Unigram over normalized text, with an end token."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("  ", " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    _train(tokenizer, trainer, _special())
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|eot|>", special_tokens=[("<|eot|>", tokenizer.token_to_id("<|eot|>"))]
    )
    return tokenizer


def _trained_once(make: Callable[[], Tokenizer]) -> Callable[[], Tokenizer]:
    trained = cache(lambda: make().to_str())
    return lambda: Tokenizer.from_str(trained())


SEGMENTED: dict[str, Callable[[], Tokenizer]] = {
    make.__name__: _trained_once(make) for make in (byte_level, prefix_space, metaspace_first, unigram)
}
WHOLE: dict[str, Callable[[], Tokenizer]] = {
    make.__name__: _trained_once(make) for make in (stripping, whole_words, normalized)
}


def save(folder: Path, tokenizer: Tokenizer, template: str = CHATML, **config: object) -> str:
    """Write a model folder without weights (vLLM can load it with `--load-format dummy`); return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<|bos|>", "eos_token": "<|eot|>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(template)
    (folder / "config.json").write_text(json.dumps(_tiny_llama(tokenizer.get_vocab_size()) | config))
    return str(folder)


def _tiny_llama(vocabulary: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": vocabulary,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 8192,
    }
