"""exports.py NM LIBRARY HEADER: the library exports the header's functions, all of them, and no other C name."""

import re
import subprocess
import sys

nm, library, header = sys.argv[1:]
listing = subprocess.run([nm, "-D", "--defined-only", library], capture_output=True, text=True, check=True)
symbols = [line.split()[-1].partition("@")[0] for line in listing.stdout.splitlines()]
exported = {name for name in symbols if not name.startswith("_")}
with open(header, encoding="utf-8") as file:
    text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.DOTALL)
declared = set(re.findall(r"HEADWATER_API\s+[\w\s*]*?\b(headwater_\w+)\s*\(", text))

problems = [f"{name} is declared and not exported" for name in sorted(declared - exported)]
problems += [f"{name} is exported and not declared" for name in sorted(exported - declared)]
# The C++ API: its types must be one object for exceptions and virtual calls across the library's border.
for symbol in ("_ZN9headwater7enginesEv", "_ZTIN9headwater5ErrorE", "_ZTIN9headwater7SessionE"):
    if symbol not in symbols:
        problems.append(f"{symbol} is not exported")
# Nothing of the inside: engines, kernels, core.
for symbol in symbols:
    if re.search(r"N9headwater\d+(core|cpu|reference|c_abi)", symbol):
        problems.append(f"{symbol} belongs to the inside and is exported")
print("\n".join(problems) or f"{len(declared)} functions declared and exported")
sys.exit(1 if problems or not declared else 0)
