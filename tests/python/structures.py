"""Structures and functions of a module of the package against the header that they are written down from."""

import ctypes
import pathlib
import shutil
import subprocess
import tempfile

INCLUDE = pathlib.Path(__file__).resolve().parents[2] / "include"


def compare(case, header, module, names):
    """Each field of each structure lies where a C compiler has it, and there are no others. names: {class: C name}."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    case.assertIsNotNone(compiler, "no C compiler")
    lines, wanted = [], {}
    for name, c_name in names.items():
        structure = getattr(module, name)
        for field, _ in structure._fields_:
            place = getattr(structure, field)
            wanted[f"{name}.{field}"] = (place.offset, place.size)
            lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof(headwater_{c_name}, {field}), '
                         f"sizeof(((headwater_{c_name}*)0)->{field}));")
        wanted[name] = (ctypes.sizeof(structure), len(structure._fields_))
        lines.append(f'printf("{name} %zu {len(structure._fields_)}\\n", sizeof(headwater_{c_name}));')
    with tempfile.TemporaryDirectory() as folder:
        source, program = pathlib.Path(folder, "fields.c"), pathlib.Path(folder, "fields")
        source.write_text(f'#include <stddef.h>\n#include <stdio.h>\n#include "{header}"\n'
                          "int main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n", encoding="utf-8")
        subprocess.run([compiler, "-std=c11", f"-I{INCLUDE}", str(source), "-o", str(program)], check=True)
        said = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    got = {name: (int(first), int(second)) for name, first, second in map(str.split, said.splitlines())}
    case.assertEqual(got, wanted)
    case.assertGreater(len(got), len(names))


def declared(case, header, names, library):
    """Each function is declared by the header and found in the library."""
    text = (INCLUDE / header).read_text(encoding="utf-8")
    for name in names:
        case.assertIn(f"headwater_{name}(", text)
        case.assertTrue(hasattr(library, f"headwater_{name}"))
