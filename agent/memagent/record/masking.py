"""Mask secrets, recognized by the name they belong to or by the form of well-known ones."""

from __future__ import annotations

import re
from typing import Any

MASK = "***"

# Patterns as text are compiled at their first use, which few runs make: `attach` imports this.

_SECRET_WORDS = {
    *("secret", "secrets", "password", "passwords", "passwd", "passphrase", "credential"),
    *("credentials", "apikey", "authtoken", "accesstoken", "accesskey", "privatekey"),
    *("secretkey", "authorization", "webhook"),
}
_KEY_QUALIFIER = "api|access|private|secret|signing|encryption|ssh|service|auth|account"
"""Words after which `key` is a secret."""
_TEXT_QUALIFIER = (
    "pad|eos|bos|unk|sep|cls|mask|start|end|stop|begin|special|image|img|video|audio|text|next"
    "|prev|first|last|per|max|min|num|n|tool|think|new|prefix|suffix|middle|eot|eom|trigger"
    "|instance|placeholder|separator|class|boi|eoi|context|modifier|initializer|every|each"
)
"""Words after which `token` is a piece of text; otherwise it's a secret."""

_SECRET_FORMS = re.compile(
    r"""
      hf_[A-Za-z0-9]{16,}                                  # Hugging Face
    | \bsk-[A-Za-z0-9_-]{16,}                              # OpenAI, Anthropic
    | \bgh[oprsu]_[A-Za-z0-9]{16,} | github_pat_\w{20,}    # GitHub
    | glpat-[\w-]{16,}                                     # GitLab
    | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b                        # AWS
    | \bxox[a-z]-[A-Za-z0-9-]{8,} | \bxapp-[A-Za-z0-9-]{8,}  # Slack
    | https://hooks\.slack\.com/\S+
    | \bAIza[\w-]{30,} | \bya29\.[\w-]{20,}                # Google
    | \bnpm_[A-Za-z0-9]{30,} | \bpypi-[\w-]{16,}           # registries
    | \br8_[A-Za-z0-9]{20,} | \bnvapi-[\w-]{16,}           # Replicate, NVIDIA
    | \bmag_[\w-]{20,}                                     # memagent
    | (?<![\w-])eyJ[\w-]{8,}\.eyJ[\w-]+\.[\w-]*            # JSON web tokens
    | (?<=[?&])(?:sig|X-Amz-Signature)=[^&\s"']+           # signed addresses
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----(?:.|\n)*
    """,
    re.VERBOSE,
)
_USER_OF_URL = re.compile(r"(?<=://)[^/\s'\"]+@")
_BEARER = re.compile(
    r"\b((?i:bearer))\ +[\w.~+/=-]{8,}"
    # what follows the word `basic` in prose has no digits between letters of both cases
    r"|\b((?i:basic))\ +(?=\S*[a-z])(?=\S*[A-Z])(?=\S*[0-9])[A-Za-z0-9+/]{8,}={0,2}"
)
# from the beginning of a word, so that a long one is read once
_ASSIGNMENT = re.compile(r"""(?<![\w.-])([\w.-]{1,200})(\\*["']?\s*(?:[=-]>|:=|==?|:)\s*)""")
_OPTION = re.compile(r"""(?<![\w-])(--[\w.-]{1,200})(["']?,?\s+["']?)([^\s"'-][^\s"',]*)""")
_VALUE = r"""
      (?P<quote>\\*["'])(?:(?<=\\")[^"]*"? | (?<=\\')[^']*'?
                          | (?<=")(?:[^"\\]|\\.)*"? | (?<=')(?:[^'\\]|\\.)*'?)
    | [bru]?"(?:[^"\\]|\\.)*"? | [bru]?'(?:[^'\\]|\\.)*'?
    | [\w.]*[(\[{][^)\]}]*[)\]}]?                          # SecretStr('x'), ['x', 'y']
    | (?:(?i:bearer|basic|digest|token)\s+)?[^\s"',;&)}\]]+
    """
