"""exports.py NM LIBRARY HEADER [SYMBOL...]: the library exports the header's functions, all of them, and no other C name; and
these symbols of C++."""

import re
import subprocess
import sys

nm, library, header, *classes = sys.argv[1:]
listing = subprocess.run([nm, "-D", "--defined-only", library], capture_output=True, text=True, check=True)
symbols = [line.split()[-1].partition("@")[0] for line in listing.stdout.splitlines()]
exported = {name for name in symbols if not name.startswith("_")}
with open(header, encoding="utf-8") as file:
    text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.DOTALL)
declared = set(re.findall(r"HEADWATER_API\s+[\w\s*]*?\b(headwater_\w+)\s*\(", text))

problems = [f"{name} is declared and not exported" for name in sorted(declared - exported)]
problems += [f"{name} is exported and not declared" for name in sorted(exported - declared)]
problems += [f"{symbol} is not exported" for symbol in classes if symbol not in symbols]
# Nothing of the inside: engines, kernels, core, the classes of the runtime.
for symbol in symbols:
    if re.search(r"N9headwater\d+(core|cpu|reference|c_abi|runtime)", symbol):
        problems.append(f"{symbol} belongs to the inside and is exported")
print("\n".join(problems) or f"{len(declared)} functions declared and exported")
sys.exit(1 if problems or not declared else 0)
