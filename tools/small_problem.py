"""Writes a small random input of `headwater attend`: python3 tools/small_problem.py OUT.safetensors"""

import json
import random
import struct
import sys

TOKENS, HEADS, KV_HEADS, WIDTH = 300, 4, 2, 8


def main():
    source, data, header = random.Random(1), b"", {}
    for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        count = TOKENS * heads * WIDTH
        rows = struct.pack(f"<{count}f", *(source.gauss(0.0, 1.0) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": [TOKENS, heads, WIDTH], "data_offsets": [len(data), len(data) + len(rows)]}
        data += rows
    text = json.dumps(header).encode()
    with open(sys.argv[1], "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    main()
