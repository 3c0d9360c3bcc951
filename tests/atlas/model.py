"""Computes what an atlas must show from the file of `attend`, by the definitions."""

import io

import numpy as np
from matplotlib.image import imread

OWN, LOCAL, HEAVY = (176, 180, 186), (86, 180, 233), (213, 94, 0)
PANEL, DENSE = (243, 244, 246), (214, 217, 222)
NAMED = (32, 33, 36), (0, 114, 178), (0, 158, 115), (204, 121, 167)  # curves


class Trace:
    def __init__(self, tensors, metadata):
        self.start = tensors["chunk_start"].values
        self.chunks, self.heads, width = tensors["memory"].shape
        entries = np.array(tensors["memory"].values, dtype=int).reshape(self.chunks, self.heads, width)
        self.sets = [[[int(p) for p in row if p >= 0] for row in chunk] for chunk in entries]
        self.n, self.local = self.start[-1], int(metadata["local"])
        self.scores = np.array(tensors["scores"].values).reshape(self.heads, self.n)

    def heavy(self, chunk, head):
        return [p for p in self.sets[chunk][head] if p < self.start[chunk] - self.local]

    def window(self, chunk, head):
        return [p for p in self.sets[chunk][head] if p >= self.start[chunk] - self.local]

    def pairs(self, head):
        """(own, local, heavy, dense)."""
        sums = [0, 0, 0, 0]
        for c in range(self.chunks):
            for _ in range(self.start[c], self.start[c + 1]):
                sums[1] += len(self.window(c, head))
                sums[2] += len(self.heavy(c, head))
                sums[3] += 0 if self.sets[c][head] else self.start[c]
            n = self.start[c + 1] - self.start[c]
            sums[0] += n * (n + 1) // 2
        return tuple(sums)

    def survival(self, head):
        """(share, tokens at risk) at ages 1, 2, ...: Kaplan and Meier's estimate, from how long each token lived and was seen."""
        lives = []  # (sets that held the token until the first that did not, sets since its chunk)
        for c in range(self.chunks):
            later = [set(self.sets[r][head]) for r in range(c + 1, self.chunks) if self.sets[r][head]]
            for token in range(self.start[c], self.start[c + 1]):
                lives.append((next((k for k, kept in enumerate(later) if token not in kept), len(later)), len(later)))
        share, shares, risks = 1.0, [], []
        for age in range(1, max(seen for _, seen in lives) + 1):
            risk = [life for life, seen in lives if life >= age - 1 and seen >= age]
            if not risk:
                break
            share *= 1 - sum(life == age - 1 for life in risk) / len(risk)
            shares.append(share)
            risks.append(len(risk))
        return shares, risks

    def heavy_reads(self, head):
        counts = [0] * self.n
        for c in range(self.chunks):
            for p in self.heavy(c, head):
                counts[p] += 1
        return counts


def pixels(png):
    """[height, width, 3] of a PNG's bytes, 0 .. 255."""
    return np.rint(imread(io.BytesIO(png))[..., :3] * 255).astype(int)


def count(picture, colour, tolerance=0):
    return int(np.all(np.abs(picture - np.array(colour)) <= tolerance, axis=-1).sum())
