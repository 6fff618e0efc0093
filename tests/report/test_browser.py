"""The page in a real browser: it runs, shows its curves, sorts, turns dark and fits a phone."""

import os
import shutil
from itertools import combinations

import pytest

pytest.importorskip("selenium", reason="selenium drives the browser: pip install selenium")
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

FLAGS = (
    "headless disable-gpu disable-quic no-first-run disable-background-networking "
    "disable-component-update disable-sync"
)


def find(*names):
    """The first program of these names; the test is skipped without any."""
    for path in map(shutil.which, names):
        if path:
            return path
    pytest.skip(f"no {names[0]} here: on Debian, apt-get install chromium chromium-driver")
    return None


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    browser, driver = find("chromium", "chromium-browser", "google-chrome"), find("chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    profile = tmp_path_factory.mktemp("profile")
    for flag in [*FLAGS.split(), f"user-data-dir={profile}"]:
        options.add_argument(f"--{flag}")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # which needs a user that is not root
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield running
    running.quit()


@pytest.fixture
def browser(started, full_report):
    """The page as it is on a desk, in light."""
    show(started, full_report, width=1280, theme="light")
    return started


def show(browser, report, *, width, theme):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)
    browser.get((report / "index.html").as_uri())


def one(browser, selector):
    return browser.find_element(By.CSS_SELECTOR, selector)


def column(table, place):
    """Texts of a column from top to bottom."""
    return [x.text for x in table.find_elements(By.CSS_SELECTOR, f"tbody td:nth-child({place})")]


def test_the_page_loads_without_an_error(browser):
    """Nothing in the console, no dialog of a hostile name, its own script and style allowed."""
    assert browser.get_log("browser") == []
    assert browser.title == "small models"
    assert one(browser, "h1").text == "small models"
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_the_curves_can_be_seen(browser):
    """Every figure has a drawing, and every curve a box of some size on the screen."""
    figures = browser.find_elements(By.TAG_NAME, "figure")
    assert len(figures) == 17
    for figure in figures:
        (drawing,) = [
            x for x in figure.find_elements(By.CSS_SELECTOR, ".chart") if x.is_displayed()
        ]
        assert drawing.size["width"] > 600
        curves = drawing.find_elements(By.CSS_SELECTOR, ".curve")
        assert curves
        for curve in curves:
            box = curve.rect
            assert box["width"] + box["height"] > 5
            assert drawing.rect["x"] <= box["x"] <= drawing.rect["x"] + drawing.rect["width"]
    colours = {
        x.value_of_css_property("stroke")
        for x in browser.find_elements(By.CSS_SELECTOR, "#chart-perplexity .wide path.line")
    }
    assert len(colours) == 3  # two networks, references in grey
    assert "none" not in colours


