"""The page: one file that asks for nothing, runs only its own script and shows any name as text."""

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from xml.etree.ElementTree import Element

import fracdna
from fracdna.report.elements import document, element
from fracdna.report.palette import style_rules
from fracdna.report.sections import Section


def page(title: str, sections: Sequence[Section], notes: Sequence[str]) -> bytes:
    """The page in UTF-8.

    Args:
        title: of the page.
        sections: in their order.
        notes: what is missing and why, shown above all.
    """
    style, script = f"{_asset('page.css')}\n{style_rules()}\n", _asset("page.js")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        element("style", style),
    )
    body = element(
        "body",
        _top(title, sections),
        element("main", _notes(notes), *(section.element() for section in sections)),
        element("footer", f"Written by fracdna {fracdna.__version__}."),
        element("script", script),
    )
    return document(element("html", head, body, lang="en"))


def _asset(name: str) -> str:
    """A file beside this one."""
    return files("fracdna.report").joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Nothing is loaded from anywhere; of what is inline only these two texts count."""
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    """A text as a policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _top(title: str, sections: Sequence[Section]) -> Element:
    """Title, theme and the way to each section."""
    links = [element("a", section.title, href=f"#{section.key}") for section in sections]
    theme = element("button", "Dark or light", type="button", id="theme")
    return element(
        "header",
        element("div", element("h1", title), theme, class_="title"),
        element("nav", *links, aria_label="sections"),
    )


def _notes(notes: Sequence[str]) -> Element | None:
    """A list, where there is something to say."""
    if not notes:
        return None
    return element("ul", *(element("li", note) for note in notes), class_="notes")
