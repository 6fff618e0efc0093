"""The page as a file: whole, closed to the outside, and with the numbers that it was made from."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.image import imread

from fracdna import cli
from fracdna.report.elements import printable
from fracdna.report.tables import MOST_ROWS, Column, Table, fixed, table_element
from fracdna.report.training_sections import MOST_POINTS, gathered
from fracdna.training.curve import CurvePoint

EMPTY = {"meta", "link", "br", "img", "input", "hr"}
SECTIONS = (
    "summary length positions gains classes chromosomes differences streams training throughput "
    "spectra orders settings"
)
FIGURES = (
    "perplexity fixed positions gains classes chromosomes differences differences-counts streams-1 "
    "training training-time learning-rate throughput spectra-1 orders-alpha orders-lam orders-clock"
)


class Page(HTMLParser):
    """A page read strictly: every tag closes where it should."""

    def __init__(self, path: Path):
        super().__init__()
        self.open, self.attributes, self.ids, self.tags, self.text = [], [], [], [], ""
        self.feed(path.read_text(encoding="utf-8"))
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data + "\n"


@pytest.fixture(scope="module")
def page(full_report):
    return Page(full_report / "index.html")


def test_every_part_is_there_with_its_picture(page, full_report):
    """All sections and figures, each id once, and a PNG with something on it for each figure."""
    keys = [*SECTIONS.split(), *(f"chart-{key}" for key in FIGURES.split()), "theme"]
    assert sorted(page.ids) == sorted(keys)
    assert {path.stem for path in full_report.glob("*.png")} == set(FIGURES.split())
    for path in full_report.glob("*.png"):
        assert imread(path)[..., :3].std() > 0.01
    assert sorted(p.suffix for p in full_report.iterdir() if p.suffix != ".png") == [".html"]


def test_nothing_is_asked_of_the_outside(page, full_report):
    """No address but places in the page, one script and one style, both named by the policy."""
    for name, value in page.attributes:
        assert name not in ("src", "srcset", "action", "style")
        assert not name.startswith("on")
        if name == "href":
            assert value[0] == "#"
            assert value[1:] in page.ids
    text = (full_report / "index.html").read_text()
    assert re.findall(r"https?://|url\(|@import", text) == []
    policy = next(v for n, v in page.attributes if n == "content" and "default-src" in v)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert page.tags.count("style") == 1


def test_names_are_text(page, hostile):
    """The hostile name is shown letter by letter, and makes no tag; each run has a name."""
    assert printable(hostile) in page.text
    assert "img" not in page.tags
    assert "b" not in page.tags
    assert "a/frac" in page.text
    assert "b/frac" in page.text
    assert "b/frac: running or interrupted at step 120 of 120" in page.text


def test_the_numbers_are_those_of_the_tables(page):
    """Perplexities, bases, paired differences with their intervals, who is best and by how much."""
    for place, length in enumerate((1024, 2048, 4096)):
        assert f"{math.exp(1.30 - 0.004 * place):.4f}" in page.text
        assert f"{length:,}" in page.text
    assert "90,000" in page.text
    assert "[-0.02510, -0.02310]" in page.text
    headline = f"first\n has a perplexity of {math.exp(1.292):.4f} in windows of 4,096 bases"
    assert headline in page.text
    assert "0.0241 nats per base (95 %: 0.0231 to 0.0251) below" in page.text
    assert "best at 3 of 3 lengths" in page.text


def test_missing_parts_are_left_out(tmp_path, write_run):
    """One run alone, its checkpoints unopened: no evaluation, no spectra, no empty column."""
    run = write_run(tmp_path / "run")
    words = [str(run), f"output={tmp_path / 'page'}", "spectra=false"]
    assert cli.run(["report", *words]) == cli.FINE
    page = Page(tmp_path / "page" / "index.html")
    assert sorted(x for x in page.ids if x in SECTIONS.split()) == [
        "settings",
        "summary",
        "throughput",
        "training",
    ]
    assert "parameters" not in page.text


def test_a_run_without_rows_is_shown(tmp_path, write_run):
    run = write_run(tmp_path / "run", rows=0, complete=False)
    assert cli.run(["report", str(run), f"output={tmp_path / 'page'}", "spectra=false"]) == cli.FINE
    assert "No step has been recorded yet." in Page(tmp_path / "page" / "index.html").text


def test_a_damaged_checkpoint_is_told_and_the_rest_is_shown(tmp_path, write_run, capsys):
    """Exit code 1; the page and the terminal say which and why."""
    run = write_run(tmp_path / "run", checkpoint=True)
    (run / "checkpoints" / "best.ckpt").write_bytes(b"damaged")
    assert cli.run(["report", str(run), f"output={tmp_path / 'page'}"]) == cli.ROW_PROBLEMS
    assert "not a readable checkpoint" in capsys.readouterr().out
    page = Page(tmp_path / "page" / "index.html")
    assert "not a readable checkpoint" in page.text
    assert "training" in page.ids


def test_the_data_of_a_chart_is_below_it(page, full_report):
    """Every number of a curve's file stands in the table of its figure."""
    text = (full_report / "index.html").read_text()
    figure = text[text.index('<figure id="chart-gains">') :].partition("</figure>")[0]
    for value in ("0.005", "0.015", "2,048", "5,000"):
        assert f">{value}</td>" in figure
    values = json.loads(re.search(r"<script[^>]*>(.*?)</script>", figure, re.DOTALL)[1])
    assert [curve["x"] for curve in values] == [[1024, 2048, 4096]] * 2
    assert values[0]["text"][0] == "0.01 (0.005 to 0.015)"


