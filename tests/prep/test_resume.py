import itertools
import json
import multiprocessing
import os
import signal
import threading
import time

import numpy as np
import pytest
from tqdm import tqdm

from fracdna import cli
from fracdna_prep import build_store, fasta, partial_store
from fracdna_prep import prepare as prepare_module
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.prepare import PrepareOptions, prepare, read_summary
from fracdna_prep.store_layout import RecordStart

LENGTHS = (700, 1, 1_300, 0, 900, 2_000)
GENBANK = """LOCUS       plasmid                   12 bp    DNA     linear   SYN 01-JAN-2020
ORIGIN
        1 acgtacgtac gt
//
"""


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Pieces of 256 bytes, and a checkpoint behind every contig."""
    monkeypatch.setattr(fasta, "_BLOCK", 256)
    monkeypatch.setattr(partial_store, "_CHECKPOINT_BASES", 1)


@pytest.fixture
def records(random_sequence):
    return {
        f"c{i}": random_sequence(length, seed=i, letters="ACGTNacgtR")
        for i, length in enumerate(LENGTHS)
    }


@pytest.fixture
def sources(make_fasta, random_sequence, records, tmp_path):
    """A FASTA of six contigs, an annotated record, and another FASTA."""

    def make(name):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / "plasmid.gb").write_text(GENBANK)
        return [
            make_fasta(records, f"in/{name}"),
            tmp_path / "in" / "plasmid.gb",
            make_fasta({"last": random_sequence(500, seed=9)}, f"in/last-{name}"),
        ]

    return make


@pytest.fixture
def started(monkeypatch):
    """The names of the records whose reading was begun, in this process."""
    names = []
    read_source = partial_store.read_source

    def listed(*arguments):
        for event in read_source(*arguments):
            if isinstance(event, RecordStart):
                names.append(event.name)
            yield event

    monkeypatch.setattr(partial_store, "read_source", listed)
    return names


def in_child(function, *arguments):
    """Runs a function in a process that a signal may end; returns how it ended."""
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    process.join()
    return process.exitcode


def build_and_die(sources, directory, events):
    """Builds a store and sends SIGKILL to itself when so many pieces and names were read."""
    read_source, left = partial_store.read_source, itertools.count(events, -1)

    def deadly(*arguments):
        for event in read_source(*arguments):
            if next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            yield event

    partial_store.read_source = deadly
    GenomeStore.build(sources, directory)


def prepare_alone(options):
    """In a fork, whose bars would share a lock with the parent's, and die holding it."""
    tqdm.set_lock(threading.RLock())
    prepare(options)


def content_of(directory):
    return (directory / "bases.u8").read_bytes(), (directory / "store.json").read_bytes()


@pytest.mark.parametrize("name", ["g.fa", "g.fa.gz", "g.bgz.gz"])
@pytest.mark.parametrize("events", [1, 9, 24, 33])
def test_a_killed_build_goes_on_where_it_was(name, events, sources, tmp_path, started, names_in):
    """Finished contigs are not read again, and the store is that of an unbroken build."""
    paths, target = sources(name), tmp_path / "out" / "store"
    unbroken = GenomeStore.build(paths, tmp_path / "unbroken")
    everything = list(started)
    assert everything == list(unbroken.contigs)
    assert in_child(build_and_die, paths, target, events) == -signal.SIGKILL
    assert not target.exists()
    with pytest.raises(InputError, match="no complete genome store"):
        GenomeStore(build_store.partial_folder(target))
    points, _ = partial_store._read_journal(
        build_store.partial_folder(target) / partial_store.JOURNAL_FILE
    )
    finished = [contig.name for point in points for contig in point.contigs]
    started.clear()
    assert GenomeStore.build(paths, target).verify() == unbroken.checksum
    assert started == everything[len(finished) :]
    assert content_of(target) == content_of(unbroken.directory)
    assert names_in(tmp_path / "out") == ["store"]
    assert names_in(target) == ["bases.u8", "store.json"]


