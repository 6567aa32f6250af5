"""Screenshots cover every kind of page, wide and narrow, light and dark."""

import pytest

from tools import browser
from tools.screenshots import PAGES, views


def test_every_page_is_shown_wide_and_narrow_light_and_dark(tmp_path):
    taken = list(views(tmp_path / "site", tmp_path / "report.html"))
    files = [view.file for view in taken]
    assert len(set(files)) == len(files)
    for name in [*PAGES, "report"]:
        for width in ("desktop", "phone"):
            for scheme in ("light", "dark"):
                assert f"{name}-{width}-{scheme}.png" in files
    assert {"terminal-desktop-light.png", "terminal-desktop-dark.png"} <= set(files)


def test_without_a_browser_a_message_names_it(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="Chromium was not found on the PATH"):
        browser.browser()
