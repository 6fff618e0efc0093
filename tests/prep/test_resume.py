import errno
import itertools
import json
import multiprocessing
import os
import resource
import shutil
import signal
import threading
import time

import numpy as np
import pytest
from tqdm import tqdm

from fracdna import cli
from fracdna_prep import build_store, fasta, journal, partial_store
from fracdna_prep import prepare as prepare_module
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.prepare import PrepareOptions, prepare, read_summary
from fracdna_prep.store_layout import RecordStart, StoreRecord

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


def lines_of(folder):
    """The journal of a partial store as plain values; it begins when something is finished."""
    path = folder / "journal.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def finished_in(target):
    """The contigs that a later builder need not read."""
    lines = lines_of(build_store.partial_folder(target))
    return [contig["name"] for line in lines for contig in line["contigs"]]


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
    finished = finished_in(target)
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
        assert len(finished_in(target)) == contigs


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
    points = journal.Journal.read(folder / "journal.jsonl").checkpoints
    (folder / "journal.jsonl").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "VERSION", 99)
        other = journal.Journal(folder / "journal.jsonl")
        for point in points:
            other.append(point)
        assert journal.Journal.read(folder / "journal.jsonl").checkpoints == points


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
    everything = [f"c{i}" for i in range(6)] + ["plasmid", "c2"]
    assert started == everything[3:] + everything  # from its beginning before it is blamed
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


@pytest.fixture
def killed_build(sources, tmp_path):
    """The sources of a build that was killed, and copies of what it left."""
    paths, first = sources("g.fa"), tmp_path / "killed" / "store"
    left, copies = killed(paths, first), itertools.count()
    assert len(lines_of(left)) >= 3

    def copy():
        target = tmp_path / str(next(copies)) / "store"
        shutil.copytree(left, build_store.partial_folder(target))
        return target

    return paths, copy


@pytest.fixture
def unbroken(sources, tmp_path):
    """What a build without interruption makes of them."""
    return content_of(GenomeStore.build(sources("g.fa"), tmp_path / "unbroken").directory)


NO_JOURNALS = (
    b"", b"null\n", b"5\n", b'"a"\n', b"{}\n", b"\n", b"\xff\xfe\n", b"[" * 100_000 + b"\n",
)  # fmt: skip


@pytest.mark.parametrize("content", NO_JOURNALS, ids=range(len(NO_JOURNALS)))
def test_what_is_no_journal_is_read_over(content, killed_build, unbroken, started):
    """Whatever a damaged disk makes of its text."""
    paths, copy = killed_build
    target = copy()
    (build_store.partial_folder(target) / "journal.jsonl").write_bytes(content)
    started.clear()
    store = GenomeStore.build(paths, target)
    assert started == list(store.contigs)
    assert content_of(target) == unbroken


@pytest.mark.parametrize("value", ["a", None, 1.5, -7, [], {}, [{"name": 5}]], ids=str)
def test_a_field_of_another_kind_is_never_trusted(value, killed_build, unbroken, started):
    """In each field of a line, of a contig and of a source, and where a field is missing."""
    paths, copy = killed_build
    for field in ("source", "position", "line", "read", "sha256", "contigs", "finished"):
        check_anew(paths, copy(), unbroken, started, lambda line, f=field: line.update({f: value}))
        check_anew(paths, copy(), unbroken, started, lambda line, f=field: line.pop(f))
    for field in ("name", "length", "offset", "sha256", "counts", "soft_masked"):
        check_anew(
            paths, copy(), unbroken, started,
            lambda line, f=field: line["contigs"][0].update({f: value}),
        )  # fmt: skip


def check_anew(paths, target, unbroken, started, change):
    """A changed first line of the journal makes a builder read everything again."""
    folder = build_store.partial_folder(target)
    lines = lines_of(folder)
    before = json.dumps(lines)
    change(lines[0])
    started.clear()
    if json.dumps(lines) == before:
        return
    write_lines(folder, lines)
    store = GenomeStore.build(paths, target)
    assert started == list(store.contigs)
    assert content_of(target) == unbroken


def write_lines(folder, lines):
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def into_a_record(lines, source):
    lines[-1]["position"] += 7


def to_a_later_record(lines, source):
    """Where reading can begin, but the record between would be lost."""
    del lines[2:]
    lines[1]["position"] = source.index(b"\n>", lines[1]["position"]) + 1


def another_name(lines, source):
    lines[0]["contigs"][0]["name"] = "other"


def another_count(lines, source):
    lines[0]["contigs"][0]["soft_masked"] += 1


