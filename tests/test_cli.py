import importlib
import os
import shlex
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from fracdna import cli, doctor
from fracdna.cli import FINE, INTERRUPTED, REFUSED, ROW_PROBLEMS, VERBS
from fracdna.configuration import compose_configuration, configs_folder

MIXERS = sorted(path.stem for path in (configs_folder() / "mixer").glob("*.yaml"))
ROOT = Path(__file__).resolve().parent.parent
PATHS = os.pathsep.join(str(ROOT / folder) for folder in (".", "kernels", "data_prep"))
# Python stops at "import torch", as it would stop at a driver that is broken
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None\nfrom fracdna.cli import main\nmain()"

TYPING_ERRORS = {
    "verb": (["trian", "steps=3"], "did you mean train?"),
    "option": (["train", "stpes=3"], "did you mean steps?"),
    "nested option": (["train", "data.lenght=3"], "did you mean data.length?"),
    "group": (["train", "mixr=frac"], "mixr"),
    "choice": (["train", "mixer=fracc"], "attention"),
    "number": (["train", "steps=many"], "steps=many needs a whole number"),
    "switch": (["train", "resume=maybe"], "resume=maybe needs true or false"),
    "no value": (["train", "nonsense"], "nonsense"),
    "open bracket": (["train", "data.length=[1024"], "[1024"),
    "option of another mixer": (["train", "mixer=gdn", "model.mixer.gain=zoh"], "num_heads"),
    "two mixers": (["train", "mixer=[gdn,frac]"], "choose one of mixer=attention|"),
    "option of no verb": (["doctor", "froms=true"], "did you mean forms?"),
}


