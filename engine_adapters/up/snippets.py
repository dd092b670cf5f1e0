"""What to paste once the gateway is up."""

import json
import shlex

QUESTION = "What is gravity?"
MAX_TOKENS = 64


def curl(url: str, model: str) -> str:
    """Return a chat by curl, for a shell."""
    body = {
        "model": model,
        "max_tokens": MAX_TOKENS,
        "messages": [{"role": "user", "content": QUESTION}],
    }
    data = shlex.quote(json.dumps(body))
    return f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\\n  -d {data}"


def sdk(url: str, model: str) -> str:
    """Return a chat by the `openai` package, for a Python prompt or a file."""
    return f"""\
from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key="none")
answer = client.chat.completions.create(
    model={json.dumps(model)}, max_tokens={MAX_TOKENS},
    messages=[{{"role": "user", "content": "{QUESTION}"}}])
print(answer.choices[0].message.content)"""
