"""Signatures of thinking blocks.

Clients want one on every thinking block and send it back untouched. Nothing here needs to be
verified: what a client says the model thought is as good as what it says the user said. So a
signature is the name of the message, unless the thinking is left out of the reply: then it carries
the thinking, which the next turn's prompt needs.
"""

import base64
import binascii

from runtime.errors import BadRequest

_CARRIES = "thinking:"


def carry(thinking: str) -> str:
    """Return the signature that carries `thinking`."""
    return _CARRIES + base64.b64encode(thinking.encode()).decode()


def recall(thinking: str, signature: str | None) -> str:
    """Return what a block says that came back: its thinking, or what its signature carries.

    Raises BadRequest for a signature that was tampered with.
    """
    if thinking or signature is None or not signature.startswith(_CARRIES):
        return thinking
    try:
        return base64.b64decode(signature[len(_CARRIES) :], validate=True).decode()
    except (binascii.Error, ValueError) as fault:
        raise BadRequest("a thinking block has an invalid signature", param="messages") from fault
