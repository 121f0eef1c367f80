"""Whether the Hugging Face hub can be asked: its libraries ask an unknown host again for 90 s."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants

_OFFLINE = constants.HF_HUB_OFFLINE  # as the user's environment asks


def is_out_of_reach() -> bool:
    """Whether its cache alone is to be asked, which huggingface_hub does from here on."""
    constants.HF_HUB_OFFLINE = _OFFLINE or not _is_known()
    return bool(constants.HF_HUB_OFFLINE)


def _is_known() -> bool:
    """Whether this machine can find the hub's address; one behind a proxy need not."""
    if getproxies():
        return True
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True
