"""Where the configuration files are, and composing one without touching a device."""

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fracdna.kinds import check_values, option_names, shown
from fracdna_prep.errors import InputError

# bases of a window from which layers are computed again in the backward pass. Windows of half that
# size keep 8 to 14 GiB in models of 7 million parameters, and computing again excludes CUDA graphs
RECOMPUTED_FROM = 131_072
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
        chosen = _chosen_files(overrides)
        config = _compose(verb, overrides)
        # first the verb's own, which no experiment can change the kinds of; then those of options
        # that only the chosen files have
        defaults = [_compose(verb, ()), _compose(verb, _words(chosen))]
        for default in defaults:
            OmegaConf.resolve(default)
        check_values(defaults, config)
        OmegaConf.resolve(config)
        _settle(config)
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(_explain(verb, overrides, error)) from error
    return config


def _settle(config: DictConfig) -> None:
    """Give options that are "auto" the value that follows from others.

    Raises:
        InputError: another word.
    """
    name = "model.activation_checkpointing"
    chosen = OmegaConf.select(config, name)
    if chosen == "auto":
        OmegaConf.update(config, name, config.data.length >= RECOMPUTED_FROM)
    elif OmegaConf.select(config, "model") is not None and not isinstance(chosen, bool):
        raise InputError(f"{name}={shown(chosen)}: choose auto, true or false")


def options_of(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of all options in a plain configuration; a list is one value."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from options_of(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def describe(verb: str, overrides: Sequence[str] = ()) -> str:
    """Options of a verb with their defaults and meanings, and the groups to choose from.

    Args:
        verb: one of the YAML files.
        overrides: the files that they choose of groups are described; other values are left out.

    Raises:
        InputError: an override that does not parse or names an unknown file.
    """
    folder = configs_folder()
    try:
        words = _chosen_files(overrides)
        _compose(verb, _words(words))
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(_explain(verb, overrides, error)) from error
    top, groups = _options_and_defaults((folder / f"{verb}.yaml").read_text())
    experiment = words.get("experiment")
    if experiment:
        chosen = _options_and_defaults((folder / "experiment" / f"{experiment}.yaml").read_text())
        groups |= {name.removeprefix("override /"): choice for name, choice in chosen[1].items()}
    groups |= words
    lines = ["Options and their defaults (change with key=value):", *top]
    for group, choice in groups.items():
        lines += ["", f"{group}={'|'.join(_files(group))}"]
        if choice == "null":
            lines.append("  # none unless chosen; sets several of the options above")
            continue
        options, text = _options_of(group, choice, groups)
        declared = text.partition("# @package ")[2].partition("\n")[0] or group
        prefix = "" if declared == "_global_" else f"{declared}."
        lines.append(f"  # {choice} (change with {prefix}key=value):")
        lines += options
    return "\n".join(lines)


def _options_of(group: str, choice: str, groups: dict[str, str]) -> tuple[list[str], str]:
    """Lines of a group's file with those of the file that it includes, and the innermost text."""
    text = (configs_folder() / group / f"{choice}.yaml").read_text()
    options, further = _options_and_defaults(text)
    for name, included in further.items():
        if not included:  # "- hyenadna": another file of the group
            options += _options_of(group, name, groups)[0]
            continue
        # a size keeps its numbers by the name of the mixer: "/size/dna_tiny: ${mixer}"
        chosen = groups.get(included.strip("${}"))
        if chosen:
            text = (configs_folder() / name.strip("/") / f"{chosen}.yaml").read_text()
            options += _options_and_defaults(text)[0]
    return options, text


def _files(group: str) -> list[str]:
    """Names that can be chosen of a group."""
    return sorted(path.stem for path in (configs_folder() / group).glob("*.yaml"))


def _chosen_files(overrides: Sequence[str]) -> dict[str, str]:
    """Group to name, of the words that choose a file and do not set a value.

    Raises:
        InputError: several names of one group, or none.
    """
    chosen = {}
    for word in OverridesParser.create().parse_overrides(list(overrides)):
        group, value = word.key_or_group, word.value()
        if word.package or isinstance(value, dict) or not (configs_folder() / group).is_dir():
            continue
        if not isinstance(value, str):
            several = "" if value is None else ", and start the command once for each"
            raise InputError(
                f"{word.input_line}: choose one of {group}={'|'.join(_files(group))}{several}"
            )
        chosen[group] = value
    return chosen


def _words(chosen: dict[str, str]) -> list[str]:
    """Overrides that choose files."""
    return [f"{group}='{name}'" for group, name in chosen.items()]


def _options_and_defaults(text: str) -> tuple[list[str], dict[str, str]]:
    """Lines of a YAML file without its defaults list, and that list as group to choice."""
    options, defaults, inside = [], {}, False
    for line in text.splitlines():
        inside = line == "defaults:" or (inside and line.startswith("  - "))
        group, _, choice = line.removeprefix("  - ").partition(": ")
        if inside and line != "defaults:" and group != "_self_":
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
        return _explain_option(verb, overrides, message.split("'")[1])
    if isinstance(error, MissingConfigException):
        place, _, mixer = (error.missing_cfg_file or "").rpartition("/")
        if place.startswith("size/"):
            path = configs_folder() / place / f"{mixer}.yaml"
            return f"{place.replace('/', '=')} has no numbers for mixer={mixer}: create {path}"
    word = next((word for word in overrides if word in str(error)), " ".join(overrides))
    if "--multirun" in message:
        return f"{word}: a bare comma; write a list as [a,b] and quote other text: \"key='a,b'\""
    if any(sign in message for sign in ("LexerNoViableAlt", "no viable alt", "mismatched input")):
        word = next((word for word in overrides if not _readable(word)), word)
        return (
            f"{word} cannot be read as key=value; quote values with blanks, '=', brackets, commas "
            "or other letters: \"output='a b=c'\", in lists each of them: \"names=['a=b','c,d']\""
        )
    return message


def _readable(word: str) -> bool:
    """Whether one override by itself can be read."""
    try:
        OverridesParser.create().parse_override(word)
    except HydraException:
        return False
    return True


def _explain_option(verb: str, overrides: Sequence[str], key: str) -> str:
    """What there is in place of an option that the chosen files do not have."""
    chosen = _chosen_files(overrides)
    groups = _options_and_defaults((configs_folder() / f"{verb}.yaml").read_text())[1]
    names = [*option_names(_compose(verb, _words(chosen))), *groups]
    parent, _, last = key.rpartition(".")
    beside = {name.rpartition(".")[2]: name for name in names if name.rpartition(".")[0] == parent}
    beside = {short: name for short, name in beside.items() if not short.startswith("_")}
    close = [beside[short] for short in difflib.get_close_matches(last, beside, n=1)]
    if not close:
        close = [name for name in names if name.rpartition(".")[2] == last]
    if not close and not beside:
        close = difflib.get_close_matches(key, names, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    if parent and beside and not close:
        hint = f"{parent} has {', '.join(sorted(beside))}; "
        if parent.startswith("model."):
            hint += f"what its class takes beyond these is set with a plus, +{key}=VALUE; "
    where = "".join(f" {group}={name}" for group, name in chosen.items())
    with_files = f" with{where}" if where else ""
    return (
        f"there is no option {key!r}{with_files}; {hint}"
        f"`fracdna {verb}{where} --help` lists all options"
    )