def start(*arguments: str, cwd: Path) -> subprocess.Popen:
    """The command in a process of its own, without PyTorch and without a CUDA device."""
    return subprocess.Popen(
        [sys.executable, "-c", WITHOUT_TORCH, *arguments],
        cwd=cwd, env=os.environ | {"PYTHONPATH": PATHS, "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_the_verbs_are_those_that_exist(capsys):
    """Each verb has its YAML and its function, each YAML has its verb, and help lists them all."""
    assert {path.stem for path in configs_folder().glob("*.yaml")} == set(VERBS)
    for verb in VERBS.values():
        module, function = verb.function.split(":")
        assert callable(getattr(importlib.import_module(module), function))
    assert cli.run([]) == FINE
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[:2] == "  "]
    assert listed == list(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_every_option_and_an_example(verb, capsys):
    """Every key at any depth, the verb's one-line purpose and its example are in its help."""
    assert cli.run([verb, "--help"]) == FINE
    text = capsys.readouterr().out
    assert VERBS[verb].does in text
    assert VERBS[verb].example in text
    for key in keys(OmegaConf.to_container(compose_configuration(verb))):
        assert f"{key}:" in text or f"{key}=" in text


@pytest.mark.parametrize("mixer", MIXERS)
def test_help_shows_the_options_of_the_chosen_mixer(mixer, capsys):
    """Its own, with the numbers of the chosen size, and of no other mixer."""
    assert cli.run(["train", f"mixer={mixer}", "size=dna_7m", "--help"]) == FINE
    text = capsys.readouterr().out
    model = compose_configuration("train", [f"mixer={mixer}", "size=dna_7m"]).model
    for key in keys(OmegaConf.to_container(model)):
        assert f"{key}:" in text
    assert f"  # {mixer} (change with model.key=value):" in text
    assert f"  num_layers: {model.num_layers}\n" in text
    assert ("gain:" in text) == (mixer == "frac")


def test_help_shows_what_an_experiment_sets(capsys):
    """Also the size that it chooses."""
    assert cli.run(["train", "experiment=dna_7m", "--help"]) == FINE
    text = capsys.readouterr().out
    assert "  # dna_7m (change with model.key=value):" in text
    assert "  steps: 10000\n" in text


def test_help_of_a_file_that_does_not_exist_is_refused(capsys):
    assert cli.run(["train", "mixer=fracc", "--help"]) == REFUSED
    assert "attention" in capsys.readouterr().err


def keys(config):
    """Names of all options, those of the blocks too."""
    for key, value in config.items():
        yield key
        if isinstance(value, dict):
            yield from keys(value)


@pytest.mark.parametrize("verb", VERBS)
def test_examples_parse(verb):
    """The example of every verb is a command that composes."""
    command, name, *words = shlex.split(VERBS[verb].example)
    assert (command, name) == ("fracdna", verb)
    places, overrides = cli.split_words(verb, words)
    assert all("/" in word for word in places)
    config = compose_configuration(verb, overrides)
    given = OmegaConf.from_dotlist(overrides)
    for key in (override.split("=")[0] for override in overrides):
        if not (configs_folder() / key).is_dir():
            assert OmegaConf.select(config, key) == OmegaConf.select(given, key)


@pytest.mark.parametrize("mistake", TYPING_ERRORS)
def test_a_typing_error_is_refused_in_one_line(mistake, tmp_path, monkeypatch, capsys):
    """Exit code 2, one message that helps, no traceback and nothing written."""
    arguments, remedy = TYPING_ERRORS[mistake]
    monkeypatch.chdir(tmp_path)
    assert cli.run(arguments) == REFUSED
    printed = capsys.readouterr()
    assert printed.out == ""
    assert remedy in printed.err
    assert printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", [name for name in VERBS if name != "doctor"])
def test_a_verb_without_its_inputs_is_refused(verb, tmp_path, monkeypatch, capsys):
    """One line says what is not set; nothing is written."""
    monkeypatch.chdir(tmp_path)
    assert cli.run([verb]) == REFUSED
    message = capsys.readouterr().err
    assert message.startswith(f"fracdna {verb}: ")
    assert message.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_words_by_place_belong_to_the_verbs_that_take_them():
    """What has the form of an option is one; what has not is refused by verbs without places."""
    words = ["runs/a", "output=page", "./lr=1", "+new.key=2", "with blank"]
    assert cli.split_words("report", words) == (
        ["runs/a", "./lr=1", "with blank"],
        ["output=page", "+new.key=2"],
    )
    assert cli.split_words("train", words) == ([], words)


def test_help_of_a_verb_stands_beside_words_by_place(capsys):
    assert cli.run(["report", "runs/a", "--help"]) == FINE
    assert VERBS["report"].does in capsys.readouterr().out


def test_the_exit_code_of_the_verb_is_the_command_s(monkeypatch):
    """What the function returns or how it ends becomes the exit code."""
    monkeypatch.setattr(doctor, "run", lambda _: ROW_PROBLEMS)
    assert cli.run(["doctor"]) == ROW_PROBLEMS

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "run", interrupt)
    assert cli.run(["doctor"]) == INTERRUPTED
    monkeypatch.setattr(sys, "argv", ["fracdna", "doctor"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == INTERRUPTED


def test_two_processes_elsewhere_show_the_same_configuration_without_a_device(tmp_path, capsys):
    """From another directory, twice at once and with PyTorch out of reach (case 47)."""
    cli.run(["train", "--help"])
    here = capsys.readouterr().out
    for process in [start("train", "--help", cwd=tmp_path) for _ in range(2)]:
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err, out) == (FINE, "", here)
    assert list(tmp_path.iterdir()) == []


def test_the_configuration_folder_can_be_named(tmp_path, monkeypatch, capsys):
    """FRACDNA_CONFIGS goes before the checkout; a name that leads nowhere is refused."""
    (tmp_path / "doctor.yaml").write_text("forms: false\nmine: 7\n")
    monkeypatch.setenv("FRACDNA_CONFIGS", str(tmp_path))
    assert compose_configuration("doctor").mine == 7
    monkeypatch.setenv("FRACDNA_CONFIGS", str(tmp_path / "elsewhere"))
    assert cli.run(["doctor"]) == REFUSED
    assert "FRACDNA_CONFIGS" in capsys.readouterr().err


def test_a_reader_that_leaves_ends_the_command_without_a_traceback():
    """fracdna train --help | head -1"""
    program = [sys.executable, "-m", "fracdna", "train", "--help"]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(program, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (INTERRUPTED, "")


def test_a_word_that_cannot_be_read_is_the_one_that_is_named(capsys):
    words = ["output=x", "validation_chromosomes=[ctgB=2]", "seed=1"]
    assert cli.run(["prepare", *words]) == REFUSED
    error = capsys.readouterr().err
    assert "validation_chromosomes=[ctgB=2] cannot be read" in error
    assert "seed=1" not in error


def test_there_is_one_command():
    """The distribution brings no other program than fracdna."""
    scripts = [x for x in entry_points(group="console_scripts") if x.value.startswith("fracdna")]
    assert {(x.name, x.value) for x in scripts} == {("fracdna", "fracdna.cli:main")}


def test_doctor_finds_every_form_in_agreement(capsys):
    """Every form of every operator is run on the CPU and on each CUDA device."""
    selfcheck = importlib.import_module("fracdna_kernels.selfcheck")
    forms = [(name, form) for name in selfcheck.OPERATORS for form in selfcheck._forms(name)]
    assert cli.run(["doctor"]) == FINE
    report = capsys.readouterr().out
    assert torch.__version__ in report
    assert str(configs_folder()) in report
    lines = [line.split() for line in report.splitlines()]
    assert [tuple(x[:2]) for x in lines if x[2:3] == ["cpu"]] == forms
    assert all(x[3] == "agrees," for x in lines if x[2:3] == ["cpu"] and x[1] != "triton")
    assert ["frac_scan", "cpu:", "chunk"] in [x[:3] for x in lines]
    assert ("cuda:0" in report) == torch.cuda.is_available()


@pytest.mark.parametrize("fault", ["wrong", "nan", "breaks"])
def test_doctor_reports_a_form_that_disagrees(fault, monkeypatch, capsys):
    """Other numbers, NaN and a plain form that breaks all end with exit code 1."""
    forms = importlib.import_module("fracdna_kernels.frac_scan").FORMS
    chunk = forms["chunk"]

    def faulty(*arguments):
        output, state = chunk(*arguments)
        if fault == "breaks":
            raise RuntimeError("no kernel image\nis available")
        return output, state * 1.001 if fault == "wrong" else state * torch.nan

    monkeypatch.setitem(forms, "chunk", faulty)
    assert cli.run(["doctor"]) == ROW_PROBLEMS
    lines, place = capsys.readouterr().out.splitlines(), ["frac_scan", "chunk"]
    line = next(x for x in lines if x.split()[:2] == place)
    assert "does not run: no kernel image" in line if fault == "breaks" else "DISAGREES" in line


def test_doctor_accepts_a_fused_form_that_says_why_it_cannot_run(monkeypatch, capsys):
    """A Triton form may refuse a device: the reason is shown and is no failure."""

    def refuses(*_):
        raise ValueError("needs a CUDA device")

    forms = importlib.import_module("fracdna_kernels.frac_scan").FORMS
    monkeypatch.setitem(forms, "triton", refuses)
    assert cli.run(["doctor"]) == FINE
    assert "does not run: needs a CUDA device" in capsys.readouterr().out


def test_doctor_names_what_to_install(monkeypatch):
    """An absent package comes with the command that brings it, an extra under its own name."""
    absent = {"numpy": None, "mpmath": "0.1"}
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: absent.get(name, real(name)))
    lines = doctor._missing()
    assert any("pip install" in line and "numpy>=" in line for line in lines)
    assert any("fracdna[dev]" in line and "mpmath>=" in line for line in lines)


def test_doctor_works_where_torch_does_not(tmp_path):
    """Versions and remedies are shown even when PyTorch cannot be imported."""
    process = start("doctor", cwd=tmp_path)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, "")
    assert "torch cannot be imported" in out
