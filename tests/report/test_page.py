"""The page: nothing a user wrote becomes markup, and a real browser draws it without a request."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from virgo.errors import OptionError
from virgo.report.page import MINUS, MISSING, _embedded, _kind, page, save_page, variance_chart

EVIL = "</script><img src=x onerror=alert(1)>{{charts}}\u2028\"'&<!--"
NAMESPACE = "http://www.w3.org/2000/svg"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1200,900",
)


def document(text: str = "") -> dict[str, Any]:
    """A document with every field filled; ``text`` is added to each that a user can write."""
    decay = [10.0**-k for k in range(8)]
    odd = [1.0, None, math.nan, 2.0, 1e30, math.inf, -math.inf, 0.0]

    def series(name: str, values: list[Any], **more: Any) -> dict[str, Any]:
        return {"name": name + text, "values": values, "spread": None, "dashed": False, **more}

    def chart(title: str, *curves: dict[str, Any], log: bool = True) -> dict[str, Any]:
        labels = {"x_label": "layer" + text, "y_label": "variance" + text}
        return {"title": title + text, **labels, "log": log, "series": list(curves)}

    return {
        "title": "16-layer GCN" + text,
        "subtitle": "cora" + text,
        "verdict": {"level": "bad", "headline": "Vanishing." + text, "details": ["Layer 3" + text]},
        "charts": [
            chart(
                "Forward",
                series("xavier", decay, spread=[v / 3 for v in decay]),
                series("odd", odd, spread=[0.1, None, math.inf, 0.1, 1.0, 1.0, 1.0, 0.0]),
            ),
            chart("Share", series("xavier", [0.5] * 8), series("odd", [0.2] * 8), log=False),
        ],
        "tables": [
            {
                "title": "By layer" + text,
                "note": "As measured." + text,
                "header": ["name" + text, "forward", "backward"],
                "rows": [["a" + text, 0.5, None], ["b", math.inf, math.nan], ["c", -math.inf, 3]],
            }
        ],
        "config": {"path" + text: "/home/x" + text, "nested": {"k" + text: [1, text]}},
        "versions": {"torch" + text: "2" + text},
        "notes": ["Eval mode." + text],
    }


class Reader(HTMLParser):
    """The tags of a page, and the text of its data block."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.data = ""
        self.in_data = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.update(name for name, _ in attrs)
        self.in_data = ("type", "application/json") in attrs

    def handle_data(self, data: str) -> None:
        if self.in_data:
            self.data += data

    def handle_endtag(self, tag: str) -> None:
        self.in_data = False


# --- the text of the page -----------------------------------------------------------------------


def test_user_text_never_becomes_markup() -> None:
    plain, hurt = Reader(page(document())), Reader(page(document(EVIL)))
    assert hurt.tags == plain.tags
    assert hurt.attributes == plain.attributes
    assert "img" not in hurt.tags
    charts = json.loads(hurt.data)
    assert charts[0]["title"] == "Forward" + EVIL
    assert charts[0]["series"][0]["name"] == "xavier" + EVIL
    assert charts[0]["x"] == "layer" + EVIL


def test_the_reader_would_notice_markup() -> None:
    text = page(document()).replace("16-layer GCN", EVIL)
    assert "img" in Reader(text).tags


def test_embedded_json_has_no_character_a_parser_could_stop_at() -> None:
    text = _embedded({"a": "</script><!-- & \u2028\u2029 é"})
    assert text.isascii()
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"a": "</script><!-- & \u2028\u2029 é"}


def test_values_that_json_lacks_are_a_gap_or_spelt_for_javascript() -> None:
    charts = json.loads(Reader(page(document())).data, parse_constant=pytest.fail)
    odd = charts[0]["series"][1]
    assert odd["values"] == [1.0, None, None, 2.0, 1e30, "Infinity", "-Infinity", 0.0]
    assert odd["spread"] == [0.1, None, "Infinity", 0.1, 1.0, 1.0, 1.0, 0.0]
    assert charts[1]["series"][0]["spread"] == []


