"""Where the configuration files are, and composing one without touching a device."""

import difflib
import os
from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fracdna.kinds import check_values, option_names
from fracdna_prep.errors import InputError

_PACKAGE = Path(__file__).resolve().parent


def configs_folder() -> Path:
    """The folder of YAML files.

    FRACDNA_CONFIGS, else configs/ beside pyproject.toml (a checkout), else the copy in the wheel.

    Raises:
        InputError: FRACDNA_CONFIGS names no folder.
    """
    named = os.environ.get("FRACDNA_CONFIGS")
    if named:
        folder = Path(named).resolve()
        if not folder.is_dir():
            raise InputError(f"FRACDNA_CONFIGS={named} is not a folder: unset or correct it")
        return folder
    checkout = _PACKAGE.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / "configs").is_dir():
        return checkout / "configs"
    return _PACKAGE / "configs"


def compose_configuration(verb: str, overrides: Sequence[str] = ()) -> DictConfig:
    """The configuration of a verb with overrides, in Hydra's syntax.

    Raises:
        InputError: an override that does not parse, names an unknown key or file, or has a value of
            another kind than the default.
    """
    try:
        config = _compose(verb, overrides)
        check_values(_compose(verb, ()), config)
        OmegaConf.resolve(config)
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(_explain(verb, overrides, error)) from error
    return config


def describe(verb: str) -> str:
    """Options of a verb with their defaults and meanings, and the groups to choose from."""
    folder = configs_folder()
    top, groups = _options_and_defaults((folder / f"{verb}.yaml").read_text())
    lines = ["Options and their defaults (change with key=value):", *top]
    for group, default in groups.items():
        choices = "|".join(sorted(path.stem for path in (folder / group).glob("*.yaml")))
        lines += ["", f"{group}={choices}"]
        if default == "null":
            lines.append("  # none unless chosen; sets several of the options above")
            continue
        text = (folder / group / f"{default}.yaml").read_text()
        options, further = _options_and_defaults(text)
        for name, choice in further.items():
            # a size keeps its numbers by the name of the mixer: "/size/dna_tiny: ${mixer}"
            chosen = groups.get(choice.strip("${}"))
            if chosen:
                nested = (folder / name.strip("/") / f"{chosen}.yaml").read_text()
                options += _options_and_defaults(nested)[0]
                text = nested
        declared = text.partition("# @package ")[2].partition("\n")[0] or group
        prefix = "" if declared == "_global_" else f"{declared}."
        lines.append(f"  # {default} (change with {prefix}key=value):")
        lines += options
    return "\n".join(lines)


def _options_and_defaults(text: str) -> tuple[list[str], dict[str, str]]:
    """Lines of a YAML file without its defaults list, and that list as group to choice."""
    options, defaults, inside = [], {}, False
    for line in text.splitlines():
        inside = line == "defaults:" or (inside and line.startswith("  - "))
        group, _, choice = line.removeprefix("  - ").partition(": ")
        if inside and choice:
            defaults[group] = choice
        elif not inside and line and not line.startswith(("# @package", "# fracdna")):
            options.append(f"  {line}")
    return options, defaults


def _compose(verb: str, overrides: Sequence[str]) -> DictConfig:
    """Hydra's composition, with interpolations left as they are."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(configs_folder()), version_base="1.3"):
        return compose(verb, overrides=list(overrides))


def _explain(verb: str, overrides: Sequence[str], error: Exception) -> str:
    """One message of a composition error, with the nearest existing key."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = "; ".join(line for line in lines if "provider=" not in line)
    message = message.replace("; Config search path:", "").replace("':; ", "': ")
    if "Could not override" in message and "'" in message:
        key = message.split("'")[1]
        close = difflib.get_close_matches(key, option_names(_compose(verb, ())), n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        return f"there is no option {key!r}; {hint}`fracdna {verb} --help` lists all options"
    word = next((word for word in overrides if word in str(error)), " ".join(overrides))
    if "--multirun" in message:
        return f"{word}: a bare comma; write a list as [a,b] and quote other text: \"key='a,b'\""
    if any(sign in message for sign in ("LexerNoViableAlt", "no viable alt", "mismatched input")):
        return (
            f"{word} cannot be read as key=value; quote values with blanks, '=', brackets, commas "
            "or other letters: \"output='a b=c'\""
        )
    return message
