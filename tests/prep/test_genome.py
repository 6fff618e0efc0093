import gzip
import importlib
import json
import multiprocessing
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pyfaidx
import pytest
from Bio import bgzf
from hypothesis import given
from hypothesis import strategies as st

from fracdna_prep import build_store, composition
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.vocabulary import DNA

CONTIGS = {"chr1": "ACGTTGCAAN", "chr2": "ttgaCCNN", "HLA*01:01": "G"}


@pytest.fixture
def store(make_fasta, tmp_path):
    return GenomeStore.build(make_fasta(CONTIGS), tmp_path / "store")


def letters(store, name, start, end, strand="+"):
    return DNA.decode(store.fetch(Interval(name, start, end, strand)))


def test_contigs_keep_order_names_and_lengths(store):
    """Names are text, also with colons."""
    assert store.contigs == {"chr1": 10, "chr2": 8, "HLA*01:01": 1}
    assert list(store.contigs) == list(CONTIGS)
    assert store.directory.name == "store"


def test_fetch_returns_the_interval_on_its_strand(store):
    """Upper-cased; the reverse strand is complemented and read from its own start."""
    assert letters(store, "chr1", 2, 6) == "GTTG"
    assert letters(store, "chr1", 2, 6, "-") == "CAAC"
    assert letters(store, "chr2", 0, 8, "-") == "NNGGTCAA"
    assert letters(store, "HLA*01:01", 0, 1) == "G"
    assert letters(store, "chr1", 3, 3) == ""


def test_fetched_ids_are_writable_uint8_in_memory_order(store):
    """Tensors can be made from them without a copy, on either strand."""
    for strand in "+-":
        ids = store.fetch(Interval("chr1", 0, 9, strand))
        assert ids.dtype == np.uint8
        assert ids.flags.writeable
        assert ids.flags.c_contiguous


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (8, 11), (10, 12), (5, 4), (-5, 5)])
def test_requests_beyond_a_contig_are_refused(store, start, end):
    """Case 16: the error names the request and the contig's length; nothing short comes back."""
    with pytest.raises(InputError) as refusal:
        store.fetch(Interval("chr1", start, end))
    assert f"bases {start} to {end}" in str(refusal.value)
    assert "'chr1' of 10 bases" in str(refusal.value)


def test_an_unknown_contig_is_refused_with_those_that_exist(store):
    """No positional access: contig "1" is not the second record."""
    with pytest.raises(InputError, match=r"'1' is not in .*chr1, chr2"):
        store.fetch(Interval("1", 0, 1))


def test_padding_stands_on_the_true_side_after_orientation(store):
    """A window that lacks bases on its left lacks them at the end of the other strand."""
    inside = Interval("chr1", 0, 3)
    assert DNA.decode(store.fetch_window(inside, 2, 1)) == "[PAD][PAD]ACG[PAD]"
    assert DNA.decode(store.fetch_window(inside, 2, 1, reverse=True)) == "[PAD]CGT[PAD][PAD]"
    backwards = Interval("chr1", 0, 3, "-")
    assert DNA.decode(store.fetch_window(backwards, 2, 0)) == "CGT[PAD][PAD]"
    assert DNA.decode(store.fetch_window(backwards, 2, 0, reverse=True)) == "[PAD][PAD]ACG"
    assert DNA.decode(store.fetch_window(backwards, 0, 0)) == "CGT"


def test_the_soft_mask_follows_case_and_strand(store):
    """True where the source is in lower case."""
    assert store.soft_mask(Interval("chr2", 2, 6)).tolist() == [True, True, False, False]
    assert store.soft_mask(Interval("chr2", 2, 6, "-")).tolist() == [False, False, True, True]


def test_letters_are_counted_and_ambiguous_ones_become_n(make_fasta, tmp_path):
    """Case 6: `acgtRYKMNN` gives ACGT and six N, four of them masked; R1 Y1 K1 M1 N2; no UNK."""
    store = GenomeStore.build(make_fasta({"c": "acgtRYKMNN"}), tmp_path / "store")
    ids = store.fetch(Interval("c", 0, 10))
    assert ids.tolist() == [*DNA.bases, *[DNA.n] * 6]
    assert DNA.unk not in ids
    assert store.soft_mask(Interval("c", 0, 10)).tolist() == [True] * 4 + [False] * 6
    (contig,) = store.record.contigs
    assert contig.counts == {**dict.fromkeys("ACGTRYKM", 1), "N": 2}
    assert contig.soft_masked == 4