def test_tables_show_what_is_not_finite() -> None:
    text = page(document())
    number = '<td class="number">{}</td>'.format
    assert f"<td>a</td>{number('0.5000')}{number(MISSING)}" in text
    assert f"<td>b</td>{number('∞')}{number(MISSING)}" in text
    assert f"<td>c</td>{number(MINUS + '∞')}{number('3')}" in text


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (["0.12 ± 0.03", MISSING, "< 1e-4"], "number"),
        (["12 %", "∞"], "number"),
        (["3", "three"], ""),
        (["x" * 60], "long"),
    ],
)
def test_columns_are_aligned_by_what_they_hold(column: list[str], kind: str) -> None:
    assert _kind(column) == (f' class="{kind}"' if kind else "")


def test_no_address_but_the_namespace() -> None:
    text = page(document())
    assert set(re.findall(r"https?://[^\s\"'<>]*", text)) == {NAMESPACE}
    assert not re.search(r"\bsrc\s*=|@import|url\(|\bfetch\(|XMLHttpRequest|import\(", text)
    assert re.findall(r'href="([^"]*)"', text) == ["data:,"]
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    assert policy in text


@pytest.mark.parametrize("level", ["good", "watch", "bad", "none"])
def test_a_verdict_is_said_in_words_too(level: str) -> None:
    words = {"good": "Good", "watch": "Watch", "bad": "Bad", "none": ""}
    text = page({"verdict": {"level": level, "headline": "So it is."}})
    assert f'data-level="{level}"' in text
    said = f'<p class="word">{words[level]}</p>'
    assert said in text if words[level] else 'class="word"' not in text


def test_an_unknown_verdict_is_refused() -> None:
    with pytest.raises(OptionError, match=r"page: verdict level one of good, .*, got 'fine'"):
        page({"verdict": {"level": "fine"}})


def test_an_empty_document_and_an_empty_table_are_pages() -> None:
    assert Reader(page({})).data == "[]"
    assert "<th>a</th>" in page({"tables": [{"header": ["a"], "rows": []}]})


def test_colours_are_those_of_the_plots() -> None:
    pytest.importorskip("matplotlib")
    from virgo.report.plots import COLOURS

    found = re.findall(r"^\.s\d \{ --c: light-dark\((#\w{6}),", page({}), flags=re.MULTILINE)
    assert tuple(found) == COLOURS


