"""Bars as SVG, so that a plot needs no library and a diff shows what changed."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

COLOURS = ("#9aa5b1", "#627d98", "#2f9e8f", "#1b6e63", "#d98e04", "#b44d12")
WIDTH, BAR, GAP, LEFT, RIGHT = 900, 16, 18, 150, 70


def bars(title: str, groups: Mapping[str, Mapping[str, float]]) -> str:
    """A group of horizontal bars for each key; equal names have one colour."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    most = max(value for group in groups.values() for value in group.values())
    parts = [f'<text x="10" y="20" font-size="15">{escape(title)}</text>']
    for i, name in enumerate(names):
        x = 10 + i * (WIDTH - 20) // len(names)
        parts.append(f'<rect x="{x}" y="32" width="12" height="12" fill="{colour[name]}"/>')
        parts.append(f'<text x="{x + 17}" y="43">{escape(name)}</text>')
    y = 62
    for label, group in groups.items():
        middle = y + len(group) * BAR / 2 + 4
        parts.append(
            f'<text x="{LEFT - 8}" y="{middle:g}" text-anchor="end">{escape(label)}</text>'
        )
        for name, value in group.items():
            length = value / most * (WIDTH - LEFT - RIGHT)
            parts.append(
                f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR - 3}" '
                f'fill="{colour[name]}"/>'
            )
            parts.append(f'<text x="{LEFT + length + 6:.1f}" y="{y + 11}">{value:.4g}</text>')
            y += BAR
        y += GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" '
        'fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )
