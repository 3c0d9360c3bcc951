"""The structures of _native.py are those of headwater.h: each field in its place, by a C compiler."""

import unittest

import structures
import support

from headwater import _native

NAMES = {"Shape": "shape", "LayerOptions": "layer_options", "Options": "options", "EffectiveOptions": "effective_options",
         "Rows": "rows", "LseOutput": "lse_output", "StoredRows": "stored_rows", "MemoryBytes": "memory_bytes",
         "Chunk": "chunk", "MemoryView": "memory_view"}


class Structures(unittest.TestCase):
    def test_fields_lie_where_the_header_says(self):
        structures.compare(self, "headwater/headwater.h", _native, NAMES)

    def test_every_function_is_there(self):
        structures.declared(self, "headwater/headwater.h", (*_native._CALLS, *_native._TEXTS),
                            support.headwater._native.library)


if __name__ == "__main__":
    unittest.main()