def test_something_was_finished_before_the_late_kills(sources, tmp_path):
    """The cases above are no empty ones: nine pieces are two contigs, 33 are two sources."""
    for events, contigs in ((9, 2), (33, 7)):
        target = tmp_path / str(events)
        in_child(build_and_die, sources("g.fa"), target, events)
        points, _ = partial_store._read_journal(
            build_store.partial_folder(target) / partial_store.JOURNAL_FILE
        )
        assert sum(len(point.contigs) for point in points) == contigs


def killed(sources, target):
    assert in_child(build_and_die, sources, target, 24) == -signal.SIGKILL
    return build_store.partial_folder(target)


def change_a_base(paths, folder, records, make_fasta):
    letters = "A" if records["c0"][5] != "A" else "C"
    make_fasta({**records, "c0": records["c0"][:5] + letters + records["c0"][6:]}, "in/g.fa")


def swap_the_files(paths, folder, records, make_fasta):
    paths[0], paths[2] = paths[2], paths[0]


def leave_one_file(paths, folder, records, make_fasta):
    paths[:] = paths[2:]


def flip_a_stored_bit(paths, folder, records, make_fasta):
    bases = bytearray((folder / "bases.u8").read_bytes())
    bases[3] ^= 1
    (folder / "bases.u8").write_bytes(bases)


def lose_stored_bases(paths, folder, records, make_fasta):
    (folder / "bases.u8").write_bytes(b"")


def write_a_foreign_journal(paths, folder, records, make_fasta):
    (folder / "journal.jsonl").write_text("[]\n")


def write_another_version(paths, folder, records, make_fasta):
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    text = "".join(json.dumps({**line, "version": 99}) + "\n" for line in lines)
    (folder / "journal.jsonl").write_text(text)


@pytest.mark.parametrize(
    "change",
    [change_a_base, swap_the_files, leave_one_file, flip_a_stored_bit, lose_stored_bases,
     write_a_foreign_journal, write_another_version],
)  # fmt: skip
def test_partial_work_of_other_inputs_is_never_taken(
    change, sources, records, make_fasta, tmp_path, started, names_in
):
    """Other bases, other files, damage: everything is read again."""
    paths, target = sources("g.fa"), tmp_path / "out" / "store"
    change(paths, killed(paths, target), records, make_fasta)
    store = GenomeStore.build(paths, target)
    assert started == list(store.contigs)
    fresh = GenomeStore.build(paths, tmp_path / "fresh")
    assert content_of(target) == content_of(fresh.directory)
    assert names_in(tmp_path / "out") == ["store"]


def test_a_line_of_the_journal_that_was_cut_is_dropped(sources, tmp_path):
    """Also where its text is whole and only the end of the line is missing."""
    paths, target = sources("g.fa"), tmp_path / "store"
    journal = killed(paths, target) / "journal.jsonl"
    for cut in (1, 40):
        journal.write_bytes(journal.read_bytes()[:-cut])
        in_child(build_and_die, paths, target, 1)
    fresh = GenomeStore.build(paths, tmp_path / "fresh")
    assert GenomeStore.build(paths, target).record == fresh.record


def test_what_is_added_behind_a_finished_part_is_noticed(sources, tmp_path):
    """A first file that grew is another file, though all that was read of it stands there."""
    paths, target = sources("g.fa"), tmp_path / "store"
    assert in_child(build_and_die, paths, target, 33) == -signal.SIGKILL
    with paths[0].open("a") as file:
        file.write(">more\nACGT\n")
    assert "more" in GenomeStore.build(paths, target).contigs


