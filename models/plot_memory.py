#!/usr/bin/env python3
"""Draws which tokens each chunk of a `headwater attend` output read.

    python3 models/plot_memory.py OUT.safetensors -o memory.png

One panel for each query head (the first eight): key positions to the right, chunks downwards; a chunk's local
window, its heavy hitters and its own tokens in three colours that colour-blind readers tell apart. The panel on top
shows how many query heads still kept a position as a heavy hitter in the end. The title says how many query-key pairs
were computed. Exit status: 0 done, 2 bad usage or a file that is no such output (one line on standard error).
"""

import argparse
import json
import logging
import math
import os
import pathlib
import struct
import sys

import matplotlib

logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # a machine's first font cache is no error
matplotlib.use("Agg")  # a file, not a window
import matplotlib.pyplot as plt  # noqa: E402: the backend comes first
import numpy as np  # noqa: E402
from matplotlib.patches import Patch  # noqa: E402

# Okabe and Ito, "Color Universal Design", 2008.
OWN, LOCAL, HEAVY = "#BBBBBB", "#56B4E9", "#D55E00"
MOST_HEADS = 8           # panels; more could not be read
MOST_CHUNKS = 512        # rows of a panel
LONGEST_NAME = 60        # letters of the file's name in the picture
MOST_HEADER = 100_000_000  # bytes, the format's own limit
TYPES = {"F32": np.dtype("<f4"), "I32": np.dtype("<i4")}


class BadFile(Exception):
    """Says in one line what is wrong."""


def read_tensor(file, header, start, name):
    """One tensor of a safetensors file; every number is checked against the file before anything is read."""
    entry = header.get(name)
    if not isinstance(entry, dict):
        raise BadFile(f"has no tensor '{name}'; was it written with --no-trace?")
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    dtype = TYPES.get(str(entry.get("dtype")))
    numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) else [None]
    if dtype is None or len(offsets) != 2 or not all(type(n) is int and 0 <= n < 2**62 for n in numbers):
        raise BadFile(f"tensor '{name}' is not described as attend does it")
    begin, end = offsets
    if math.prod(shape) * dtype.itemsize != end - begin or start + end > os.fstat(file.fileno()).st_size:
        raise BadFile(f"tensor '{name}' does not lie within the file")
    file.seek(start + begin)
    return np.frombuffer(file.read(end - begin), dtype=dtype).reshape(shape)


