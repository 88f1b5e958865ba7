"""Text is readable in light and dark: contrast of WCAG 2.1, computed from the style sheet."""

from __future__ import annotations

import gzip
import re
from itertools import combinations

import numpy as np
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


# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB
SIGHTS = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}  # fmt: skip
MIN_DISTANCES = {"all cones": 30, "protanopia": 5, "deuteranopia": 5, "tritanopia": 10}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(color, sight):
    """CIE L*a*b* of #rrggbb as a kind of sight has it."""
    rgb = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(SIGHTS[sight] @ linear, 0, 1) / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_components_are_told_apart_by_every_eye(theme, sight):
    colors = {k: v for k, v in palettes()[theme].items() if k.startswith("part-")}
    assert len(colors) == 9
    for one, other in combinations(colors, 2):
        distance = np.linalg.norm(lab(colors[one], sight) - lab(colors[other], sight))
        assert distance >= MIN_DISTANCES[sight], (one, other)
