"""HTML and SVG as a tree: what is text or an attribute is escaped when the tree is written."""

import json
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

Child = Element | str | None


def element(tag: str, *children: Child, **attributes: object) -> Element:
    """One element.

    Args:
        tag: its name.
        children: elements and texts in order; None is left out.
        attributes: a trailing underscore is dropped (class_), others become hyphens (data_sort);
            None is left out.
    """
    named = {
        name.rstrip("_").replace("_", "-"): str(value)
        for name, value in attributes.items()
        if value is not None
    }
    made = Element(tag, named)
    for child in children:
        add(made, child)
    return made


def add(parent: Element, child: Child) -> None:
    """Put an element or a text behind what a parent holds."""
    if isinstance(child, str):
        if len(parent):
            parent[-1].tail = (parent[-1].tail or "") + child
        else:
            parent.text = (parent.text or "") + child
    elif child is not None:
        parent.append(child)


def embedded(value: Any, **attributes: object) -> Element:
    """Plain values for scripts: JSON that no text in it can end, and that is never run."""
    # what stands in a script is written as it is: with < as an escape of JSON none can be closed
    text = json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return element("script", text, type="application/json", **attributes)


def document(root: Element) -> bytes:
    """A whole page in UTF-8."""
    text = ElementTree.tostring(root, encoding="unicode", method="html")
    return f"<!DOCTYPE html>\n{text}\n".encode()


def printable(text: str) -> str:
    """A name as it can be shown: what no letter stands for becomes a question mark."""
    return "".join(x if x.isprintable() else "\N{REPLACEMENT CHARACTER}" for x in text)
