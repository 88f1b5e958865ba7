"""Secrets, by the name under which they stand and by the shape that well-known ones have."""

from __future__ import annotations

import re
from typing import Any

MASK = "***"

_SECRET_WORDS = {
    "secret", "secrets", "password", "passwords", "passwd", "passphrase", "credential", "credentials", "apikey", "authtoken",
    "accesstoken", "accesskey", "privatekey", "secretkey", "authorization", "webhook",
}  # fmt: skip
_KEYS = {
    "api",
    "access",
    "private",
    "secret",
    "signing",
    "encryption",
    "ssh",
    "service",
    "auth",
    "account",
}
"""`key` is secret after one of these."""
_TEXT_TOKENS = {
    "pad", "eos", "bos", "unk", "sep", "cls", "mask", "start", "end", "stop", "begin", "special", "image", "img", "video", "audio", "text",
    "next", "prev", "first", "last", "per", "max", "min", "num", "n", "tool", "think", "new", "prefix", "suffix", "middle", "eot", "eom",
    "trigger", "instance", "placeholder", "separator", "class", "boi", "eoi", "context", "modifier", "initializer", "every", "each",
}  # fmt: skip
"""`token` is a piece of text after one of these, and a secret otherwise."""

_SHAPES = re.compile(
    r"""
      hf_[A-Za-z0-9]{16,}                                  # Hugging Face
    | \bsk-[A-Za-z0-9_-]{16,}                              # OpenAI, Anthropic
    | \bgh[oprsu]_[A-Za-z0-9]{16,} | github_pat_\w{20,}    # GitHub
    | glpat-[\w-]{16,}                                     # GitLab
    | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b                        # AWS
    | \bxox[a-z]-[A-Za-z0-9-]{8,} | \bxapp-[A-Za-z0-9-]{8,} | https://hooks\.slack\.com/\S+   # Slack
    | \bAIza[\w-]{30,} | \bya29\.[\w-]{20,}                # Google
    | \bnpm_[A-Za-z0-9]{30,} | \bpypi-[\w-]{16,}           # registries
    | \br8_[A-Za-z0-9]{20,} | \bnvapi-[\w-]{16,}           # Replicate, NVIDIA
    | \bmag_[\w-]{20,}                                     # memagent
    | \beyJ[\w-]{8,}\.eyJ[\w-]+\.[\w-]*                    # JSON web tokens
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----(?:.|\n)*
    """,
    re.VERBOSE,
)
_USER_OF_URL = re.compile(r"(?<=://)[^/\s@'\"]+@")
_BEARER = re.compile(r"(?i)\b(bearer|basic) +[\w.~+/=-]{8,}")
_ASSIGNMENT = re.compile(
    r"""([\w.-]*[A-Za-z][\w.-]*)(["']?\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s"',;&)}\]]+)"""
)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def is_secret_name(name: str) -> bool:
    """Whether what stands under `name` is a secret: `hf_token`, `apiKey`, `--aws-secret-access-key`; not `eos_token`, `tokenizer`."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if any(word in _SECRET_WORDS for word in words):
        return True
    pairs = list(zip(["", *words], words, strict=False))
    if any(word == "key" and before in _KEYS for before, word in pairs):
        return True
    return any(
        word == "token" and before not in _TEXT_TOKENS and index == len(words)
        for index, (before, word) in enumerate(pairs, 1)
    )


def masked_value(name: str, value: Any) -> Any:
    """The value, or the mask where its name is that of a secret. Switches (`token=True`) and what is not set tell nothing."""
    tells_nothing = (
        value is None or isinstance(value, bool) or (isinstance(value, str) and not value)
    )
    return value if tells_nothing or not is_secret_name(name) else MASK


def masked_text(text: str) -> str:
    """Text without what looks like a secret, and without the user and password in addresses."""
    text = _SHAPES.sub(MASK, text)
    if "://" in text:
        text = _USER_OF_URL.sub(f"{MASK}@", text)
    return _BEARER.sub(rf"\1 {MASK}", text)


def masked_arguments(arguments: list[str]) -> list[str]:
    """Command-line arguments with the values of `--token x`, `--api-key=x`, `model.hf_token=x` and their like replaced."""
    masked: list[str] = []
    hide_next = False
    for argument in arguments:
        hide, hide_next = hide_next and not argument.startswith("--"), False
        if hide:
            masked.append(MASK)
            continue
        hide_next = argument.startswith("-") and "=" not in argument and is_secret_name(argument)
        masked.append(masked_text(_ASSIGNMENT.sub(_masked_assignment, argument)))
    return masked


def _masked_assignment(found: re.Match[str]) -> str:
    name, sign, value = found.groups()
    if sign.strip("\"' ") == ":" and value.startswith("//"):  # an address
        return found.group()
    if not is_secret_name(name):
        return f"{name}{sign}{_ASSIGNMENT.sub(_masked_assignment, value)}"
    quote = value[0] if value[0] in "\"'" else ""
    return f"{name}{sign}{quote}{MASK}{quote}"
