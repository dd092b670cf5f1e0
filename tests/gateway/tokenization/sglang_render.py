"""Run by SGLang's own Python: renders and encodes by SGLang's code, without an engine.

A line in is `[path, body]`, a line out the answer: `{"tokens": […]}`, or `{"refused": why}`.
"""

import json
import sys
from types import SimpleNamespace
from typing import Any

from sglang.srt import runtime_context
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, TokenizeRequest
from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
from sglang.srt.entrypoints.openai.serving_tokenize import OpenAIServingTokenize
from sglang.srt.parser.template_manager import TemplateManager
from sglang.srt.server_args import ServerArgs
from transformers import AutoConfig, AutoTokenizer


def stand_in(args: ServerArgs) -> SimpleNamespace:
    """What the renderers use of SGLang's tokenizer manager."""
    config = AutoConfig.from_pretrained(args.model_path)
    model = SimpleNamespace(
        hf_config=config,
        is_multimodal=False,
        context_len=8192,
        get_default_sampling_params=lambda: {},
    )
    return SimpleNamespace(
        tokenizer=AutoTokenizer.from_pretrained(args.model_path),
        processor=None,
        model_config=model,
        model_path=args.model_path,
        served_model_name="tiny",
        server_args=args,
        config_value=lambda name: getattr(args, name, None),
    )


class Renderer:
    def __init__(self, folder: str, flags: dict[str, Any]) -> None:
        args = ServerArgs(model_path=folder, device="cpu", **flags)
        runtime_context.publish(args, role="tokenizer")
        manager = stand_in(args)
        templates = TemplateManager()
        templates.load_chat_template(manager, args.chat_template, folder)
        self.tokenizer = manager.tokenizer
        self.chat = OpenAIServingChat(manager, templates)
        self.tokenize = OpenAIServingTokenize(manager, templates)

    def answer(self, path: str, body: dict[str, Any]) -> list[int]:
        if path == "/v1/completions":
            return list(self.tokenizer(body["prompt"])["input_ids"])
        if path == "/tokenize" and "prompt" in body:
            return list(self.tokenizer.encode(body["prompt"]))
        if path == "/tokenize":
            return self.tokenize._tokenize_chat_request(TokenizeRequest.model_validate(body))
        request = ChatCompletionRequest.model_validate(body)
        if wrong := self.chat._validate_request(request):
            raise ValueError(wrong)
        effort = (request.chat_template_kwargs or {}).pop("reasoning_effort", None)
        if effort is not None:  # as its `_convert_to_internal_request` begins
            request.reasoning_effort = effort
        return list(self.chat._process_messages(request, False).prompt_ids)


def main() -> None:
    renderer = Renderer(sys.argv[1], json.loads(sys.argv[2]))
    answers = sys.stdout
    sys.stdout = sys.stderr
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        path, body = json.loads(line)
        try:
            said: dict[str, Any] = {"tokens": renderer.answer(path, body)}
        except Exception as error:  # noqa: BLE001 - whatever SGLang raises, it refuses the request
            said = {"refused": type(error).__name__}
        print(json.dumps(said), file=answers, flush=True)


main()
