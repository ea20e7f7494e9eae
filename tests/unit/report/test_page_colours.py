"""Contrast by WCAG 2.2; colour blindness by the matrices of Machado, Oliveira and Fernandes (2009) for complete deficiency."""

from itertools import combinations

import numpy as np
import pytest

from shardwright.report.page import DARK, LIGHT

VISION = {
    "full": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.95047, 1.0, 1.08883])


def linear(colour):
    part = np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    dark, light = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def lab(colour, vision):
    xyz = TO_XYZ @ np.clip(np.array(VISION[vision]) @ linear(colour), 0, 1) / WHITE
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
class TestPalette:
    def test_text_can_be_read(self, palette):
        for ground in (palette.page, palette.panel):
            for text in (palette.ink, palette.muted, palette.accent, palette.warn):
                assert contrast(text, ground) >= 4.5
        assert contrast(palette.panel, palette.accent) >= 4.5  # a pressed button

    def test_bars_stand_out_from_the_ground(self, palette):
        for colour in (*palette.phases, *palette.memory, *palette.kinds):
            assert contrast(colour, palette.panel) >= 3

    @pytest.mark.parametrize("vision", VISION)
    def test_colours_of_a_figure_differ_for_everyone(self, palette, vision):
        for colours, least in ((palette.phases, 20), (palette.memory, 20), (palette.kinds, 9)):
            for one, other in combinations(colours, 2):
                assert np.linalg.norm(lab(one, vision) - lab(other, vision)) >= least, (one, other)

    def test_the_ramp_goes_one_way(self, palette):
        lightness = [lab(colour, "full")[0] for colour in palette.ramp]
        assert lightness in (sorted(lightness), sorted(lightness, reverse=True))