def test_a_click_on_a_head_sorts_and_a_second_one_turns(browser):
    """Numbers by value, and the head says how."""
    table = one(browser, "#differences > div table")
    head = table.find_elements(By.TAG_NAME, "th")[7]
    head.find_element(By.TAG_NAME, "button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    rising = [float(text) for text in column(table, 8)]
    assert rising == sorted(rising)
    assert len(set(rising)) > 2
    head.find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    assert head.get_attribute("aria-sort") == "descending"
    assert [float(text) for text in column(table, 8)] == rising[::-1]
    lengths = table.find_elements(By.TAG_NAME, "th")[6]
    lengths.find_element(By.TAG_NAME, "button").click()
    assert column(table, 7)[0] == "1,024"
    assert column(table, 7)[-1] == "4,096"
    assert head.get_attribute("aria-sort") == "none"


def test_texts_sort_as_words(browser):
    table = one(browser, "#settings table")
    before = column(table, 1)
    table.find_elements(By.TAG_NAME, "th")[0].find_element(By.TAG_NAME, "button").click()
    assert column(table, 1) == sorted(before, key=str.casefold)


@pytest.mark.parametrize("width", [1280, 500, 390])
def test_words_in_charts_do_not_cover_each_other(started, full_report, width):
    """Of marked places, levels and curves, at any width."""
    show(started, full_report, width=width, theme="light")
    charts = started.execute_script(
        "return [...document.querySelectorAll('.plot')].filter(x => x.getBoundingClientRect().width"
        ").map(x => [...x.querySelectorAll('text')].map(t => { const b = t.getBoundingClientRect();"
        " return [b.left, b.right, b.top, b.bottom, t.textContent] }))"
    )
    words = [word for chart in charts for *_, word in chart]
    assert {"uniform guess", "trained on 1K", "counts, 2 bases back (the best)"} <= set(words)
    for chart in charts:
        for (left, right, top, bottom, _), (a, b, c, d, _) in combinations(chart, 2):
            assert right <= a or b <= left or bottom <= c or d <= top


@pytest.mark.parametrize("system", ["light", "dark"])
def test_dark_and_light(started, full_report, system):
    """As the system is, until the button is pressed; the ground really changes."""
    show(started, full_report, width=1280, theme=system)

    def brightness():
        text = one(started, "body").value_of_css_property("background-color")
        return sum(float(x) for x in text.partition("(")[2].rstrip(")").split(",")[:3])

    assert (brightness() > 600) == (system == "light")
    one(started, "#theme").click()
    assert (brightness() > 600) == (system == "dark")
    one(started, "#theme").click()
    assert (brightness() > 600) == (system == "light")


def test_a_phone_scrolls_down_alone(started, full_report):
    """At 390 pixels tables scroll within their boxes, and the narrow drawings are shown."""
    show(started, full_report, width=390, theme="light")
    assert started.execute_script("return document.documentElement.scrollWidth") == 390
    shown = [x for x in started.find_elements(By.CSS_SELECTOR, ".chart") if x.is_displayed()]
    assert {"narrow" in x.get_attribute("class") for x in shown} == {True}
    assert all(x.size["width"] > 300 for x in shown)
    scrolled = started.execute_script(
        "return [...document.querySelectorAll('.scroll')].some(x => x.scrollWidth > x.clientWidth)"
    )
    assert scrolled
    letters = started.execute_script(
        "const t = document.querySelector('.narrow text'); return t.getBoundingClientRect().height"
    )
    assert letters > 10


def test_legends_hide_curves(browser):
    """And show them again; other curves stay."""
    button = one(browser, "#chart-perplexity .legend button")
    place = button.get_attribute("data-curve")
    curve = one(browser, f"#chart-perplexity .wide [data-curve='{place}']")
    other = one(browser, "#chart-perplexity .wide [data-curve='1']")
    assert curve.is_displayed()
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert not curve.is_displayed()
    assert other.is_displayed()
    button.send_keys(Keys.SPACE)
    assert curve.is_displayed()


def test_values_are_read_out_by_keys_and_by_the_pointer(browser):
    """The nearest point of each curve that is shown, hostile names as text."""
    area, box = (
        one(browser, "#chart-perplexity .drawings"),
        one(browser, "#chart-perplexity .readout"),
    )
    assert not box.is_displayed()
    area.send_keys(Keys.ARROW_RIGHT)
    assert "first at 1K: 3.669 (3.659 to 3.679)" in box.text
    area.send_keys(Keys.ARROW_RIGHT)
    assert "first at 2K" in box.text
    assert "<script>alert(1)</script>" in box.text
    area.send_keys(Keys.ESCAPE)
    assert not box.is_displayed()
    webdriver.ActionChains(browser).move_to_element(area).perform()
    assert "first at 2K" in box.text
    one(browser, "#chart-perplexity .legend button").click()
    webdriver.ActionChains(browser).move_to_element(area).perform()
    assert "first at" not in box.text


def test_a_broken_curve_is_read_out_once(browser):
    """At its nearest point, whichever piece that is on."""
    area = one(browser, "#chart-streams-1 .drawings")
    area.send_keys(Keys.ARROW_RIGHT * 3)
    lines = area.find_element(By.CSS_SELECTOR, ".readout").text.splitlines()
    assert [line for line in lines if line.startswith("first at")] == ["first at 3.5: 3.68"]
    assert len(lines) == 4  # two networks, each with its control


def test_the_data_of_a_chart_unfolds(browser):
    details = one(browser, "#chart-perplexity details")
    table = details.find_element(By.TAG_NAME, "table")
    assert not table.is_displayed()
    details.find_element(By.TAG_NAME, "summary").click()
    assert table.is_displayed()
    assert "first" in column(table, 1)