def test_packing_does_not_change_the_content(make_fasta, tmp_path, random_sequence):
    """Case 4: plain, gzip and bgzip give one content hash and treat an overrun alike."""
    records = {f"c{i}": random_sequence(1_000 + i, seed=i) for i in range(3)}
    stores = [
        GenomeStore.build(make_fasta(records, name), tmp_path / f"store-{name}")
        for name in ("g.fa", "g.fa.gz", "g.bgz.gz")
    ]
    assert len({store.checksum for store in stores}) == 1
    kinds = [store.record.sources[0].compression for store in stores]
    assert kinds == ["plain", "gzip", "bgzip"]
    messages = set()
    for store in stores:
        assert letters(store, "c2", 999, 1_002) == records["c2"][-3:]
        with pytest.raises(InputError, match="1002 bases") as refusal:
            store.fetch(Interval("c2", 999, 1_012))
        messages.add(str(refusal.value))
    assert len(messages) == 1


def test_one_changed_base_changes_the_hash(make_fasta, tmp_path, random_sequence):
    """Case 9: twice the same from the same input, another after one base; provenance recorded."""
    sequence = random_sequence(5_000)
    path = make_fasta({"c": sequence})
    first, again = (GenomeStore.build(path, tmp_path / name) for name in ("a", "b"))
    (source,) = first.record.sources
    assert (source.name, source.bytes) == (path.name, path.stat().st_size)
    assert len(source.sha256) == 64
    changed = sequence[:2_500] + ("A" if sequence[2_500] != "A" else "C") + sequence[2_501:]
    other = GenomeStore.build(make_fasta({"c": changed}, "other.fa"), tmp_path / "c")
    masked = GenomeStore.build(make_fasta({"c": sequence.lower()}, "low.fa"), tmp_path / "d")
    assert first.checksum == again.checksum
    assert len({first.checksum, other.checksum, masked.checksum}) == 3


