"""The default model: a small trained checkpoint, served where no model path is given."""

from runtime.default_model.folder import NAME, default_model_folder

__all__ = ["NAME", "default_model_folder"]
