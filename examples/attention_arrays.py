"""Attention over NumPy arrays: dense, sparse by both rules, and sparse with a dense tail.

    python3 examples/attention_arrays.py [TOKENS]
"""

import sys
import time

import numpy

import headwater

tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 4096
random = numpy.random.default_rng(1)
q = random.standard_normal((tokens, 8, 64), dtype=numpy.float32)
k = random.standard_normal((tokens, 2, 64), dtype=numpy.float32)
v = random.standard_normal((tokens, 2, 64), dtype=numpy.float32)
print(f"{tokens} tokens, 8 query heads, 2 key/value heads of 64, engine {headwater.info()['engine']}")


def timed(name, **options):
    begin = time.perf_counter()
    out = headwater.attention(q, k, v, **options)
    print(f"{name:<32}{1e3 * (time.perf_counter() - begin):8.1f} ms")
    return out


dense = timed("dense", dense=True)
timed("sparse, h2o, 256 + 256 of each", chunk=1024, local=256, heavy=256)
sparse = timed("sparse, blocks, 32 + 480", chunk=1024, local=32, heavy=480, pinned=8, select="blocks", dense_tail=64)
print(f"the last 64 tokens see every token: largest difference {numpy.abs(sparse - dense)[-64:].max():.1e}")
