"""Where the model is that an operator named."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from server.engines.cosyvoice.hub.fetching import fetch, is_complete
from server.engines.cosyvoice.hub.remote import HubError, Remote
from server.engines.cosyvoice.options import Options
from server.engines.examining import how_to_install
from server.engines.model_cache import default_model_dir

_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_REVISION: Final = re.compile(r"[A-Za-z0-9][\w./-]{0,99}", re.ASCII)


def find_model(options: Options, environment: Mapping[str, str] | None = None) -> Path:
    """The folder of the model: a folder is itself, a name is one that was fetched, now or earlier. Slow where it
    fetches. Raises HubError, one line.
    """
    environment = os.environ if environment is None else environment
    given = Path(options.model).expanduser()
    if given.is_dir():
        return given
    kept = kept_folder(options, environment)
    if is_complete(kept):
        return kept
    name = options.model
    if offline := why_offline(options, environment):
        raise HubError(f"model {name} is not in {kept}, and nothing is fetched: {offline}")
    fetch(name, remote_of(options, environment), kept)
    return kept


def kept_folder(options: Options, environment: Mapping[str, str]) -> Path:
    """Where a model of a hub is kept once it was fetched. Raises HubError where the option names none."""
    name, revision = options.model, options.revision
    if not _NAME.fullmatch(name) or ".." in name:
        is_file = Path(name).expanduser().exists()
        wrong = "is a file" if is_file else "is no folder here, nor the name of a model"
        raise HubError(f"engine option model: {name} {wrong}; allowed: a folder, or OWNER/NAME on {options.hub}")
    if revision and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise HubError(f"engine option revision: {revision} is none; allowed: a branch, a tag or a commit")
    kept = name.replace("/", "--") + (f"@{revision.replace('/', '--')}" if revision else "")
    base = options.model_dir or default_model_dir(environment) / "cosyvoice"
    return base / options.hub / kept


def why_offline(options: Options, environment: Mapping[str, str]) -> str:
    """What keeps it from the hub; empty where nothing does."""
    if options.offline:
        return "engine option offline is on; give a folder that has the model, or start once without offline"
    variable = environment.get("HF_HUB_OFFLINE", "").strip().lower()
    if options.hub == "huggingface" and variable in ("1", "true", "yes", "on"):
        return "HF_HUB_OFFLINE is set; give a folder that has the model, or start once without it"
    return ""


def remote_of(options: Options, environment: Mapping[str, str]) -> Remote:
    """The model on its hub, which is not asked yet. Raises HubError."""
    if options.hub == "modelscope":
        from server.engines.cosyvoice.hub.modelscope import ModelScope

        return ModelScope(options.model, options.revision, environment)
    try:
        from server.engines.cosyvoice.hub.huggingface import HuggingFace  # late: its library takes a second to load
    except ModuleNotFoundError as error:
        raise HubError(f"fetching a model needs {error.name}: {how_to_install('cosyvoice')}") from error

    return HuggingFace(options.model, options.revision, environment)
