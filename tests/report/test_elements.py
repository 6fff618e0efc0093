"""What a name can do to a page: nothing."""

import json
from html.parser import HTMLParser

import pytest

from fracdna.report.elements import document, element, embedded, printable

HARMFUL = ["<b>", "</script>", "\"'><img src=x>", "&amp;", "<!--", "a\u2028b", "Ω漢字", ""]


class Reader(HTMLParser):
    """Tags, attributes and texts of a page."""

    def __init__(self):
        super().__init__()
        self.tags, self.texts, self.attributes = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [value for _, value in attrs]

    def handle_data(self, data):
        self.texts.append(data)


@pytest.mark.parametrize("text", HARMFUL)
def test_texts_and_attributes_come_back_as_they_were(text):
    """Whatever is written is read as the same text, and as no tag."""
    reader = Reader()
    page = document(element("p", text, element("b", "x", title=text), text))
    reader.feed(page.decode())
    assert reader.tags == ["p", "b"]
    assert reader.attributes == [text]
    assert "".join(reader.texts).strip() == f"{text}x{text}"


@pytest.mark.parametrize("text", HARMFUL)
def test_embedded_values_end_no_script(text):
    """JSON in a script comes back, and nothing in it closes the script."""
    reader = Reader()
    reader.feed(document(element("p", embedded({text: [text]}), element("i"))).decode())
    assert reader.tags == ["p", "script", "i"]
    assert json.loads(reader.texts[1]) == {text: [text]}


def test_numbers_that_json_has_not_are_refused():
    with pytest.raises(ValueError, match="JSON"):
        embedded(float("nan"))


def test_what_cannot_be_shown_is_replaced():
    """Control characters, and bytes of a file name that are no text, which no file could hold."""
    assert printable("a\x00b\udcff\n") == "a\ufffdb\ufffd\ufffd"
    assert printable("Ω b") == "Ω b"


def test_attributes_are_named_as_in_html():
    text = document(element("p", class_="a", data_sort=1.5, title=None)).decode()
    assert '<p class="a" data-sort="1.5"></p>' in text
