"""The facts about a run that someone reading it a year later wants: code, machine, versions, hyperparameters. Secrets never leave.

docs/record.md says what is recorded and how secrets are recognised. Reading them initialises no device and asks no tensor for its data.
"""

from memagent.record.config import plain_config
from memagent.record.git import DirtyCheck
from memagent.record.masking import masked_arguments, masked_text
from memagent.record.process import describe_process, host_name, user_name

__all__ = [
    "DirtyCheck",
    "describe_process",
    "host_name",
    "masked_arguments",
    "masked_text",
    "plain_config",
    "user_name",
]