def test_groups_with_and_without_intervals_stand_together(page, full_report):
    """A group in one region alone has a dot, the others whiskers too; GC fifths say their range."""
    text = (full_report / "index.html").read_text()
    figure = text[text.index('<figure id="chart-classes">') :].partition("</figure>")[0]
    values = json.loads(re.search(r"<script[^>]*>(.*?)</script>", figure, re.DOTALL)[1])
    first = [curve for curve in values if curve["name"] == "first"]
    assert [len(curve["x"]) for curve in first] == [7, 1]
    assert first[1]["at"] == ["GC fifth 5"]
    assert "(" not in first[1]["text"][0]
    assert all("(" in entry for entry in first[0]["text"])
    assert "GC 33.1 to 40.0 %" in first[0]["at"]
    assert "no gains of <other>: its training length is unknown" in page.text


def test_a_stream_is_broken_where_nothing_is_known(full_report):
    """Blocks of N alone end a curve: no line leads across them."""
    text = (full_report / "index.html").read_text()
    figure = text[text.index('<figure id="chart-streams-1">') :].partition("</figure>")[0]
    values = json.loads(re.search(r"<script[^>]*>(.*?)</script>", figure, re.DOTALL)[1])
    assert [c["x"] for c in values if c["name"] == "first"] == [[0.5, 1.5], [3.5, 4.5, 5.5]]


def test_long_curves_are_gathered_by_their_bases():
    """A point of several rows has the loss of all their bases and the rate of all their time."""
    rows = [
        CurvePoint(n, 100 * n, 0.1, n, 50.0 if n % 2 else 100.0, 1e-3, 10 if n % 2 else 30, n % 2)
        for n in range(1, 2 * MOST_POINTS + 1)
    ]
    points = gathered(rows)
    assert len(points) == MOST_POINTS
    assert points[0].bases == 200
    assert points[0].train_nll == pytest.approx(10 / 40)
    assert points[0].train_perplexity == pytest.approx(math.exp(0.25))
    assert points[0].bases_per_second == pytest.approx(2 / (1 / 50 + 1 / 100))
    assert gathered(rows[:5]) == [
        row if row.train_nll is None else gathered([row])[0] for row in rows[:5]
    ]


