"""The config.json of a model on the Hugging Face hub: `memagent estimate --model org/name --hub`.

1. Nothing is fetched without being asked for. What the hub's own cache has is read from there.
2. Only config.json is fetched, with the user's token and from their endpoint (`HF_ENDPOINT`), as
   `huggingface_hub` says; `HF_HUB_OFFLINE=1` forbids it.
3. The far end may be anything: an answer has at most MAX_CONFIG_BYTES, before and after
   decompression, redirects stay on the same host, and TIMEOUT_S is a deadline for the whole
   exchange.
"""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.parse import urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from memagent.errors import EstimateError
from memagent.estimator.formula.from_config import read_config
from memagent.units import format_bytes

TIMEOUT_S = 20.0
MAX_CONFIG_BYTES = 2**20
_MAX_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)
_REASONS = {
    401: "it doesn't exist, or it is private: log in with `hf auth login`",
    403: "it is gated: accept its licence on its page, and log in with `hf auth login`",
    404: "no such model, or it has no config.json (pipelines of diffusers and adapters have none)",
    429: "the hub answers no more requests for now: try again later",
}


def hub_config(name: str, *, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """Return the content of `org/name`'s config.json, from the hub's cache or from the hub.

    Raises EstimateError that says what is wrong: with the name, the connection or the answer.
    """
    try:
        import huggingface_hub as hub
        from huggingface_hub import constants
        from huggingface_hub.utils import HFValidationError, validate_repo_id
    except ImportError:
        raise EstimateError("--hub needs huggingface_hub: pip install 'memagent[hub]'") from None
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise EstimateError(f"{name!r} isn't a model name of the hub: {error}") from None
    cached = hub.try_to_load_from_cache(name, "config.json")
    if isinstance(cached, str):
        return read_config(cached)
    if constants.HF_HUB_OFFLINE:
        raise EstimateError(
            f"{name} isn't in the hub's cache, and HF_HUB_OFFLINE forbids to fetch its config.json"
        )
    endpoint = os.environ.get("HF_ENDPOINT") or None
    url = hub.hf_hub_url(name, "config.json", endpoint=endpoint and endpoint.rstrip("/"))
    return _decode(name, _fetch(name, url, timeout_s))


def _fetch(name: str, url: str, timeout_s: float) -> bytes:
    from memagent.wire.deadline import Deadline

    with Deadline(timeout_s) as deadline:
        for _ in range(_MAX_REDIRECTS + 1):
            status, location, body = _get(name, url, timeout_s, deadline)
            if status not in _REDIRECTS:
                break
            target = urljoin(url, location)
            if urlsplit(target)[:2] != urlsplit(url)[:2]:
                raise _failure(name, f"{_host(url)} redirects elsewhere, to {_host(target)}")
            url = target
        else:
            raise _failure(name, f"{_host(url)} redirects more than {_MAX_REDIRECTS} times")
    if status != 200:
        raise _failure(name, _REASONS.get(status, f"{_host(url)} answered {status}"))
    return body


def _get(name: str, url: str, timeout_s: float, deadline: Any) -> tuple[int, str, bytes]:
    """Return status, target of a redirect, and body."""
    import urllib3
    from huggingface_hub.utils import build_hf_headers

    from memagent import __version__
    from memagent.wire.bounded_http import TooLargeError, pool_manager, read_body

    headers = build_hf_headers(library_name="memagent", library_version=__version__)
    proxy = None if proxy_bypass(_host(url)) else getproxies().get(urlsplit(url).scheme)
    pool = pool_manager(proxy, retries=False)
    try:
        response = pool.request(
            "GET",
            url,
            headers={**headers, "Accept-Encoding": "identity"},
            timeout=urllib3.Timeout(connect=timeout_s, read=timeout_s),
            redirect=False,
            preload_content=False,
        )
        body = read_body(response, MAX_CONFIG_BYTES) if response.status == 200 else b""
    except TooLargeError:
        size = format_bytes(MAX_CONFIG_BYTES)
        raise _failure(name, f"{_host(url)} sent more than {size}") from None
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        # urllib3's texts begin with the connection: <... object at 0x...>: Failed to resolve ...
        text = str(error).rpartition(">: ")[2]
        reason = f"no answer within {timeout_s:g} s" if deadline.is_over else text
        raise _failure(name, f"{_host(url)}: {reason}") from error
    finally:
        pool.clear()
    if deadline.is_over:  # a body without a length ends like a complete one
        raise _failure(name, f"{_host(url)}: no answer within {timeout_s:g} s")
    return response.status, response.headers.get("Location", ""), body


def _decode(name: str, body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise _failure(name, "the answer is no JSON object: is HF_ENDPOINT a hub?")
    return read_config(content)


def _failure(name: str, reason: str) -> EstimateError:
    return EstimateError(f"the config.json of {name} could not be fetched: {reason}")


def _host(url: str) -> str:
    return urlsplit(url).netloc
