# SPDX-License-Identifier: Apache-2.0
"""Bar charts as SVG, with nothing but the standard library. They follow the reader's light or dark scheme."""

import statistics
from xml.sax.saxutils import escape

STYLE = """
text { font: 12px sans-serif; fill: #222 }
.title { font-weight: bold }
.own { fill: #0072b2 } .peer { fill: #999 } .spread { stroke: #222 } .cut { stroke: #fff; stroke-width: 3 }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd } .peer { fill: #777 } .own { fill: #56b4e9 }
  .spread { stroke: #ddd } .cut { stroke: #111 }
}
"""
NAMES, BAR, LABEL = 150, 130, 78  # widths
ROW, TOP = 22, 30


def limit_of(values):
    """A bar above four times the median of all is cut, so that the others can still be compared."""
    return max(min(max(values), 4 * statistics.median(values)), 1e-12)


def bar(x, y, entry, limit, own):
    """`entry` is (median, least, most, label)."""
    median, least, most, label = entry
    width = BAR * min(max(median, 0), limit) / limit
    yield (
        f'<rect class="{"own" if own else "peer"}" x="{x}" y="{y + 4}" '
        f'width="{max(width, 1):.1f}" height="{ROW - 8}"/>'
    )
    end = x + min(width, BAR)
    if median > limit:
        cut = x + BAR - 16
        yield f'<path class="cut" d="M{cut} {y + ROW - 2} L{cut + 6} {y + 2}"/>'
    elif most > least >= 0:
        a, b = (x + BAR * min(end, limit) / limit for end in (least, most))
        yield f'<path class="spread" d="M{a:.1f} {y + ROW // 2} H{b:.1f}"/>'
        end = max(end, b)
    yield f'<text x="{end + 4:.1f}" y="{y + ROW - 7}">{escape(label)}</text>'


def chart(title, names, own, panels):
    """`panels` are (title, {name: entry}). A name without an entry has an empty row."""
    width = NAMES + len(panels) * (BAR + LABEL)
    height = TOP + 20 + ROW * len(names)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<text class="title" x="4" y="16">{escape(title)}</text>',
    ]
    for row, name in enumerate(names):
        lines.append(f'<text x="4" y="{TOP + 20 + row * ROW + ROW - 7}">{escape(name)}</text>')
    for column, (heading, entries) in enumerate(panels):
        x = NAMES + column * (BAR + LABEL)
        lines.append(f'<text x="{x}" y="{TOP + 10}">{escape(heading)}</text>')
        limit = limit_of([entry[0] for entry in entries.values()])
        for row, name in enumerate(names):
            if name in entries:
                lines += bar(x, TOP + 20 + row * ROW, entries[name], limit, name.startswith(own))
    return "\n".join([*lines, "</svg>"]) + "\n"
