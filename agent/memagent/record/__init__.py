"""Metadata of a run: code, machine, versions, hyperparameters. Secrets never leave the machine.

docs/record.md says what is recorded and how secrets are recognized. Recording initializes no device
and reads no tensor's data.
"""

from memagent.record.config import plain_config
from memagent.record.masking import mask_arguments, mask_text
from memagent.record.process import describe_process, host_name, user_name

__all__ = [
    "describe_process",
    "host_name",
    "mask_arguments",
    "mask_text",
    "plain_config",
    "user_name",
]