_SWITCH = r"(?i:none|null|true|false)(?![\w.-])"
_MEASURE = r"[+-]?(?:[0-9]+\.[0-9]*(?:e[+-]?[0-9]+)?|[0-9]{1,5}|nan|inf)%?(?![\w.-])"
"""A number after `token:`, such as the loss of one."""
_WORD_BEFORE = r"(\w+)[ /]$"
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def is_secret_name(name: str) -> bool:
    """Return whether a name is that of a secret.

    True for `hf_token`, `apiKey`, `--aws-secret-access-key`; False for `eos_token`, `tokenizer`.
    """
    words = [word.lower() for word in _WORDS.findall(name)]
    if not _SECRET_WORDS.isdisjoint(words):
        return True
    pairs = list(zip(["", *words], words, strict=False))
    if any(word == "key" and re.fullmatch(_KEY_QUALIFIER, before) for before, word in pairs):
        return True
    # `token` counts only as the last word: `token_count` is a number.
    before, last = pairs[-1] if pairs else ("", "")
    return last == "token" and not re.fullmatch(_TEXT_QUALIFIER, before)


def mask_value(name: str, value: Any) -> Any:
    """Return the value, or the mask if the name is that of a secret.

    Switches (`token=True`) and empty values reveal nothing and stay.
    """
    if value is None or isinstance(value, bool) or (isinstance(value, str) and not value):
        return value
    return MASK if is_secret_name(name) else value


def mask_text(text: str) -> str:
    """Mask everything that looks like a secret, and user and password in addresses."""
    text = _SECRET_FORMS.sub(MASK, text)
    if "://" in text:
        text = _USER_OF_URL.sub(f"{MASK}@", text)
    return _BEARER.sub(lambda match: f"{match[1] or match[2]} {MASK}", text)


def mask_arguments(arguments: list[str]) -> list[str]:
    """Mask the values of command-line arguments such as `--token x` and `model.hf_token=x`."""
    masked: list[str] = []
    is_value_secret = False
    for argument in arguments:
        if is_value_secret and not argument.startswith("--"):
            masked.append(MASK)
            is_value_secret = False
            continue
        is_option = argument.startswith("-") and "=" not in argument
        is_value_secret = is_option and is_secret_name(argument)
        masked.append(mask_line(argument))
    return masked


def mask_line(text: str) -> str:
    """Mask what `mask_text` does, and values of secrets: `token=x`, `"api_key": "x"`, `--token x`.

    Switches stay, and so do numbers that belong to a token of text.
    """
    return mask_text(_OPTION.sub(_masked_option, _mask_assignments(text)))


def _mask_assignments(text: str) -> str:
    pieces: list[str] = []
    position = 0
    while (match := _ASSIGNMENT.search(text, position)) is not None:
        pieces.append(text[position : match.end()])
        position = match.end()
        # a value that isn't a secret's may be an assignment, too
        is_secret = is_secret_name(match[1])
        value = re.compile(_VALUE, re.VERBOSE).match(text, position) if is_secret else None
        if value is not None and not _reveals_nothing(text, match, value[0]):
            quote = value["quote"] or ""
            pieces += (quote, MASK, quote)
            position = value.end()
    return "".join(pieces) + text[position:]


def _reveals_nothing(text: str, match: re.Match[str], value: str) -> bool:
    name, sign = match.groups()
    is_address = sign.strip("\\\"' ") == ":" and value.startswith("//")
    if is_address or re.match(_SWITCH, value):
        return True
    if not name.lower().endswith("token"):
        return False
    before = re.search(_WORD_BEFORE, text[max(0, match.start() - 20) : match.start()])
    is_of_text = before is not None and not is_secret_name(f"{before[1]} {name}")
    return is_of_text or re.match(_MEASURE, value) is not None


def _masked_option(match: re.Match[str]) -> str:
    name, space, value = match.groups()
    return f"{name}{space}{MASK if is_secret_name(name) else value}"
