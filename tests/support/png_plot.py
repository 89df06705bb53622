# SPDX-License-Identifier: Apache-2.0
"""Line plots as PNG files, with nothing but the standard library."""

import struct
import zlib

# Three columns and five rows a letter, a row an octal digit.
GLYPHS = {
    "0": "75557", "1": "26227", "2": "71747", "3": "71717", "4": "55711", "5": "74717", "6": "74757",
    "7": "71122", "8": "75757", "9": "75717", "A": "25755", "B": "65656", "C": "34443", "D": "65556",
    "E": "74647", "F": "74644", "G": "34553", "H": "55755", "I": "72227", "J": "11152", "K": "55655",
    "L": "44447", "M": "57755", "N": "65555", "O": "25552", "P": "65644", "Q": "25563", "R": "65655",
    "S": "34216", "T": "72222", "U": "55557", "V": "55552", "W": "55775", "X": "55255", "Y": "55222",
    "Z": "71247", ".": "00002", "-": "00700", "+": "02720", "%": "51245", "/": "11244", ":": "02020",
    ",": "00024", "(": "12221", ")": "42224",
}  # fmt: skip
BLACK, GRAY, LINE = (0, 0, 0), (200, 200, 200), (30, 90, 180)


class Image:
    def __init__(self, width, height):
        self.width, self.height = width, height
        self.rows = [bytearray(b"\xff" * (3 * width)) for _ in range(height)]

    def dot(self, x, y, color):
        if 0 <= x < self.width and 0 <= y < self.height:
            self.rows[y][3 * x : 3 * x + 3] = bytes(color)

    def line(self, a, b, color):
        (x0, y0), (x1, y1) = a, b
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for i in range(steps + 1):
            self.dot(round(x0 + (x1 - x0) * i / steps), round(y0 + (y1 - y0) * i / steps), color)

    def text(self, x, y, text, scale=2):
        for letter in text.upper():
            for row, bits in enumerate(GLYPHS.get(letter, "00000")):
                for column in range(3):
                    if int(bits, 8) >> (2 - column) & 1:
                        for dx in range(scale):
                            for dy in range(scale):
                                self.dot(x + column * scale + dx, y + row * scale + dy, BLACK)
            x += 4 * scale

    def png(self):
        def chunk(kind, data):
            body = kind + data
            return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

        header = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        pixels = zlib.compress(b"".join(b"\0" + bytes(row) for row in self.rows))
        return (
            b"\x89PNG\r\n\x1a\n"
            + chunk(b"IHDR", header)
            + chunk(b"IDAT", pixels)
            + chunk(b"IEND", b"")
        )


def number(value):
    for limit, divisor, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "K")):
        if abs(value) >= limit:
            return f"{value / divisor:.4g}{unit}"
    return f"{value:.4g}"


def num_drawn(path, num_panels):
    """How many dots the line of each panel has in a file that plot() made."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n"), f"{path} is no PNG"
    width, height = struct.unpack(">II", data[16:24])
    (size,) = struct.unpack(">I", data[33:37])
    pixels = zlib.decompress(data[41 : 41 + size])
    row = 1 + 3 * width
    assert len(pixels) == row * height, f"{path}: {len(pixels)} bytes of pixels"
    numbers = [0] * num_panels
    for y in range(height):
        dots = pixels[y * row + 1 : (y + 1) * row]
        found = sum(dots[x : x + 3] == bytes(LINE) for x in range(0, len(dots), 3))
        numbers[y * num_panels // height] += found
    return numbers


def plot(path, panels, width=900, height=170):
    """Draws panels below one another. A panel is (title, x values, y values)."""
    image = Image(width, height * len(panels))
    left, right, top, bottom = 90, 20, 26, 24
    for k, (title, xs, ys) in enumerate(panels):
        y0, y1 = k * height + top, (k + 1) * height - bottom
        x0, x1 = left, width - right
        image.text(x0, k * height + 8, title)
        for a, b in (((x0, y0), (x0, y1)), ((x0, y1), (x1, y1))):
            image.line(a, b, GRAY)
        if not ys:
            continue
        high = max(max(ys) * 1.1, 1e-9)  # from zero, so that a slope is seen as large as it is
        image.text(4, y0, number(high))
        image.text(4, y1 - 10, "0")
        image.text(x0, y1 + 6, number(xs[0]))
        image.text(x1 - 60, y1 + 6, number(xs[-1]))
        span = max(xs[-1] - xs[0], 1e-9)
        points = [
            (round(x0 + (x - xs[0]) / span * (x1 - x0)), round(y1 - y / high * (y1 - y0)))
            for x, y in zip(xs, ys, strict=True)
        ]
        for a, b in zip(points, points[1:], strict=False):
            image.line(a, b, LINE)
    with open(path, "wb") as file:
        file.write(image.png())
