"""Parts of the page: a heading, sentences, charts and tables below it."""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from fracdna.report.charts import Chart
from fracdna.report.elements import element
from fracdna.report.svg import figure_element
from fracdna.report.tables import Table, table_element

Block = Chart | Table | str | Element


@dataclass(frozen=True)
class Section:
    """One part of the page.

    Attributes:
        key: of its place in the page.
        title: its heading.
        blocks: texts become paragraphs.
    """

    key: str
    title: str
    blocks: Sequence[Block]

    def charts(self) -> list[Chart]:
        """Its charts, which are PNGs too."""
        return [block for block in self.blocks if isinstance(block, Chart)]

    def element(self) -> Element:
        """The part as HTML."""
        shown = [_shown(block) for block in self.blocks]
        return element("section", element("h2", self.title), *shown, id=self.key)


def _shown(block: Block) -> Element:
    """One block as HTML."""
    if isinstance(block, Chart):
        return figure_element(block)
    if isinstance(block, Table):
        return table_element(block)
    return element("p", block) if isinstance(block, str) else block
