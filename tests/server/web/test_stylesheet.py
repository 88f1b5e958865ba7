"""Text is readable in light and dark: contrast of WCAG 2.1, computed from the style sheet."""

from __future__ import annotations

import gzip
import re

import pytest

from memagent_server.web import rendering

TONES = ("ok", "notice", "warning", "critical", "busy", "plain")
TEXT = [
    *[
        (text, ground)
        for text in ("ink", "muted", "link")
        for ground in ("bg", "surface", "sunken")
    ],
    *[(tone, f"{tone}-bg") for tone in TONES],
    *[(tone, "surface") for tone in TONES],
    ("on-accent", "accent"),
    ("surface", "critical"),
    ("curve-predicted", "surface"),
    ("curve-limit", "surface"),
]
GRAPHICS = [
    *[
        (f"curve-{name}", "surface")
        for name in ("allocated", "peak", "reserved", "device", "scalar")
    ],
    *[("focus", ground) for ground in ("bg", "surface")],
    ("line-strong", "surface"),
    *[(f"run-{tone}", "surface") for tone in range(10)],
    *[(f"phase-{tone}", "surface") for tone in range(4)],
    *[
        (f"part-{name}", "surface")
        for name in (
            "parameters",
            "gradients",
            "optimizer_state",
            "activations",
            "workspace",
            "context",
            "buffers",
            "fragmentation",
            "other",
        )
    ],
]


def palettes():
    """Return {"light": {name: "#rrggbb"}, "dark": ...}; dark inherits from light."""
    sheet = (rendering.FOLDER / "memagent.css").read_text()
    blocks = [
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
        for block in re.findall(r":root \{(.*?)\}", sheet, re.DOTALL)
    ]
    light, dark, *_ = blocks  # print uses those of light
    return {"light": light, "dark": {**light, **dark}}


def luminance(color):
    channels = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("pairs", "least"), [(TEXT, 4.5), (GRAPHICS, 3.0)], ids=["text", "graphics"]
)
def test_text_has_enough_contrast(scheme, pairs, least):
    palette = palettes()[scheme]
    too_weak = {
        pair: round(result, 2)
        for pair in pairs
        if (result := contrast(palette[pair[0]], palette[pair[1]])) < least
    }
    assert too_weak == {}


def test_contrast_is_computed_as_in_the_standard():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_the_sheet_is_sent_without_comments_and_with_the_same_rules(client):
    headers = {"Accept-Encoding": "gzip"}
    packed = client.get("/static/memagent.css", headers=headers, buffered=True)
    sheet = (rendering.FOLDER / "memagent.css").read_text()
    sent = gzip.decompress(packed.data).decode()
    assert "/*" not in sent and len(sent) < len(sheet)
    for piece in "{};":
        assert sent.count(piece) == re.sub(r"/\*.*?\*/", "", sheet, flags=re.DOTALL).count(piece)
    assert re.findall(r'"[^"]*"', sent) == re.findall(r'"[^"]*"', sheet)
