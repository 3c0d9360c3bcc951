"""The figures of docs/performance.md and docs/notes/measured.md: measures, prints the tables, writes plots, fills the pages.

Between `<!-- measured NAME -->` and `<!-- end -->` a page belongs to this script: nothing there is written by hand. What
was measured stays in build/bench as JSON; --no-measure makes pages and plots again from there. Figures of a busy machine
are worth little; the load at the start is printed with them.
"""

import argparse
import os
import pathlib
import re
import sys
import textwrap

import measure
import plots
import tables

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "peers"))
PAGES = [ROOT / "docs" / "performance.md", ROOT / "docs" / "notes" / "measured.md"]


def arguments():
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="fewer sizes and rounds: under four minutes")
    extent.add_argument("--tiny", action="store_true", help="does it run? the figures mean nothing")
    parser.add_argument("--only", metavar="NAMES",
                        help=f"subjects to measure: {','.join(measure.SUBJECTS)} (all; --quick leaves out sweeps)")
    parser.add_argument("--no-measure", action="store_true", help="from what was measured before")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release", help=argparse.SUPPRESS)
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "build" / "bench", metavar="FOLDER",
                        help="what was measured, as JSON (build/bench)")
    parser.add_argument("--page", type=pathlib.Path, action="append", dest="pages", metavar="FILE",
                        help="a page to fill, may be given several times (docs/performance.md, docs/notes/measured.md)")
    parser.add_argument("--plots", type=pathlib.Path, default=ROOT / "docs" / "plots", metavar="FOLDER",
                        help="where plots go (docs/plots)")
    chosen = parser.parse_args()
    chosen.pages = chosen.pages or PAGES
    if chosen.only is None:
        chosen.only = ",".join(name for name in measure.SUBJECTS if name != "sweeps" or not chosen.quick)
    chosen.only = chosen.only.split(",")
    for name in chosen.only:
        if name not in measure.SUBJECTS:
            parser.error(f"--only: '{name}' is not known; allowed: {', '.join(measure.SUBJECTS)}")
    return chosen


def caption(found):
    """Machine, day, build and load."""
    machine = found["machine"]
    cpu = machine["info"]["cpu"]
    return (f"{cpu['brand']} (family {cpu['family']}, model {cpu['model']}), {cpu['cores']} cores; {machine['date']}; "
            f"build {machine['build']}; load before: {machine['load']}.")


# Subject -> (plot, what a reader sees in it)
PICTURES = {"engines": ("share-of-peak", "Share of the peak that each engine reaches"),
            "lengths": ("sparse-against-dense", "Times of sparse and dense attention, and their ratio"),
            "growth": ("tokens-per-second", "Tokens per second over the length of the prompt"),
            "threads": ("threads", "Two threads against one"),
            "decode": ("decode", "Decode steps against reading alone"),
            "stages": ("stages", "Where the time of a pair goes, per instruction set"),
            "peers": ("peers", "Times of PyTorch and llama.cpp over ours")}


def with_pictures(contents, plot_folder, page):
    """Each section with its plot after it, where it was drawn."""
    result = {}
    for name, text in contents.items():
        picture, meaning = PICTURES.get(name, (None, None))
        path = plot_folder / f"{picture}.svg"
        shown = picture and path.exists()
        result[name] = f"{text}\n\n![{meaning}]({os.path.relpath(path, page.parent)})" if shown else text
    return result


def texts(found):
    """{name: Markdown} of what was measured."""
    result = {}
    if "machine" in found:
        result["machine"] = caption(found)
    for name, make in tables.TABLES.items():
        if name in found:
            result[name] = make(found[name])
    if "peers" in found:
        import compare  # pylint: disable=import-outside-toplevel
        peers = found["peers"]
        said = (f"{peers['processor']}; engine `{peers['engine']}` ({peers['isa']}); {peers['torch']}; "
                f"{peers['ggml']}; load before: {peers['load'][0]:.1f}.")
        result["peers"] = f"{textwrap.fill(said, 118)}\n\n{compare.table(peers['cases'])}"
    return result


def filled(page, contents):
    """The page with every section that was measured replaced; what was not measured stays."""
    def section(match):
        name = match[1]
        return f"<!-- measured {name} -->\n{contents[name]}\n<!-- end -->" if name in contents else match[0]

    return re.sub(r"<!-- measured (\w+) -->\n.*?<!-- end -->", section, page, flags=re.DOTALL)


def main():
    chosen = arguments()
    sizes = measure.TINY if chosen.tiny else measure.QUICK if chosen.quick else measure.FULL
    if not chosen.no_measure:
        measure.measure(chosen.build, chosen.results, sizes, chosen.only)
    found = measure.read(chosen.results)
    contents = texts(found)
    if not contents:
        raise RuntimeError(f"nothing was measured yet in {chosen.results}")
    chosen.plots.mkdir(parents=True, exist_ok=True)
    for name, draw in plots.PLOTS.items():
        if name in found:
            draw(found[name], chosen.plots)
    for name, text in contents.items():
        print(f"\n{name}\n\n{text}")
    before = {page: page.read_text(encoding="utf-8") for page in chosen.pages}
    known = [name for text in before.values() for name in re.findall(r"<!-- measured (\w+) -->", text)]
    missing = [name for name in contents if name not in known]
    if missing:
        raise RuntimeError(f"no page has a section for: {', '.join(missing)}")
    for page, text in before.items():
        temporary = page.with_name(page.name + ".tmp")
        temporary.write_text(filled(text, with_pictures(contents, chosen.plots, page)), encoding="utf-8")
        temporary.replace(page)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, OSError, ValueError, KeyError) as error:
        print(f"report: {error}", file=sys.stderr)
        sys.exit(1)