def test_order_and_names_of_files_do_not_change_the_content(make_fasta, tmp_path):
    """Case 8: two files make one store, whose hash is that of its contigs."""
    one, two = make_fasta({"a": "ACGT", "b": "GG"}, "1.fa"), make_fasta({"c": "TTT"}, "2.fa")
    forward = GenomeStore.build([one, two], tmp_path / "forward")
    backward = GenomeStore.build([two, one], tmp_path / "backward")
    assert list(forward.contigs) == ["a", "b", "c"]
    assert list(backward.contigs) == ["c", "a", "b"]
    assert forward.checksum == backward.checksum
    assert letters(backward, "b", 0, 2) == "GG"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_parallel_readers_get_the_right_bases(
    method, make_fasta, tmp_path, random_sequence, monkeypatch
):
    """Case 1: 4 workers, 3,000 reads of 5 kb each, all right, one opening a process."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    store_readers = importlib.import_module("store_readers")
    texts = {f"c{i}": random_sequence(400_000, seed=i) for i in range(4)}
    store = GenomeStore.build(make_fasta(texts), tmp_path / "store")
    store.fetch(Interval("c0", 0, 10))
    context = multiprocessing.get_context(method)
    results = context.SimpleQueue()
    processes = [
        context.Process(
            target=store_readers.count_wrong_reads, args=(store, texts, seed, 3_000, results)
        )
        for seed in range(4)
    ]
    for process in processes:
        process.start()
    assert [results.get() for _ in processes] == [(0, 1)] * 4
    for process in processes:
        process.join()


def test_others_may_read_a_store(make_fasta, tmp_path):
    """Folder and files get the usual permissions."""
    mask = os.umask(0o022)
    try:
        store = GenomeStore.build(make_fasta(CONTIGS), tmp_path / "store")
    finally:
        os.umask(mask)
    modes = {path.name: path.stat().st_mode & 0o777 for path in store.directory.iterdir()}
    assert modes == {"bases.u8": 0o644, "store.json": 0o644}
    assert store.directory.stat().st_mode & 0o777 == 0o755


def test_what_travels_is_the_path_and_the_metadata(store):
    """A pickled store is small and opens its own map."""
    store.fetch(Interval("chr1", 0, 5))
    packed = pickle.dumps(store)
    assert len(packed) < 4_000
    assert letters(pickle.loads(packed), "chr1", 0, 4) == "ACGT"


def _build_and_look(path, directory, barrier, results):
    barrier.wait()
    store = GenomeStore.build(path, directory)
    results.put((store.checksum, (directory / "bases.u8").stat().st_ino))


def test_eight_builders_make_one_store(
    make_fasta, tmp_path, random_sequence, monkeypatch, names_in
):
    """Case 2: one builds, the others wait and reuse; no partial file is left."""
    path = make_fasta({"c": random_sequence(300_000)}, "source/genome.fa")
    log = tmp_path / "log"
    read = build_store._read

    def logged(*arguments):
        with log.open("a") as file:
            file.write("built\n")
        read(*arguments)

    monkeypatch.setattr(build_store, "_read", logged)
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(8), context.SimpleQueue()
    target = tmp_path / "out" / "store"
    processes = [
        context.Process(target=_build_and_look, args=(path, target, barrier, results))
        for _ in range(8)
    ]
    for process in processes:
        process.start()
    seen = {results.get() for _ in processes}
    for process in processes:
        process.join()
    assert len(seen) == 1
    assert log.read_text() == "built\n"
    assert names_in(tmp_path / "out") == ["store"]
    assert names_in(target) == ["bases.u8", "store.json"]


@pytest.mark.parametrize("packed", ["g.fa", "g.bgz.gz"])
@pytest.mark.parametrize("indexed", [False, True])
def test_a_read_only_genome_is_read_and_left_alone(
    packed, indexed, make_fasta, open_folder, without_privileges, names_in
):
    """Case 3: works with and without an index beside it, and writes nothing there."""
    source = open_folder / "readonly"
    source.mkdir()
    shutil.copy(make_fasta(CONTIGS, packed), source / packed)
    if indexed:
        make_index(source / packed)
    before = names_in(source)
    source.chmod(0o555)
    work = open_folder / "work"
    work.mkdir()
    work.chmod(0o777)
    checksum = without_privileges(
        lambda: GenomeStore.build(source / packed, work / "store").checksum
    )
    assert names_in(source) == before
    assert checksum == GenomeStore.build(source / packed, open_folder / "again").checksum


def test_a_store_with_nowhere_to_go_says_permission(make_fasta, open_folder, without_privileges):
    """Case 3: not "no such file"."""
    source = open_folder / "genome.fa"
    shutil.copy(make_fasta(CONTIGS), source)
    open_folder.chmod(0o555)
    with pytest.raises(InputError, match="permission"):
        without_privileges(lambda: GenomeStore.build(source, open_folder / "store"))


def make_index(path):
    pyfaidx.Faidx(path).close()


def test_an_index_beside_the_genome_is_not_needed_and_not_believed(make_fasta, tmp_path, names_in):
    """Without one, with a good one, and with the index of another file: the same store."""
    path = make_fasta(CONTIGS, "in/genome.fa")
    alone = GenomeStore.build(path, tmp_path / "alone")
    make_index(path)
    other = make_fasta({**CONTIGS, "chr1": "ACGTTGCAA"}, "other.fa")
    make_index(other)
    assert GenomeStore.build(path, tmp_path / "indexed").checksum == alone.checksum
    shutil.copy(f"{other}.fai", f"{path}.fai")
    assert GenomeStore.build(path, tmp_path / "wrong").checksum == alone.checksum
    assert names_in(path.parent) == ["genome.fa", "genome.fa.fai"]


def test_a_complete_store_is_reused_and_never_replaced(make_fasta, tmp_path):
    """The same sources reuse it, wherever they lie; others are refused with the remedy."""
    path = make_fasta(CONTIGS)
    first = GenomeStore.build(path, tmp_path / "store")
    written = (tmp_path / "store" / "bases.u8").stat().st_mtime_ns
    moved = make_fasta(CONTIGS, "elsewhere/renamed.fasta")
    assert GenomeStore.build(moved, tmp_path / "store").checksum == first.checksum
    assert (tmp_path / "store" / "bases.u8").stat().st_mtime_ns == written
    other = make_fasta({"x": "ACGT"}, "other.fa")
    with pytest.raises(InputError, match=r"other sources \(genome.fa\).*remove that folder"):
        GenomeStore.build(other, tmp_path / "store")


def test_a_folder_in_use_is_no_place_for_a_store(make_fasta, tmp_path):
    """Somebody's files are not overwritten; an empty folder is fine."""
    path = make_fasta(CONTIGS)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(InputError, match="no complete genome store"):
        GenomeStore.build(path, tmp_path / "mine")
    (tmp_path / "empty").mkdir()
    assert GenomeStore.build(path, tmp_path / "empty").contigs["chr1"] == 10


