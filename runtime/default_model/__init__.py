"""The stand-in model: a tiny untrained checkpoint that is made where no model path is given."""

from runtime.default_model.folder import ensure_default_model

__all__ = ["ensure_default_model"]