def test_saving_leaves_the_page_and_nothing_else(tmp_path: Path) -> None:
    odd_path = "caf\udce9"  # how Python spells a file name that is not UTF-8
    path = save_page({"title": odd_path}, tmp_path / "report.html")
    assert "<h1>caf?</h1>" in path.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_save_keeps_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_page({"title": "old"}, tmp_path / "report.html")

    def full(*args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("virgo.report.files.os.replace", full)
    with pytest.raises(OSError, match="disk full"):
        save_page({"title": "new"}, path)
    assert "<h1>old</h1>" in path.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [path]


# --- the page in a real browser -----------------------------------------------------------------


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium: pip install it")
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not browser or not driver:
        pytest.skip("no browser: install the Debian packages chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    session = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield session
    session.quit()


@pytest.fixture
def show(chromium: Any, tmp_path: Path) -> Callable[[str], Any]:
    """Open a page's text from a file, the logs of pages before it emptied."""

    def opened(text: str) -> Any:
        path = tmp_path / "report.html"
        path.write_text(text, encoding="utf-8")
        chromium.get("about:blank")
        chromium.get_log("browser")
        chromium.get_log("performance")
        chromium.get(path.as_uri())
        return chromium

    return opened


def select(browser: Any, css: str) -> list[Any]:
    return list(browser.find_elements("css selector", css))


def hover(browser: Any, chart: int, share: float) -> str:
    """Move the pointer over a chart, ``share`` of its width from its middle; the tooltip's text."""
    from selenium.webdriver.common.action_chains import ActionChains

    svg = select(browser, ".plot > svg")[chart]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", svg)
    across = int(svg.rect["width"] * share)
    ActionChains(browser).move_to_element_with_offset(svg, across, 0).perform()
    return str(select(browser, ".tip")[chart].text)


def requested(browser: Any) -> set[str]:
    """Addresses asked for since the page was opened, the page itself and ``data:`` left out."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [e for e in events if e["method"] == "Network.requestWillBeSent"]
    urls = {event["params"]["request"]["url"] for event in sent}
    assert browser.current_url in urls, "the log does not even have the page"
    resources = browser.execute_script(
        "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    )
    return {u for u in urls | set(resources) if not u.startswith("data:")} - {browser.current_url}


def test_charts_are_drawn_without_a_request_or_an_error(show: Callable[[str], Any]) -> None:
    browser = show(page(document()))
    assert len(select(browser, "figure")) == 2
    lines = [line.get_attribute("d") for line in select(browser, ".series .line")]
    assert len(lines) == 4
    assert all(re.fullmatch(r"M[\d. LM]+", line) for line in lines)  # no NaN among them
    assert lines[0].count("L") == 7
    # 1, gap, gap, 2, 1e30, then off the axis: a lone point and a stroke.
    assert (lines[1].count("M"), lines[1].count("L")) == (2, 1)
    assert len(select(browser, "[data-name=odd] .edge")) == 3  # one above, two below
    assert all("NaN" not in b.get_attribute("d") for b in select(browser, ".band"))
    hover(browser, 0, 0.1)
    assert browser.get_log("browser") == []
    assert requested(browser) == set()


@pytest.mark.parametrize("log", [True, False])
def test_odd_curves_are_drawn_too(show: Callable[[str], Any], log: bool) -> None:
    curves: dict[str, list[list[Any]]] = {
        "one layer": [[3.0], [math.inf]],
        "nothing": [[None, math.nan], []],
        "nothing at all": [],
        "flat": [[1.0] * 4],
        "nearly flat": [[1.0, 1.0 + 1e-15]],
        "wide": [[5e-324, 1e308]],
        "signed": [[-1e308, 1e308], [-1.0, 0.0]],
        "zero": [[0.0, 0.0]],
        "long": [[1.0 + k % 7 for k in range(2_000)] for _ in range(3)],
        "many": [[k + 1.0, k + 2.0] for k in range(20)],
    }
    charts = [
        {
            "title": title,
            "log": log,
            "series": [
                {"name": f"{title} {k}", "values": v, "spread": v} for k, v in enumerate(values)
            ],
        }
        for title, values in curves.items()
    ]
    browser = show(page({"charts": charts}))
    for chart in range(len(charts)):
        hover(browser, chart, 0.1)
    drawn = browser.execute_script("return document.getElementById('charts').innerHTML")
    assert len(select(browser, "figure")) == len(charts)
    assert not re.search("NaN|Infinity|undefined", drawn)
    swatches = select(browser, "#legend .swatch")
    assert len({swatch.get_attribute("outerHTML") for swatch in swatches}) == sum(
        map(len, curves.values())
    )
    assert browser.get_log("browser") == []


def test_a_request_and_an_error_would_be_noticed(show: Callable[[str], Any]) -> None:
    bad = '<img src="http://127.0.0.1:9/x.png"><script>undefined.x</script></body>'
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page(document()))
    browser = show(text.replace("</body>", bad))
    assert requested(browser) == {"http://127.0.0.1:9/x.png"}
    assert any("TypeError" in entry["message"] for entry in browser.get_log("browser"))


def test_the_policy_stops_a_request_that_slipped_in(show: Callable[[str], Any]) -> None:
    text = page(document()).replace("</body>", '<img src="http://127.0.0.1:9/x.png"></body>')
    browser = show(text)
    assert any("Content Security Policy" in e["message"] for e in browser.get_log("browser"))


def test_the_legend_toggles_a_series_in_every_chart(show: Callable[[str], Any]) -> None:
    browser = show(page(document()))
    button = select(browser, ".legend button")[0]
    assert button.text == "xavier"
    assert button.get_attribute("aria-pressed") == "true"
    assert len(select(browser, ".series[data-name=xavier]")) == 2
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert select(browser, ".series[data-name=xavier]") == []
    assert select(browser, ".series[data-name=odd] .line")
    assert "xavier" not in hover(browser, 1, 0.0)
    button.send_keys("\ue007")  # Enter
    assert button.get_attribute("aria-pressed") == "true"
    assert len(select(browser, ".series[data-name=xavier]")) == 2
    button.send_keys(" ")
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    for one in select(browser, "#legend button[aria-pressed=true]"):
        one.click()
    assert "All curves are hidden" in select(browser, ".plot")[0].text
    assert browser.get_log("browser") == []


def test_five_curves_are_shown_at_first_and_others_by_a_click(show: Callable[[str], Any]) -> None:
    names = ["lecun", "xavier", "kaiming-backward", "virgo-forward", "virgo-backward", "virgo"]
    chart = variance_chart("Signal", "variance", {name: [1.0, 2.0] for name in names})
    browser = show(page({"charts": [chart, chart]}))
    assert len(select(browser, ".legend")) == 1
    assert [button.text for button in select(browser, "#legend button")] == names
    assert len(select(browser, "#legend button[aria-pressed=true]")) == 5
    assert select(browser, ".series[data-name=lecun]") == []
    select(browser, "#legend button")[0].click()
    assert len(select(browser, ".series[data-name=lecun]")) == 2
    # a method's colour is that of matplotlib's pictures
    assert "s5" in select(browser, ".series[data-name=virgo-backward]")[0].get_attribute("class")
    assert browser.get_log("browser") == []


def test_code_to_copy(show: Callable[[str], Any]) -> None:
    verdict = {"level": "bad", "headline": "Gone.", "code": "virgo.init_(model, data) # <b>"}
    browser = show(page({"verdict": verdict, "reading": "So it is read."}))
    assert select(browser, ".code code")[0].text == "virgo.init_(model, data) # <b>"
    assert select(browser, ".reading")[0].text == "So it is read."
    button = select(browser, ".copy")[0]
    button.click()
    assert button.text == "Copied"
    assert browser.get_log("browser") == []


def test_a_narrow_screen_keeps_a_tables_numbers_in_sight(show: Callable[[str], Any]) -> None:
    header = ("layer", "name", "predicted", "measured", "meas./pred.", "change")
    rows = [[k, f"into convs.{k}", 9.77e-11, 5.11e-11, 0.523, 0.0605] for k in range(16)]
    browser = show(page({"tables": [{"title": "T", "header": header, "rows": rows}]}))
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        room, needed = browser.execute_script(
            "const s = document.querySelector('.scroll'); return [s.clientWidth, s.scrollWidth]"
        )
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert needed <= room


def test_hovering_and_the_arrow_keys_tell_the_values(show: Callable[[str], Any]) -> None:
    browser = show(page(document()))
    tip = select(browser, ".tip")[0]
    assert not tip.is_displayed()
    text = hover(browser, 0, 0.48)
    assert tip.is_displayed()
    assert "layer 7" in text
    assert "xavier" in text
    assert f"1.00e{MINUS}7 ± 3.33e{MINUS}8" in text
    assert "0 (off the log axis)" in text
    assert select(browser, ".cursor")
    svg = select(browser, ".plot > svg")[0]
    svg.send_keys("\ue010", "\ue012", "\ue012")  # End, then twice to the left
    assert "layer 5" in tip.text
    assert "∞ (off the chart)" in tip.text
    svg.send_keys("\ue011", "\ue014")  # Home, then right: where odd has nothing
    assert "layer 1" in tip.text
    assert MISSING in tip.text
    svg.send_keys("\ue00c")
    assert not tip.is_displayed()


def test_injected_markup_does_not_run(show: Callable[[str], Any]) -> None:
    browser = show(page(document(EVIL)))
    assert select(browser, "img") == []
    assert EVIL[:30] in browser.title
    assert EVIL[:30] in hover(browser, 0, 0.1)
    assert EVIL[:30] in select(browser, "figure h2")[0].text
    assert browser.get_log("browser") == []
    assert requested(browser) == set()


def test_the_theme_can_be_switched_and_follows_the_system(show: Callable[[str], Any]) -> None:
    browser = show(page(document()))
    toggle = select(browser, "#theme")[0]

    def paper() -> str:
        return str(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))

    def system(scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}] if scheme else []
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    try:
        system("light")
        light = paper()
        toggle.click()
        dark = paper()
        assert dark != light
        assert toggle.get_attribute("aria-pressed") == "true"
        toggle.click()
        assert paper() == light
        system("dark")
        assert paper() == light  # chosen by hand, so it stays
        browser.refresh()
        assert paper() == dark
        assert select(browser, "#theme")[0].get_attribute("aria-pressed") == "true"
    finally:
        system("")


def test_a_narrow_screen_scrolls_tables_not_the_page(show: Callable[[str], Any]) -> None:
    wide = document()
    wide["tables"][0]["header"] = [f"column number {k}" for k in range(20)]
    wide["tables"][0]["rows"] = [[0.5] * 20]
    wide["subtitle"] = "/home/" + "a" * 200
    browser = show(page(wide))
    size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        width = "return document.documentElement.scrollWidth"
        assert browser.execute_script(width) == 400
        scroll = "const s = document.querySelector('.scroll'); return s.scrollWidth > s.clientWidth"
        assert browser.execute_script(scroll)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