def test_a_store_without_its_record_does_not_exist(make_fasta, tmp_path, store):
    """A missing, damaged or foreign store.json is refused; so is a shortened bases file."""
    with pytest.raises(InputError, match="no complete genome store"):
        GenomeStore(tmp_path / "nowhere")
    bases = store.directory / "bases.u8"
    bases.write_bytes(bases.read_bytes()[:-1])
    with pytest.raises(InputError, match="18 bytes instead of 19"):
        GenomeStore(store.directory)
    with pytest.raises(InputError, match="18 bytes instead of 19"):
        store.fetch(Interval("chr1", 0, 1))
    bases.unlink()
    with pytest.raises(InputError, match="missing"):
        GenomeStore(store.directory)
    record = store.directory / "store.json"
    record.write_text(json.dumps({"format": "fracdna genome store", "version": 99}))
    with pytest.raises(InputError, match="version 99"):
        GenomeStore(store.directory)
    for content in ("{", '{"format": "fracdna genome store", "version": 1}'):
        record.write_text(content)
        with pytest.raises(InputError, match="damaged"):
            GenomeStore(store.directory)


def test_a_store_that_may_not_be_read_says_permission(make_fasta, open_folder, without_privileges):
    """Permission problems are reported as such."""
    directory = GenomeStore.build(make_fasta(CONTIGS), open_folder / "store").directory
    (directory / "bases.u8").chmod(0o000)
    with pytest.raises(InputError, match="permission"):
        without_privileges(lambda: GenomeStore(directory).fetch(Interval("chr1", 0, 1)))
    (directory / "store.json").chmod(0o000)
    with pytest.raises(InputError, match="permission"):
        without_privileges(lambda: GenomeStore(directory))


def test_verify_finds_a_flipped_bit(store):
    """The contig is named; an edited record is found too."""
    assert store.verify() == store.checksum
    bases = store.directory / "bases.u8"
    content = bytearray(bases.read_bytes())
    content[12] ^= 1
    bases.write_bytes(content)
    with pytest.raises(InputError, match="'chr2'"):
        store.verify()
    content[12] ^= 1
    bases.write_bytes(content)
    record = store.directory / "store.json"
    record.write_text(record.read_text().replace('"chr2"', '"chr3"'))
    with pytest.raises(InputError, match="was changed"):
        GenomeStore(store.directory).verify()


