"""The pages for everybody: by keyboard alone, on a phone, light and dark."""

from collections.abc import Callable

import pytest

from tests.browser.looking import Looking, Published
from tests.helpers import wait_until

FOCUSED = (
    "document.activeElement.id || document.activeElement.name || document.activeElement.getAttribute('aria-label')"
)


def tab_to(looking: Looking, wanted: str, most: int = 120) -> None:
    """Press Tab until something has the focus, which must be seen on it."""
    for _ in range(most):
        looking.page.keyboard.press("Tab")
        if looking.tell(FOCUSED) == wanted:
            break
    assert looking.tell(FOCUSED) == wanted
    style = looking.tell(
        "(({outlineStyle, outlineWidth}) => [outlineStyle, outlineWidth])(getComputedStyle(document.activeElement))"
    )
    assert style == ["solid", "3px"]


def test_search_select_and_cancel_by_keyboard_alone(looking: Looking, published: Published) -> None:
    looking.open_topic(published.topic, "?subscription=s")
    looking.page.keyboard.press("Tab")
    assert looking.text(":focus") == "Skip to content"
    looking.page.keyboard.press("Enter")
    tab_to(looking, "key")
    looking.page.keyboard.type("order-5")
    looking.page.keyboard.press("Enter")
    wait_until(lambda: looking.rows().count() == 1, "the one entry with the key")
    tab_to(looking, f"Select {published.soon[5]}")
    looking.page.keyboard.press("Space")
    looking.see("#selected", "1 entry selected")
    looking.page.keyboard.press("Shift+Tab")
    assert looking.tell(FOCUSED) == "select-all"
    looking.page.keyboard.press("Shift+Tab")
    looking.page.keyboard.press("Shift+Tab")
    assert looking.tell(FOCUSED) == "cancel"
    looking.page.keyboard.press("Enter")
    assert looking.text("#confirm-title") == "Cancel delivery of 1 entry?"
    assert looking.tell(FOCUSED) == "confirm-close"
    tab_to(looking, "confirm-go")
    looking.page.keyboard.press("Enter")
    looking.see("#confirm-says", "1 cancelled")
    assert looking.tell(FOCUSED) == "confirm-close"
    looking.page.keyboard.press("Enter")
    wait_until(lambda: published.stats()["cancelled"] == 1, "the entry cancelled")
    looking.see("#pending-says", "Nothing that is pending for s matches")
    assert looking.tell("document.activeElement !== document.body")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (360, 740)])
def test_nothing_sticks_out_in_any_window(
    open_window: Callable[..., Looking], published: Published, scheme: str, width: int, height: int
) -> None:
    window = open_window(published.bridge, width, height, color_scheme=scheme)
    name = f"{scheme}-{width}"
    for path in ("/", "/status.html"):
        assert window.open(path) == 200
        assert window.overflow() <= 0, path
    window.open("/")
    window.keep(f"overview-{name}")
    window.open_topic(published.topic, "?subscription=s")
    wait_until(lambda: window.rows().count() == 25, "a page")
    window.until("document.querySelector('#chart .bars path') !== null", "the chart")
    assert window.overflow() <= 0
    window.keep(f"topic-{name}")
    window.rows().first.locator("input").check()
    window.page.locator("#cancel").click()
    box = window.page.locator("#confirm").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    window.keep(f"dialog-{name}", whole=False)
    dark = window.tell("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, dark[4:-1].split(","))) < 200) is (scheme == "dark")
    assert not window.complaints


def test_the_chosen_theme_is_kept(looking: Looking) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    looking.open("/")
    light = looking.tell(background)
    looking.page.locator("#theme").click()
    looking.page.locator("#theme").click()
    assert looking.text("#theme") == "Theme: dark"
    dark = looking.tell(background)
    assert dark != light
    looking.open("/status.html")
    assert looking.tell(background) == dark
    assert looking.text("#theme") == "Theme: dark"
