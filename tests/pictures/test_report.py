"""The report of a run can be read in dark mode and on a phone."""

from importlib.resources import files

PAGE = (files("fedbilevel.pictures") / "report.html.txt").read_text(encoding="utf-8")


def test_colours_follow_the_browser_and_figures_stay_on_a_light_card():
    light, _, dark = PAGE.partition("@media (prefers-color-scheme: dark)")
    for name in ("--text", "--muted", "--line", "--block", "--page"):
        assert f"{name}:" in light
        assert f"{name}:" in dark
    assert "svg { max-width: 100%; height: auto; background: #fff" in dark


def test_wide_tables_scroll_inside_the_page():
    assert ".tables > div { max-width: 100%; overflow-x: auto; }" in PAGE