def test_a_failed_build_leaves_nothing(make_fasta, tmp_path, monkeypatch, names_in):
    """Where nothing was finished nothing is kept; leftovers of earlier versions are cleared."""
    path = make_fasta(CONTIGS, "in/genome.fa")
    target = tmp_path / "out" / "store"

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(build_store, "_read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        GenomeStore.build(path, target)
    assert names_in(tmp_path / "out") == []
    monkeypatch.undo()
    (tmp_path / "out" / ".store.partial-dead").mkdir()
    (tmp_path / "out" / ".store.lock").touch()
    GenomeStore.build(path, target)
    assert names_in(tmp_path / "out") == ["store"]


def test_the_bases_that_are_stored_are_those_that_were_checked(make_fasta, tmp_path):
    """A source is read once: what changes in it afterwards is neither stored nor recorded."""
    path = make_fasta(CONTIGS)
    before = GenomeStore.build(path, tmp_path / "before")
    with build_store.store_draft(path, tmp_path / "store") as draft:
        assert not (tmp_path / "store").exists()
        make_fasta({**CONTIGS, "chr1": "ACGTTGCAAA"})
        draft.publish()
    store = GenomeStore(tmp_path / "store")
    assert store.record == before.record
    assert store.verify() == before.checksum
    with pytest.raises(InputError, match="other sources"):
        GenomeStore.build(path, tmp_path / "store")


@given(data=st.data())
def test_counts_of_many_intervals_equal_counts_of_each(data, tmp_path_factory):
    """Block-wise sums give what slicing the text gives, at every bound."""
    sequence = data.draw(st.text(alphabet="ACGTNacgtn", min_size=1, max_size=200))
    ends = data.draw(st.lists(st.integers(0, len(sequence)), max_size=20))
    pairs = [sorted((end, data.draw(st.integers(0, len(sequence))))) for end in ends]
    folder = tmp_path_factory.mktemp("counts")
    (folder / "g.fa").write_text(f">a\nNNNN\n>c\n{sequence}\n>z\nnn\n")
    store = GenomeStore.build(folder / "g.fa", folder / "store")
    starts, stops = (np.array([pair[i] for pair in pairs], dtype=np.int64) for i in (0, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(composition, "_BLOCK", data.draw(st.sampled_from([64, 128, 1 << 17])))
        n_count, masked = store.count_n_and_masked("c", starts, stops)
    pieces = [sequence[a:b] for a, b in pairs]
    assert n_count.tolist() == [piece.upper().count("N") for piece in pieces]
    assert masked.tolist() == [sum(map(str.islower, piece)) for piece in pieces]


def test_counts_cross_blocks(make_fasta, tmp_path, random_sequence):
    """Contigs longer than one block are summed through."""
    sequence = random_sequence(2_500_000, letters="ACGTNn")
    store = GenomeStore.build(make_fasta({"c": sequence}), tmp_path / "store")
    starts = np.array([0, 1_048_575, 1_048_576, 5, 2_499_999])
    ends = np.array([2_500_000, 1_048_577, 2_097_152, 5, 2_500_000])
    n_count, masked = store.count_n_and_masked("c", starts, ends)
    for start, end, n, low in zip(starts, ends, n_count, masked, strict=True):
        piece = sequence[start:end]
        assert (n, low) == (piece.count("N") + piece.count("n"), piece.count("n"))


def test_records_without_bases_are_contigs_of_length_zero(tmp_path):
    """They can be listed, and nothing can be fetched from them."""
    (tmp_path / "g.fa").write_text(">empty\n>c\nAC\n>last\n")
    store = GenomeStore.build(tmp_path / "g.fa", tmp_path / "store")
    assert store.contigs == {"empty": 0, "c": 2, "last": 0}
    assert store.fetch(Interval("empty", 0, 0)).shape == (0,)
    (tmp_path / "none.fa").write_text(">empty\n")
    nothing = GenomeStore.build(tmp_path / "none.fa", tmp_path / "nothing")
    assert nothing.fetch(Interval("empty", 0, 0)).shape == (0,)


def test_a_store_of_plain_values_describes_itself(store):
    """store.json and .metadata hold counts, sources and format, for people and programs."""
    content = json.loads((store.directory / "store.json").read_text())
    assert content["contigs"] == json.loads(json.dumps(store.metadata["contigs"]))
    assert content["length"] == 19
    assert (content["format"], content["version"]) == ("fracdna genome store", 1)


def test_a_progress_bar_goes_to_the_error_stream(make_fasta, tmp_path, capsys):
    """Only when asked for; it counts the bytes of the sources."""
    path = make_fasta(CONTIGS)
    GenomeStore.build(path, tmp_path / "quiet")
    assert capsys.readouterr().err == ""
    GenomeStore.build(path, tmp_path / "loud", progress=True)
    shown = capsys.readouterr().err
    assert "genome store: 100%" in shown
    assert f"/{path.stat().st_size}.0 " in shown
    assert "B/s" in shown


def test_a_wrong_suffix_does_not_mislead(make_fasta, tmp_path):
    """Packing is told by content: a bgzip file called .fa, plain text called .gz."""
    plain, packed = make_fasta(CONTIGS), make_fasta(CONTIGS, "g.bgz.gz")
    (tmp_path / "b.fa").write_bytes(packed.read_bytes())
    (tmp_path / "p.fa.gz").write_bytes(plain.read_bytes())
    (tmp_path / "z.fa").write_bytes(gzip.compress(plain.read_bytes()))
    checksums = {
        GenomeStore.build(tmp_path / name, tmp_path / f"store-{name}").checksum
        for name in ("b.fa", "p.fa.gz", "z.fa", plain.name)
    }
    assert len(checksums) == 1


@pytest.mark.parametrize("name", ["g.fa", "g.fa.gz", "g.fa.bgz.gz"])
def test_a_byte_order_mark_before_the_first_record_is_passed_over(name, make_fasta, tmp_path):
    """However the file is packed, the store is that of the file without the mark."""
    plain = GenomeStore.build(make_fasta(CONTIGS, name), tmp_path / "plain")
    marked = tmp_path / "marked" / name
    marked.parent.mkdir()
    content = b"\xef\xbb\xbf" + make_fasta(CONTIGS, "text.fa").read_bytes()
    if name.endswith(".bgz.gz"):
        with bgzf.BgzfWriter(str(marked), "wb") as writer:
            writer.write(content)
    else:
        marked.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    store = GenomeStore.build(marked, tmp_path / "store")
    assert store.checksum == plain.checksum
    assert store.contigs == plain.contigs
