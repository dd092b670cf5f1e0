import os
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer

from gateway.tokenization import TemplateOptions, TokenizerUnavailable
from gateway.tokenization.loading import load
from tests.gateway.tokenization import families


@pytest.mark.parametrize("name", [*families.SEGMENTED, *families.WHOLE])
def test_encodes_as_transformers_does(folders: dict[str, str], name: str):
    loaded = load(folders[name], TemplateOptions())
    reference = AutoTokenizer.from_pretrained(folders[name])
    for text in [*families.CORPUS[:5], "<|role|>user\n hi <|eot|>", "  é", ""]:
        for special in (True, False):
            ids = loaded.backend.encode_batch_fast([text], add_special_tokens=special)[0].ids
            assert ids == reference(text, add_special_tokens=special)["input_ids"]


def test_truncation_and_padding_of_the_file_dont_apply(tmp_path: Path):
    tokenizer = families.SEGMENTED["byte_level"]()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    backend = load(families.save(tmp_path, tokenizer), TemplateOptions()).backend
    assert len(backend.encode("one two three four five six", add_special_tokens=False).ids) not in (3, 50)


def test_reads_the_models_template_and_special_tokens(folders: dict[str, str]):
    loaded = load(folders["byte_level"], TemplateOptions())
    template = loaded.facts.templates.select(None)
    assert template is not None
    assert template.source == families.CHATML
    assert template.render([], None, {}) == ""
    assert {"<|bos|>", "<|eot|>"} <= set(loaded.special_tokens)
    assert loaded.facts.architectures == ("LlamaForCausalLM",)
    assert loaded.facts.model_type == "llama"
    assert not loaded.facts.mistral_format


def test_the_given_template_replaces_the_models(folders: dict[str, str]):
    templates = load(folders["byte_level"], TemplateOptions(chat_template="{{ bos_token }}!")).facts.templates
    for tools in (None, [{}]):
        template = templates.select(tools)
        assert template is not None
        assert template.render([], tools, {}) == "<|bos|>!"


def test_a_processors_template_is_read(tmp_path: Path):
    folder = families.save(tmp_path, families.SEGMENTED["byte_level"]())
    (tmp_path / "chat_template.json").write_text('{"chat_template": "processor"}')
    templates = load(folder, TemplateOptions()).facts.templates
    assert [templates.select(tools).source for tools in (None, [{}])] == ["processor", families.CHATML]  # type: ignore[union-attr]


def test_mistrals_own_format_is_noticed(tmp_path: Path):
    folder = families.save(tmp_path, families.SEGMENTED["byte_level"]())
    for name in ("tekken.json", "consolidated.safetensors"):
        (tmp_path / name).write_text("{}")
    assert load(folder, TemplateOptions()).facts.mistral_format


@pytest.mark.parametrize("content", [None, "{}"])
def test_what_cant_be_loaded_says_what_to_do(tmp_path: Path, content: str | None):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerUnavailable, match=r"Set models\.NAME\.tokenizer") as raised:
        load(str(tmp_path), TemplateOptions())
    assert len(str(raised.value).replace(str(tmp_path), "")) < 300


def test_a_folder_that_is_elsewhere_says_so(tmp_path: Path):
    with pytest.raises(TokenizerUnavailable, match="there is no such folder on this machine"):
        load(f"{tmp_path}/elsewhere", TemplateOptions())


def test_a_template_that_is_none_says_so(tmp_path: Path):
    folder = families.save(tmp_path, Tokenizer(models.BPE({"a": 0}, [])), "{% for")
    with pytest.raises(TokenizerUnavailable, match="isn't valid Jinja"):
        load(folder, TemplateOptions())


def test_importing_the_package_imports_neither_transformers_nor_tokenizers():
    code = "import sys, gateway.tokenization; print({'transformers', 'tokenizers', 'torch'} & {*sys.modules})"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "set()\n"
    )


def test_encoding_starts_no_threads_of_its_own(folders: dict[str, str]):
    code = f"""
from pathlib import Path
from gateway.tokenization import TemplateOptions
from gateway.tokenization.loading import load
backend = load({folders["byte_level"]!r}, TemplateOptions()).backend
before = len([*Path("/proc/self/task").iterdir()])
backend.encode_batch_fast(["a", "b"])
print(len([*Path("/proc/self/task").iterdir()]) - before)
"""
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert ran.stdout == "0\n"


def test_two_threads_may_load_at_once_in_a_fresh_process(folders: dict[str, str]):
    """As the kinds of engines in a mixed fleet do; the library's lazy imports fail in two threads at once."""
    code = (
        "from concurrent.futures import ThreadPoolExecutor as Pool\n"
        "from gateway.tokenization.dialects.base import TemplateOptions\n"
        "from gateway.tokenization.loading import load\n"
        f"list(Pool(2).map(load, [{folders['rich']!r}] * 2, [TemplateOptions()] * 2))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
