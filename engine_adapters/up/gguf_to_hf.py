"""Turn SmolLM2's GGUF file into a folder that engines load: `gguf_to_hf.py GGUF FOLDER`.

Runs inside an engine's environment, as a script. A GGUF file keeps the tokenizer as lists of strings and
numbers (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md); what it lacks, the model's card says.
"""

# mypy: disable-error-code="no-untyped-call"

import sys
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

CONTEXT = 8192
ENDS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
CONTROL = 3
"""GGUF's token type of special tokens."""


def convert_weights(gguf: Path, folder: Path) -> None:
    """Unpack the weights to bfloat16, under the configuration of the original model."""
    source = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
        dtype="bfloat16",
        **ENDS,
    )
    model = LlamaForCausalLM(config).to(torch.float32)
    model.load_state_dict({name: tensor.float() for name, tensor in source.state_dict().items()}, strict=True)
    model = model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(**ENDS)
    model.save_pretrained(folder)


def convert_tokenizer(reader: GGUFReader, folder: Path) -> None:
    """Rebuild the byte-level BPE tokenizer and its chat template."""
    tokens = _strings(reader, "tokenizer.ggml.tokens")
    types = _numbers(reader, "tokenizer.ggml.token_type")
    pairs = [merge.partition(" ") for merge in _strings(reader, "tokenizer.ggml.merges")]
    bpe = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[(left, right) for left, _, right in pairs],
        )
    )
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        unk_token="<|endoftext|>",
        pad_token="<|im_end|>",
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = _strings(reader, "tokenizer.chat_template")[0]
    tokenizer.save_pretrained(folder)


def _parts(reader: GGUFReader, key: str) -> list[Any]:
    field = reader.fields[key]
    return [field.parts[i] for i in field.data]


def _strings(reader: GGUFReader, key: str) -> list[str]:
    return [bytes(part).decode("utf8") for part in _parts(reader, key)]


def _numbers(reader: GGUFReader, key: str) -> list[int]:
    return [int(part[0]) for part in _parts(reader, key)]


if __name__ == "__main__":
    gguf_file, out_folder = map(Path, sys.argv[1:])
    convert_weights(gguf_file, out_folder)
    convert_tokenizer(GGUFReader(gguf_file), out_folder)