def test_ctrl_c_keeps_what_is_finished_and_a_refusal_does_not(
    sources, tmp_path, monkeypatch, started, names_in
):
    """Only a run of inputs that cannot be used takes the partial store away."""
    paths, target = sources("g.fa"), tmp_path / "out" / "store"
    read_source = partial_store.read_source

    def interrupted(*arguments):
        for event in read_source(*arguments):
            if isinstance(event, RecordStart) and event.name == "c4":
                raise KeyboardInterrupt
            yield event

    monkeypatch.setattr(partial_store, "read_source", interrupted)
    with pytest.raises(KeyboardInterrupt):
        GenomeStore.build(paths, target)
    assert names_in(tmp_path / "out") == [".store.partial"]
    monkeypatch.setattr(partial_store, "read_source", read_source)
    started.clear()
    paths[2].write_text(">c2\nACGT\n")
    with pytest.raises(InputError, match=r"both hold a record called 'c2'"):
        GenomeStore.build(paths, target)
    assert started == ["c3", "c4", "c5", "plasmid", "c2"]
    assert names_in(tmp_path / "out") == []


def test_a_name_used_before_the_kill_is_refused_after_it(make_fasta, records, tmp_path):
    """The line of the second record is counted from the beginning of the file."""
    path = make_fasta(records, "in/g.fa")
    line = path.read_text().count("\n") + 1
    with path.open("a") as file:
        file.write(">c1\nA\n")
    assert in_child(build_and_die, [path], tmp_path / "store", 22) == -signal.SIGKILL
    with pytest.raises(InputError, match=f"line {line}: a second record is called 'c1'"):
        GenomeStore.build([path], tmp_path / "store")


def test_two_builders_after_a_kill_make_one_store(sources, tmp_path, names_in):
    """One goes on with the partial store, the other waits and uses the result."""
    paths, target = sources("g.fa"), tmp_path / "out" / "store"
    killed(paths, target)
    context = multiprocessing.get_context("fork")
    builders = [context.Process(target=GenomeStore.build, args=(paths, target)) for _ in range(4)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    assert [builder.exitcode for builder in builders] == [0] * 4
    fresh = GenomeStore.build(paths, tmp_path / "fresh")
    assert content_of(target) == content_of(fresh.directory)
    assert names_in(tmp_path / "out") == ["store"]


def test_a_preparation_killed_again_and_again_ends_as_an_unbroken_one(
    make_fasta, random_sequence, tmp_path, names_in
):
    """SIGKILL at random moments; the same call finishes with the same store and tables."""
    records = {f"c{i}": random_sequence(60_000, seed=i) for i in range(6)}
    fasta_file = make_fasta(records, "in/g.fa.gz")
    options = {"fasta": fasta_file, "length": [16, 32, 64], "progress": False}
    unbroken = prepare(PrepareOptions(output=tmp_path / "unbroken", **options)).plain()
    output, draw = tmp_path / "out", np.random.default_rng(3)
    context, kills = multiprocessing.get_context("fork"), 0
    for _ in range(8):
        process = context.Process(
            target=prepare_alone, args=(PrepareOptions(output=output, **options),)
        )
        process.start()
        time.sleep(draw.uniform(0.01, 0.25))
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
    assert kills >= 2
    prepare(PrepareOptions(output=output, **options))
    found = read_summary(output)
    assert found["genome"] == unbroken["genome"]
    for key in ("content_hash", "by_status", "n_fraction", "unused_bases", "first_rows"):
        assert [w[key] for w in found["windows"]] == [w[key] for w in unbroken["windows"]]
    assert names_in(output) == names_in(tmp_path / "unbroken")


def test_an_interrupted_command_says_that_it_can_go_on(make_fasta, tmp_path, monkeypatch, capsys):
    """Ctrl-C ends with exit status 130, and the same command finishes."""
    arguments = [
        "prepare", f"fasta={make_fasta({'c': 'ACGT' * 500})}", f"output={tmp_path / 'out'}",
        "length=[100]", "progress=false",
    ]  # fmt: skip

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(prepare_module, "window_batches", interrupted)
        assert cli.run(arguments) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert not (tmp_path / "out" / "summary.json").exists()
    built = (tmp_path / "out" / "genome" / "bases.u8").stat().st_ino
    assert cli.run(arguments) == 0
    assert (tmp_path / "out" / "genome" / "bases.u8").stat().st_ino == built
