"""Whether a model of the hub can be had, asked before anything heavy starts."""

import http.client
import urllib.error
import urllib.request

from .errors import ModelUnusable

TIMEOUT = 10.0
FILE = "config.json"


def require(name: str, endpoint: str = "") -> None:
    """Raise ModelUnusable unless this machine's cache, or the hub (at `endpoint`), has the model `name`."""
    from huggingface_hub import constants, get_token, hf_hub_url, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(name, FILE), str):
        return
    absent = f"--model {name}: it isn't in the cache, {constants.HF_HUB_CACHE}, "
    if constants.HF_HUB_OFFLINE:
        raise ModelUnusable(f"{absent}and HF_HUB_OFFLINE is set; unset it, or name a folder")
    endpoint = endpoint or constants.ENDPOINT
    request = urllib.request.Request(hf_hub_url(name, FILE, endpoint=endpoint), method="HEAD")
    if token := get_token():
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT):
            pass
    except urllib.error.HTTPError as error:
        raise ModelUnusable(f"--model {name}: {_refusal(error)}") from error
    except (OSError, http.client.HTTPException) as error:
        raise ModelUnusable(
            f"{absent}and {endpoint} can't be reached ({error}); go online, or name a folder"
        ) from error


def _refusal(error: urllib.error.HTTPError) -> str:
    code = error.headers.get("x-error-code", "")
    if code == "GatedRepo":
        return "its owner grants access; ask for it on the model's page and set HF_TOKEN"
    if code == "EntryNotFound":
        return f"it has no {FILE}: not a model that vLLM can serve"
    if error.code in (401, 403, 404):
        return "the hub has no such model; correct the name, or set HF_TOKEN if it is private"
    return f"the hub answered {error.code} {error.reason}; try again later, or name a folder"
