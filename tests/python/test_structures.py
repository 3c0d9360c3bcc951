"""The structures of _native.py are those of headwater.h: each field in its place, by a C compiler."""

import ctypes
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import support

from headwater import _native

INCLUDE = pathlib.Path(__file__).resolve().parents[2] / "include"
NAMES = {"Shape": "shape", "LayerOptions": "layer_options", "Options": "options", "EffectiveOptions": "effective_options",
         "Rows": "rows", "LseOutput": "lse_output", "StoredRows": "stored_rows", "MemoryBytes": "memory_bytes",
         "Chunk": "chunk", "MemoryView": "memory_view"}


class Structures(unittest.TestCase):
    def test_fields_lie_where_the_header_says(self):
        compiler = shutil.which("cc") or shutil.which("gcc")
        self.assertIsNotNone(compiler, "no C compiler")
        lines, wanted = [], {}
        for name, c_name in NAMES.items():
            structure = getattr(_native, name)
            for field, _ in structure._fields_:
                place = getattr(structure, field)
                wanted[f"{name}.{field}"] = (place.offset, place.size)
                lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof(headwater_{c_name}, {field}), '
                             f"sizeof(((headwater_{c_name}*)0)->{field}));")
            wanted[name] = (ctypes.sizeof(structure), len(structure._fields_))
            lines.append(f'printf("{name} %zu {len(structure._fields_)}\\n", sizeof(headwater_{c_name}));')
        with tempfile.TemporaryDirectory() as folder:
            source, program = pathlib.Path(folder, "fields.c"), pathlib.Path(folder, "fields")
            source.write_text('#include <stddef.h>\n#include <stdio.h>\n#include "headwater/headwater.h"\n'
                              "int main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n", encoding="utf-8")
            subprocess.run([compiler, "-std=c11", f"-I{INCLUDE}", str(source), "-o", str(program)], check=True)
            said = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
        got = {name: (int(first), int(second)) for name, first, second in map(str.split, said.splitlines())}
        self.assertEqual(got, wanted)
        self.assertGreater(len(got), 90)

    def test_every_function_is_there(self):
        header = (INCLUDE / "headwater/headwater.h").read_text(encoding="utf-8")
        for name in (*_native._CALLS, *_native._TEXTS):
            self.assertIn(f"headwater_{name}(", header)
            self.assertTrue(hasattr(support.headwater._native.library, f"headwater_{name}"))


if __name__ == "__main__":
    unittest.main()