def a_line_twice(lines, source):
    lines.append(lines[-1])


def a_line_lost(lines, source):
    del lines[1]


def another_order(lines, source):
    lines.reverse()


@pytest.mark.parametrize(
    "damage",
    [into_a_record, to_a_later_record, another_name, another_count, a_line_twice, a_line_lost,
     another_order],
)  # fmt: skip
def test_no_damage_of_the_journal_reaches_the_store(damage, killed_build, unbroken):
    """Values of the right kind too: neither is a source blamed nor a record lost."""
    paths, copy = killed_build
    target = copy()
    folder = build_store.partial_folder(target)
    lines = lines_of(folder)
    damage(lines, paths[0].read_bytes())
    write_lines(folder, lines)
    GenomeStore.build(paths, target)
    assert content_of(target) == unbroken


def a_file(folder, elsewhere):
    shutil.rmtree(folder)
    folder.write_text("text")


def a_link(folder, elsewhere):
    shutil.rmtree(folder)
    folder.symlink_to(elsewhere)


def a_link_to_nowhere(folder, elsewhere):
    shutil.rmtree(folder)
    folder.symlink_to(elsewhere / "nowhere")


def a_journal_that_is_a_folder(folder, elsewhere):
    (folder / "journal.jsonl").unlink()
    (folder / "journal.jsonl" / "deep").mkdir(parents=True)


def bases_that_are_a_folder(folder, elsewhere):
    (folder / "bases.u8").unlink()
    (folder / "bases.u8" / "deep").mkdir(parents=True)


def a_journal_that_is_a_pipe(folder, elsewhere):
    (folder / "journal.jsonl").unlink()
    os.mkfifo(folder / "journal.jsonl")


def bases_that_are_a_link(folder, elsewhere):
    bases = (folder / "bases.u8").rename(elsewhere / "bases.u8")
    (folder / "bases.u8").symlink_to(bases)


def a_folder_in_the_way(folder, elsewhere):
    (folder / "store.json" / "deep").mkdir(parents=True)
    (folder / "more").write_text("text")


@pytest.mark.parametrize(
    "damage",
    [a_file, a_link, a_link_to_nowhere, a_journal_that_is_a_folder, bases_that_are_a_folder,
     a_journal_that_is_a_pipe, bases_that_are_a_link, a_folder_in_the_way],
)  # fmt: skip
def test_whatever_stands_at_the_place_of_the_partial_store_is_removed(
    damage, killed_build, unbroken, tmp_path, names_in
):
    """It is the builder's own place; what a link leads to is somebody else's."""
    paths, copy = killed_build
    target, elsewhere = copy(), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("text")
    damage(build_store.partial_folder(target), elsewhere)
    before = {path: path.read_bytes() for path in elsewhere.iterdir()}
    GenomeStore.build(paths, target)
    assert content_of(target) == unbroken
    assert names_in(target) == ["bases.u8", "store.json"]
    assert names_in(target.parent) == ["store"]
    assert {path: path.read_bytes() for path in elsewhere.iterdir()} == before


def test_a_resumed_read_that_fails_is_tried_once_from_the_beginning(
    killed_build, unbroken, monkeypatch
):
    """The earlier builder may have been wrong; a source is blamed for what it is itself."""
    paths, copy = killed_build
    read_source, positions = partial_store.read_source, []

    def wrong_in_the_middle(path, raw, position, line):
        positions.append(position)
        if position:
            raise InputError("text before the first record")
        yield from read_source(path, raw, position, line)

    monkeypatch.setattr(partial_store, "read_source", wrong_in_the_middle)
    target = copy()
    GenomeStore.build(paths, target)
    assert content_of(target) == unbroken
    assert positions[0] > 0
    assert positions[1:] == [0, 0, 0]


NO_ROOM = [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO]


def failing(function, number, calls):
    """A function of which one call fails as the system would."""
    left = itertools.count(calls, -1)

    def call(*arguments):
        if next(left) == 0:
            raise OSError(number, os.strerror(number))
        return function(*arguments)

    return call


