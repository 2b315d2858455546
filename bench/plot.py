"""Plots as SVG text. The same figures give the same file, byte for byte, whatever is installed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

COLOURS = ("#1b6ca8", "#d1495b", "#6b7280", "#2e8b57")
WIDTH, TOP, LEFT, RIGHT = 760, 44, 56, 150
BAR = 22  # from one to the next


def text(x: float, y: float, words: str, anchor: str = "start", style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(words)}</text>'


def drawing(title: str, height: float, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}"'
        ' font-family="sans-serif" font-size="12" fill="#222">'
    )
    back = f'<rect width="{WIDTH}" height="{height:.0f}" fill="#fff"/>'
    name = text(LEFT, 22, title, style=' font-size="15" font-weight="bold"')
    return "\n".join([head, f"<title>{escape(title)}</title>", back, name, *parts, "</svg>", ""])


def steps(most: float) -> list[float]:
    """Some round numbers from 0 to beyond the largest."""
    power = 10 ** math.floor(math.log10(most / 5))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor * 6 >= most)
    return [step * i for i in range(math.ceil(most / step) + 1)]


def lines(title: str, unit: str, places: Sequence[str], series: dict[str, Sequence[float]]) -> str:
    """A line for each series, which has its name at its end."""
    height, bottom = 400, 360
    ticks = steps(max(max(values) for values in series.values()))
    wide = (WIDTH - LEFT - RIGHT) / (len(places) - 1)

    def at(i: int, value: float) -> tuple[float, float]:
        return LEFT + i * wide, bottom - value / ticks[-1] * (bottom - TOP)

    parts = [text(LEFT - 8, TOP - 8, unit, "end")]
    for tick in ticks:
        _, y = at(0, tick)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(text(LEFT - 8, y + 4, f"{tick:g}", "end"))
    parts += [text(at(i, 0)[0], bottom + 18, place, "middle") for i, place in enumerate(places)]
    taken: list[float] = []  # by names at the ends, which must not lie on each other
    for (name, values), colour in zip(series.items(), COLOURS, strict=False):
        points = [at(i, value) for i, value in enumerate(values)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        x, y = points[-1]
        while any(abs(y - other) < 15 for other in taken):
            y -= 5
        taken.append(y)
        parts.append(text(x + 8, y + 4, name, style=f' fill="{colour}"'))
    return drawing(title, height, parts)


def bars(title: str, unit: str, values: dict[str, float], mark: tuple[str, float]) -> str:
    """A bar for each value, and a line across all of them."""
    left, (name, there) = LEFT + 90, mark
    bottom = TOP + 16 + BAR * len(values)
    scale = (WIDTH - left - 60) / max(there, *values.values())
    x = left + there * scale
    parts = [
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP + 8}" y2="{bottom}" stroke="{COLOURS[1]}" stroke-dasharray="5 4"/>',
        text(x, TOP + 4, f"{name} {there:.1f} {unit}", "middle", f' fill="{COLOURS[1]}"'),
    ]
    for i, (label, value) in enumerate(values.items()):
        y = TOP + 16 + BAR * i
        parts.append(text(left - 8, y + 13, label, "end"))
        parts.append(f'<rect x="{left}" y="{y}" width="{value * scale:.1f}" height="{BAR - 5}" fill="{COLOURS[0]}"/>')
        end, number = left + value * scale, f"{value:.1f}"
        parts.append(f'<rect x="{end + 3:.1f}" y="{y}" width="{7 * len(number) + 4}" height="{BAR - 5}" fill="#fff"/>')
        parts.append(text(end + 6, y + 13, number))
    return drawing(title, bottom + 12, parts)