def read_output(path):
    """(chunk_start [C+1], memory [C,Hq,M], local L) of an attend output."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))[0]
        if not 2 <= length <= min(MOST_HEADER, size - 8):
            raise BadFile("is not a safetensors file")
        try:
            header = json.loads(file.read(length))
            metadata = header["__metadata__"]
            local = int(metadata["local"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise BadFile("has no header of an attend output") from None
        if metadata.get("select", "h2o") != "h2o":
            raise BadFile("has sets of query blocks; the picture shows those of chunks, which --select h2o writes")
        chunk_start = read_tensor(file, header, 8 + length, "chunk_start")
        memory = read_tensor(file, header, 8 + length, "memory")
    if chunk_start.ndim != 1 or memory.ndim != 3 or len(chunk_start) != memory.shape[0] + 1 or memory.shape[1] < 1:
        raise BadFile("has tensors 'chunk_start' and 'memory' that do not fit together")
    if memory.shape[0] < 1 or chunk_start[0] != 0 or np.any(np.diff(chunk_start) < 1):
        raise BadFile("has a chunk_start that does not ascend from 0")
    if memory.shape[0] > MOST_CHUNKS:
        raise BadFile(f"has {memory.shape[0]} chunks; a picture of more than {MOST_CHUNKS} could not be read")
    if np.any(memory >= chunk_start[:-1, None, None]) or np.any(memory < -1) or local < 0:
        raise BadFile("has a memory set with positions outside of what came before its chunk")
    return chunk_start.astype(np.int64), memory, local


def split_memory(memory, chunk_start, local):
    """For each chunk and head: (local positions, heavy positions). MEM-1: the newest L tokens before the chunk."""
    sets = []
    for c in range(memory.shape[0]):
        first = max(0, chunk_start[c] - local)
        rows = [row[row >= 0] for row in memory[c]]
        sets.append([(row[row >= first], row[row < first]) for row in rows])
    return sets


def count_pairs(chunk_start, memory):
    """(computed, dense) query-key pairs of one head. A chunk with an empty memory that is not the first was dense."""
    computed = 0
    for c, (begin, end) in enumerate(zip(chunk_start[:-1], chunk_start[1:])):
        n, kept = int(end - begin), int((memory[c, 0] >= 0).sum())
        computed += n * (n + 1) // 2 + n * (kept if kept > 0 else int(begin))
    n = int(chunk_start[-1])
    return computed, n * (n + 1) // 2


def paint(axes, positions, row, n, colour, columns):
    """Marks positions in one row of a panel. Each of `columns` pixels is as dark as its share of marked positions,
    but never too pale to be seen."""
    if len(positions) == 0:
        return
    edges = np.linspace(0, n, columns + 1)
    count, _ = np.histogram(positions, bins=edges)
    share = count / np.maximum(1, np.diff(edges))
    image = np.zeros((1, columns, 4))
    image[..., :3] = matplotlib.colors.to_rgb(colour)
    image[0, :, 3] = np.where(count > 0, np.clip(0.45 + 0.55 * share, 0, 1), 0)
    axes.imshow(image, extent=(0, n, row + 0.92, row + 0.08), aspect="auto", interpolation="nearest", zorder=2)


def draw_head(axes, sets, chunk_start, head, columns):
    n, chunks = int(chunk_start[-1]), len(sets)
    for c in range(chunks):
        begin, end = int(chunk_start[c]), int(chunk_start[c + 1])
        axes.barh(c + 0.5, end - begin, left=begin, height=0.84, color=OWN, linewidth=0, zorder=1)
        local, heavy = sets[c][head]
        paint(axes, local, c, n, LOCAL, columns)
        paint(axes, heavy, c, n, HEAVY, columns)
    axes.set_xlim(0, n)
    axes.set_ylim(chunks, 0)
    step = max(1, math.ceil(chunks / 8))
    axes.set_yticks(np.arange(0, chunks, step) + 0.5, np.arange(0, chunks, step))
    axes.tick_params(length=0, labelsize=8)
    axes.set_ylabel(f"head {head}\nchunk", fontsize=9)
    for side in axes.spines.values():
        side.set_visible(False)


def draw_survivors(axes, sets, chunk_start, heads):
    """Height of a position: query heads whose last memory set has it as a heavy hitter."""
    n = int(chunk_start[-1])
    read = [chunk for chunk in sets if any(len(heavy) + len(local) for local, heavy in chunk)]
    count = np.zeros(n, dtype=int)
    for _, heavy in read[-1] if read else []:
        count[heavy] += 1
    at = np.flatnonzero(count)
    axes.vlines(at, 0, count[at], color=HEAVY, linewidth=0.6)
    axes.set_xlim(0, n)
    axes.set_ylim(0, heads)
    axes.set_yticks([0, heads])
    axes.tick_params(length=0, labelsize=8)
    axes.set_ylabel("heads that\nkept it", fontsize=9)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_title("heavy hitters of the last memory set", fontsize=9, loc="left", pad=4)


def draw(chunk_start, memory, local, name):
    sets = split_memory(memory, chunk_start, local)
    n, heads = int(chunk_start[-1]), memory.shape[1]
    shown = min(heads, MOST_HEADS)
    panel = min(2.2, max(0.9, 0.085 * len(sets) + 0.4))  # inches; many chunks need taller panels
    height = 1.75 + 0.8 + shown * (panel + 0.15)
    figure, axes = plt.subplots(shown + 1, 1, figsize=(11, height), sharex=True, dpi=120,
                                gridspec_kw={"height_ratios": [0.7] + [panel] * shown, "hspace": 0.25})
    columns = min(n, 1024)
    draw_survivors(axes[0], sets, chunk_start, heads)
    for head in range(shown):
        draw_head(axes[head + 1], sets, chunk_start, head, columns)
    axes[-1].set_xlabel("position of the key")
    computed, dense = count_pairs(chunk_start, memory)
    top = 1 - 0.62 / height
    title = f"Which tokens each chunk reads: {100 * computed / dense:.1f} % of the query-key pairs of dense attention"
    figure.suptitle(title, x=0.075, y=1 - 0.12 / height, ha="left", va="top", fontsize=13, weight="bold")
    limit = "" if shown == heads else f", {shown} of them shown"
    plain = "".join(c if c.isprintable() else "?" for c in name[:LONGEST_NAME]).replace("$", r"\$")  # no mathematics
    pairs = f"{computed:,} of {dense:,} pairs a head".replace(",", "\N{THIN SPACE}")
    figure.text(0.075, 1 - 0.42 / height,
                f"{plain}: {n} tokens, {len(sets)} chunks, {heads} query heads{limit}; {pairs}",
                ha="left", va="top", fontsize=9.5)
    handles = [Patch(color=OWN, label="its own chunk")]
    if any(len(near) for chunk in sets for near, _ in chunk):
        handles.append(Patch(color=LOCAL, label=f"local window (newest {local})"))
    if any(len(heavy) for chunk in sets for _, heavy in chunk):
        handles.append(Patch(color=HEAVY, label=f"heavy hitters (best {memory.shape[2] - local})"))
    figure.legend(handles=handles, loc="upper right", ncol=3, frameon=False, fontsize=9,
                  bbox_to_anchor=(0.985, 1 - 0.6 / height))
    figure.subplots_adjust(left=0.075, right=0.985, top=top - 0.45 / height, bottom=0.5 / height)
    return figure


def main():
    parser = argparse.ArgumentParser(prog="plot_memory.py", description="Draws which tokens each chunk read.")
    parser.add_argument("output", metavar="OUT.safetensors", help="written by headwater attend")
    parser.add_argument("-o", "--png", required=True, help="the picture to write")
    arguments = parser.parse_args()
    path = pathlib.Path(arguments.output)
    try:
        chunk_start, memory, local = read_output(path)
        figure = draw(chunk_start, memory, local, path.name)
        figure.savefig(arguments.png, format="png", metadata={"Software": None})
    except (BadFile, OSError, MemoryError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or "out of memory"
        where = arguments.png if isinstance(error, OSError) and error.filename == arguments.png else arguments.output
        print(f"plot_memory.py: {where!r}: {reason}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