@pytest.mark.parametrize("number", NO_ROOM, ids=errno.errorcode.get)
@pytest.mark.parametrize("where", ["bases", "journal", "store.json"])
def test_a_full_disk_takes_nothing_away(
    where, number, sources, unbroken, tmp_path, monkeypatch, started, names_in
):
    """What is finished stays, and the same call goes on with it."""
    paths, target = sources("g.fa"), tmp_path / "out" / "store"
    owner, name, calls = {
        "bases": (partial_store._OpenContig, "add", 9),
        "journal": (journal.Checkpoint, "as_json", 2),
        "store.json": (StoreRecord, "write", 0),
    }[where]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing(getattr(owner, name), number, calls))
        words = rf"{target}.*{os.strerror(number)}.*same command again; it goes on with what is"
        with pytest.raises(InputError, match=words):
            GenomeStore.build(paths, target)
    assert names_in(tmp_path / "out") == [".store.partial"]
    finished = finished_in(target)
    everything = [f"c{i}" for i in range(6)] + ["plasmid", "last"]
    assert finished == everything[: len(everything) if where == "store.json" else 2]
    started.clear()
    GenomeStore.build(paths, target)
    assert started == everything[len(finished) :]
    assert content_of(target) == unbroken
    assert names_in(target) == ["bases.u8", "store.json"]


def with_room(size, function, *arguments):
    """Runs a function in a process whose files may not grow beyond a size; it has to say so."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    words = (
        r"\(File too large\): make room and give the same command again; it goes on with what is"
    )
    with pytest.raises(InputError, match=words):
        function(*arguments)


def test_files_that_may_not_grow_keep_what_is_finished(sources, unbroken, tmp_path, started):
    """A limit on the size of files, which any user can meet, cuts the bases file."""
    paths, target = sources("g.fa"), tmp_path / "store"
    assert in_child(with_room, 2_500, GenomeStore.build, paths, target) == 0
    assert finished_in(target) == ["c0", "c1", "c2"]
    started.clear()
    GenomeStore.build(paths, target)
    assert started[0] == "c3"
    assert content_of(target) == unbroken


@pytest.mark.parametrize("room", [9_000, 60_000])
def test_tables_without_room_keep_the_store(room, make_fasta, random_sequence, tmp_path, names_in):
    """The store, and tables that fit, are there; the same call makes the rest."""
    source = make_fasta({"c": random_sequence(8_000)}, "in/g.fa")
    options = {"fasta": source, "length": [4_000, 1], "progress": False}
    unbroken = prepare(PrepareOptions(output=tmp_path / "unbroken", **options)).plain()
    output = tmp_path / "out"
    assert in_child(with_room, room, prepare_alone, PrepareOptions(output=output, **options)) == 0
    assert not (output / "summary.json").exists()
    built = (output / "genome" / "bases.u8").stat().st_ino
    prepare(PrepareOptions(output=output, **options))
    assert (output / "genome" / "bases.u8").stat().st_ino == built
    assert names_in(output) == names_in(tmp_path / "unbroken")
    hashes = [w["content_hash"] for w in read_summary(output)["windows"]]
    assert hashes == [w["content_hash"] for w in unbroken["windows"]]


def test_a_source_that_cannot_be_read_any_more_keeps_what_is_finished(
    sources, unbroken, tmp_path, monkeypatch, started
):
    """A disk that fails in the middle of a source is named by that source."""
    paths, target = sources("g.fa"), tmp_path / "store"
    read = partial_store.read_source

    def failing_disk(path, raw, position, line):
        raw._file = FailingDisk(raw._file, 3_000)
        yield from read(path, raw, position, line)

    with monkeypatch.context() as patch:
        patch.setattr(partial_store, "read_source", failing_disk)
        with pytest.raises(InputError, match=r"g\.fa cannot be read \(Input/output error\)"):
            GenomeStore.build(paths, target)
    finished = finished_in(target)
    assert finished[:2] == ["c0", "c1"]
    started.clear()
    GenomeStore.build(paths, target)
    assert started[0] == f"c{len(finished)}"
    assert content_of(target) == unbroken


class FailingDisk:
    """A file of which nothing behind some place can be read."""

    def __init__(self, file, end):
        self._file, self._end = file, end

    def __getattr__(self, name):
        return getattr(self._file, name)

    def read(self, size=-1):
        if self._file.tell() >= self._end:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._file.read(size)


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
    began = time.monotonic()
    unbroken = prepare(PrepareOptions(output=tmp_path / "unbroken", **options)).plain()
    took = time.monotonic() - began
    output, draw = tmp_path / "out", np.random.default_rng(3)
    context, kills = multiprocessing.get_context("fork"), 0
    while kills < 4:
        process = context.Process(
            target=prepare_alone, args=(PrepareOptions(output=output, **options),)
        )
        process.start()
        time.sleep(draw.uniform(0, 0.7 * took))
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
        if process.exitcode == 0:  # faster than thought: once more from the beginning
            shutil.rmtree(output)
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
