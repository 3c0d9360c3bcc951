"""Plants the faults of a table into copies of sources: plant_faults.py --table FILE --out FOLDER SOURCE...

The reference must read like the paper, so its faults are not in its sources. An entry of conformance/saboteurs.json with
`file` says what the fault writes there (`after`) in place of an expression (`before`); `in`, where it is given, is the
text around that expression. Each must occur exactly once. The copy chooses when it runs:

    (HEADWATER_SABOTAGE("ref.dense.sink_missing") ? (after) : (before))

Without a fault switched on, the copy computes what its source computes. An entry that does not fit ends the build with one
line that names it.
"""

import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
# For the faults themselves.
INCLUDES = ("<algorithm>", "<bit>", "<cmath>", "<cstdint>", "<limits>", '"headwater/testing/sabotage.hpp"')


class Misfit(Exception):
    """An entry of the table that does not fit its source; one line."""


def span(text, fault):
    """(begin, end) in text of the expression that the fault replaces."""
    begin = 0
    for key in ("in", "before"):
        part = fault.get(key, text)
        if text.count(part) != 1:
            raise Misfit(f"fault {fault['name']}: \"{key}\" occurs {text.count(part)} times in {fault['file']}, must be "
                         f"once: {part!r}")
        begin += text.index(part)
        text = part
    return begin, begin + len(text)


def planted(text, faults):
    """The source with all of its faults in it, each line where it was."""
    choices = {}
    for fault in faults:
        choices.setdefault(span(text, fault), []).append(fault)
    end_of_last = 0
    pieces = []
    for (begin, end), here in sorted(choices.items(), key=lambda choice: choice[0]):
        if begin < end_of_last:
            raise Misfit(f"fault {here[0]['name']}: \"before\" overlaps that of another fault in {here[0]['file']}")
        choice = f"({text[begin:end]})"
        for fault in here:
            choice = f"(HEADWATER_SABOTAGE(\"{fault['name']}\") ? ({fault['after']}) : {choice})"
        pieces += [text[end_of_last:begin], choice]
        end_of_last = end
    return "".join([*pieces, text[end_of_last:]])


def faults_by_file(table):
    """{path from the repository's root: its faults}."""
    files = {}
    for fault in json.loads(table.read_text(encoding="utf-8"))["saboteurs"]:
        if "file" in fault:
            files.setdefault(fault["file"], []).append(fault)
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("sources", type=pathlib.Path, nargs="+")
    arguments = parser.parse_args()
    files = faults_by_file(arguments.table)
    includes = "".join(f"#include {header}\n" for header in INCLUDES)
    copies = {}
    try:
        for source in arguments.sources:
            text = planted(source.read_text(encoding="utf-8"), files.pop(source.relative_to(ROOT).as_posix(), []))
            copies[arguments.out / source.name] = f'{includes}#line 1 "{source}"\n{text}'
        for file, faults in files.items():
            raise Misfit(f"fault {faults[0]['name']}: {file} is not one of the sources that faults are planted in")
    except Misfit as misfit:
        return f"{arguments.table}: {misfit}"
    for copy, text in copies.items():
        copy.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
