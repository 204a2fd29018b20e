"""The policy's shapes, from a Hugging Face directory."""

from __future__ import annotations

import json
from pathlib import Path

from gyre.cell_agent.trainer.errors import BadModel
from gyre.core.policy_config import PolicyConfig, UnknownModel, policy_config


def read_policy_config(model_path: Path) -> PolicyConfig:
    """Raises BadModel, naming the field of config.json that this trainer does not know."""
    path = model_path / "config.json"
    try:
        return policy_config(json.loads(path.read_text()))
    except UnknownModel as error:
        raise BadModel(f"{path}: {error}") from error
    except (OSError, ValueError) as error:
        raise BadModel(f"{path}: cannot be read: {error}") from error
