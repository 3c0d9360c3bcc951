#!/usr/bin/env python3
"""Draws the glyph sheets of the atlas picture: python3 cli/commands/atlas/page/make_glyphs.py (needs matplotlib, run by hand).

A sheet is a grey PNG with one cell for each character from space (32) to tilde (126), side by side. The value of the
topmost, leftmost pixel of a cell is the character's advance in pixels, not ink; below it the glyph stands with its
baseline in the same row everywhere. The font is DejaVu Sans, whose licence lets pictures of it go anywhere.
"""

import pathlib
import struct
import zlib

import matplotlib
import numpy as np
from matplotlib import ft2font

FIRST, LAST = 32, 126
FONTS = pathlib.Path(matplotlib.get_data_path()) / "fonts/ttf"
HERE = pathlib.Path(__file__).resolve().parent


def sheet(font_file, pixels):
    font = ft2font.FT2Font(str(FONTS / font_file))
    font.set_size(pixels, 72)
    glyphs = []
    for code in range(FIRST, LAST + 1):
        font.set_text(chr(code), 0.0, flags=ft2font.LOAD_TARGET_LIGHT)
        font.draw_glyphs_to_bitmap(antialiased=True)
        image = np.array(font.get_image())  # a copy: the font draws the next one into the same memory
        glyph = font.load_char(code, flags=ft2font.LOAD_TARGET_LIGHT)
        box = [v / 64 for v in glyph.bbox]
        glyphs.append((image, round(glyph.linearHoriAdvance / 65536), box))
    up = int(np.ceil(max(box[3] for _, _, box in glyphs))) + 1
    down = int(np.ceil(-min(box[1] for _, _, box in glyphs))) + 1
    width = int(max(max(image.shape[1], advance) for image, advance, _ in glyphs)) + 2
    picture = np.zeros((up + down, width * len(glyphs)), dtype=np.uint8)
    for i, (image, advance, box) in enumerate(glyphs):
        if chr(FIRST + i) != " ":
            top = up - int(round(box[3]))
            left = i * width + max(0, int(np.floor(box[0])))
            rows = min(image.shape[0], picture.shape[0] - top)
            picture[top:top + rows, left:left + image.shape[1]] = image[:rows]
        picture[0, i * width] = advance
    return picture


def main():

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    for name, font, pixels in (("small", "DejaVuSans.ttf", 15), ("large", "DejaVuSans-Bold.ttf", 22)):
        picture = sheet(font, pixels)
        rows = b"".join(b"\0" + row.tobytes() for row in picture)
        head = struct.pack(">IIBBBBB", picture.shape[1], picture.shape[0], 8, 0, 0, 0, 0)
        data = (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 9))
                + chunk(b"IEND", b""))
        (HERE / f"glyphs-{name}.png").write_bytes(data)
        print(name, picture.shape, len(data))


if __name__ == "__main__":
    main()
