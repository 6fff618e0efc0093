import io
import sys

import pytest

from fracdna_prep.progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("stream", "seconds"), [(Terminal(), 0.1), (io.StringIO(), 15)])
def test_a_log_gets_fewer_lines_than_a_terminal(stream, seconds, monkeypatch):
    """Every state of the bar is a line of a log, so there it is drawn four times a minute."""
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar(2_000_000, "genome store") as bar:
        bar.update(1_500_000)
        bar.refresh()
        assert bar.mininterval == seconds
        assert bar.maxinterval >= seconds
    shown = stream.getvalue()
    assert "genome store" in shown
    assert "1.50M/2.00M" in shown
    assert "base/s" in shown


def test_a_bar_may_be_hidden(monkeypatch):
    """The caller need not ask whether there is one."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar(10, "genome store", shown=False) as bar:
        bar.update(10)
    assert stream.getvalue() == ""
