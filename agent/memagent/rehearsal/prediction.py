"""A rehearsal as a prediction of its script's real runs, which a server stores for them."""

from __future__ import annotations

import os
import shlex

from memagent.delivery.api_client import post_rehearsal
from memagent.errors import DeliveryError
from memagent.record import host_name, user_name
from memagent.record.fingerprint import Launch, fingerprint
from memagent.record.masking import mask_arguments
from memagent.rehearsal.report import Rehearsal
from memagent.rehearsal.script import Script
from memagent.settings import Settings
from memagent.wire.messages import RehearsalMessage

_MAX_LABEL_CHARACTERS = 200


def store(result: Rehearsal, script: Script) -> str | None:
    """Store the result on the configured server, and say so; None without a server.

    A server that fails costs the sentence about it, not the result.
    """
    settings = Settings.from_environ()
    message = message_of(result, script)
    if settings.server is None or message is None:
        return None
    try:
        post_rehearsal(message, settings.server, settings.token)
    except DeliveryError as error:
        return f"the rehearsal is not stored: {error}"
    return f"stored on {settings.server}: runs of this script are compared with it"


def message_of(result: Rehearsal, script: Script) -> RehearsalMessage | None:
    """Return the message; None without a verdict, or if the script's text can't be read."""
    launch = Launch.of_target(script.target, script.arguments, is_module=script.is_module)
    identity = fingerprint(launch, {**os.environ, **script.variables}) if launch else None
    if result.fits is None or identity is None:
        return None
    command = shlex.join(mask_arguments([script.target, *script.arguments]))
    return RehearsalMessage(
        fingerprint=identity,
        project=result.project,
        script=command[:_MAX_LABEL_CHARACTERS],
        gpu=result.machine.card.name,
        world_size=result.machine.ranks,
        user=user_name(),
        host=host_name(),
        fits=result.fits,
        prediction=result.to_prediction(),
    )
