"""test_product.py BUILD NINJA CMAKE: what is installed is what headwater_product builds, and nothing is installed in part.

The install scripts of BUILD name every file that they take; those that ninja makes are the ones that can be lacking.
"""

import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BUILD, NINJA, CMAKE = Path(), "", ""


def ninja(*arguments):
    return subprocess.run([NINJA, "-C", str(BUILD), "-t", *arguments], capture_output=True, text=True, check=True).stdout


def built_files():
    """The files named by the install script that ninja makes, relative to BUILD."""
    made = {line.rpartition(": ")[0] for line in ninja("targets", "all").splitlines()}
    script = (BUILD / "cmake_install.cmake").read_text(encoding="utf-8")
    named = re.findall(rf'"{re.escape(str(BUILD))}/([^"]+)"', script)
    return sorted(set(named) & made)


class Product(unittest.TestCase):
    def test_the_install_script_takes_libraries_and_programs(self):
        names = {Path(name).name for name in built_files()}
        self.assertLessEqual({"libheadwater.a", "libheadwater.so", "headwater", "headwater-conformance"}, names)

    def test_the_product_is_what_is_installed(self):
        targets = ["headwater_product"]
        # A file is made by a command, or is a node of the graph where a command names it otherwise.
        made = set(ninja("commands", *targets).split()) | set(re.findall(r'label="([^"]+)"', ninja("graph", *targets)))
        self.assertEqual([name for name in built_files() if name not in made], [])

    def test_one_file_is_not_built_and_nothing_is_installed(self):
        script = (BUILD / "cmake_install.cmake").read_text(encoding="utf-8")
        names = built_files()
        for lacking in names:
            with self.subTest(lacking), tempfile.TemporaryDirectory() as folder:
                changed = script
                for name in names:
                    stand_in = Path(folder, Path(name).name)
                    changed = changed.replace(f'"{BUILD}/{name}"', f'"{stand_in}"')
                    if name != lacking:
                        stand_in.touch()
                Path(folder, "install.cmake").write_text(changed, encoding="utf-8")
                prefix = Path(folder, "prefix")
                done = subprocess.run([CMAKE, f"-DCMAKE_INSTALL_PREFIX={prefix}", "-P", f"{folder}/install.cmake"],
                                      capture_output=True, text=True, check=False)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn("headwater_product", done.stderr)
                self.assertIn(Path(folder, Path(lacking).name).as_posix(), done.stderr)
                self.assertFalse(prefix.exists(), "half an installation is left")


if __name__ == "__main__":
    BUILD, NINJA, CMAKE = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    unittest.main(argv=sys.argv[:1])
