"""The snippets as text; that they work when pasted is tested on a real fleet."""

import ast
import json
import shlex

from engine_adapters.up import snippets

URL = "http://127.0.0.1:8000"


def test_curl_is_one_command_with_json() -> None:
    words = shlex.split(snippets.curl(URL, "it's"))
    assert words[:2] == ["curl", f"{URL}/v1/chat/completions"]
    body = json.loads(words[words.index("-d") + 1])
    assert body["model"] == "it's"
    assert body["messages"][0]["role"] == "user"


def test_sdk_is_six_lines_of_python() -> None:
    code = snippets.sdk(URL, "smol")
    assert len(code.splitlines()) == 6
    ast.parse(code)
    assert f'base_url="{URL}/v1"' in code
    assert 'model="smol"' in code