def test_large_tables_say_where_the_rest_is():
    made = table_element(
        Table([Column("n")], [[fixed(n)] for n in range(MOST_ROWS + 3)], source="f")
    )
    assert len(made.findall(".//tbody/tr")) == MOST_ROWS
    assert "3 more rows are in f" in "".join(made.itertext())


def test_options_that_differ_are_shown(tmp_path, write_run):
    """And no others; all of them stand in the list of each run."""
    runs = [write_run(tmp_path / name, seed=seed) for name, seed in (("a", 11), ("b", 22))]
    words = [*map(str, runs), f"output={tmp_path / 'page'}", "spectra=false"]
    assert cli.run(["report", *words]) == cli.FINE
    text = Page(tmp_path / "page" / "index.html").text
    table = text[text.index("options in which the runs differ") : text.index("All options of a")]
    assert "seed" in table
    assert "22" in table
    assert "data.length" not in table
    assert "data.length = 1024" in text


def test_the_command_takes_folders_by_place_or_by_name(tmp_path, write_run, monkeypatch, capsys):
    """Names that look like options need a ./, interpolations are text, both ways are refused."""
    monkeypatch.chdir(tmp_path)
    for name in ("lr=1", "${x}"):
        write_run(tmp_path / name)
    assert cli.run(["report", "./lr=1", "${x}", "output=page", "spectra=false"]) == cli.FINE
    text = Page(tmp_path / "page" / "index.html").text
    assert "lr=1" in text
    assert "${x}" in text
    assert cli.run(["report", "runs='./lr=1'", "output=other", "spectra=false"]) == cli.FINE
    assert cli.run(["report", "./lr=1", "runs=[./other]", "output=third"]) == cli.REFUSED
    assert "name all of them in one way" in capsys.readouterr().err


def figure(folder, key):
    """A figure of a page, and the values of its curves."""
    text = (folder / "index.html").read_text()
    part = text[text.index(f'<figure id="chart-{key}">') :].partition("</figure>")[0]
    return part, json.loads(re.search(r"<script[^>]*>(.*?)</script>", part, re.DOTALL)[1])


def test_count_models_stand_apart_from_networks(full_report, hostile):
    """Differences between networks are not pressed flat by those to count models."""
    between = figure(full_report, "differences")[1]
    assert [curve["name"] for curve in between] == [printable(hostile)]
    assert [float(text.split()[0]) for text in between[0]["text"]] == pytest.approx(
        [0.021, 0.022, 0.0241], abs=1e-4
    )
    part, counts = figure(full_report, "differences-counts")
    assert "Paired difference to counts, 2 bases back (the best)" in part
    assert [curve["name"] for curve in counts] == ["first", printable(hostile)]
    assert all(text.startswith("-0.0") for text in counts[0]["text"])


def test_bases_of_an_evaluation_are_those_of_one_strand(tmp_path, write_evaluation):
    """Rows of both strands together count twice as many; one base is no bases."""
    folder = write_evaluation(tmp_path / "results", {"first": 1.3})
    path = folder / "table.csv"
    head, *rows = path.read_text().splitlines()
    both = [row.replace("forward", "average").replace("90000", "180000") for row in rows]
    path.write_text("\n".join([head, *rows, *both, ""]))
    assert cli.run(["report", str(folder), f"output={tmp_path / 'page'}"]) == cli.FINE
    text = Page(tmp_path / "page" / "index.html").text
    assert "90,000" in text
    assert "180,000" not in text
    assert "counts, 1 base back" in text
    assert "1 bases" not in text


def test_short_contigs_are_told_in_kb(tmp_path, write_evaluation):
    folder = write_evaluation(tmp_path / "results", {"first": 1.3})
    path = folder / "streams.csv"
    path.write_text(path.read_text().replace("000000,", "000,"))
    assert cli.run(["report", str(folder), f"output={tmp_path / 'page'}"]) == cli.FINE
    part, values = figure(tmp_path / "page", "streams-1")
    assert "position (kb)" in part
    assert [c["x"] for c in values] == [[0.5, 1.5], [3.5, 4.5, 5.5]] * 2
