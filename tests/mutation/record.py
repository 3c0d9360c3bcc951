"""What samples of mutants came to (judged.json, committed), and how far the sources have moved since, and since
the plan's metrics were measured (mutate.py)."""

import collections
import datetime
import json
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORD = pathlib.Path(__file__).with_name("judged.json")
METRICS = ROOT / "docs/plan-metrics.md"
METRICS_OF = ["reference/", "optimized/", "runtime/"]
MOST_MOVED = 0.1  # of the source lines; what was found in an older tree says little about this one


def git(*arguments):
    """Output, or None where git fails (an archive without a repository)."""
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def patterns(paths):
    """Of the files that mutate.py draws from."""
    return [f":(glob){path}**/*{suffix}" if path.endswith("/") else f"{path}*{suffix}"
            for path in paths for suffix in (".cpp", ".hpp")]


def samples():
    return json.loads(RECORD.read_text()) if RECORD.exists() else []


def verdicts():
    """Key -> (verdict, by what) of all mutants of all samples: a run in a fresh clone goes on where the record is."""
    known = {}
    for entry in samples():
        for by, keys in entry["killed"].items():
            known |= dict.fromkeys(keys, ("killed", by))
        known |= dict.fromkeys(entry["same_object_code"], ("equivalent", "same object code"))
        known |= dict.fromkeys(entry["refused_by_the_compiler"], ("refused", "compiler"))
        known |= {one["key"]: (one["verdict"], "") for one in entry["looked_at"] if one["verdict"] in ("SURVIVED", "open")}
    return known


def write(paths, seed, asked, mutants, results):
    """Sets the sample's entry to the verdicts that are there, up to the first mutant without one; explanations stay."""
    if git("status", "--porcelain", "--", *patterns(paths)) != "":
        raise SystemExit("--record: commit the sources first; the record names the commit that was judged")
    others = [entry for entry in samples() if (entry["paths"], entry["seed"]) != (paths, seed)]
    before = next((entry for entry in samples() if entry not in others), {"looked_at": []})
    explained = {entry["key"]: entry["explanation"] for entry in before["looked_at"]}
    counts, keys, looked_at = collections.Counter(), collections.defaultdict(list), []
    for mutant in mutants:
        known = results.get(mutant.key)
        if not known or counts["killed"] + counts["SURVIVED"] + counts["open"] == asked:
            break
        verdict = known["verdict"]
        counts[verdict] += 1
        keys[verdict, known["by"]].append(mutant.key)
        if verdict in ("SURVIVED", "open") or mutant.key in explained:
            looked_at.append({"key": mutant.key, "path": known["path"], "fault": known["fault"],
                              "before": known["before"], "after": known["after"], "verdict": verdict,
                              "explanation": explained.get(mutant.key, "")})
    entry = {"paths": paths, "seed": seed, "asked": asked,
             "commit": git("log", "-1", "--format=%H", "--", *patterns(paths)),
             "date": datetime.date.today().isoformat(),
             "drawn": counts.total(), "judged": counts["killed"] + counts["SURVIVED"] + counts["open"],
             "survived": counts["SURVIVED"], "open": counts["open"],
             "killed": {by: sorted(those) for (verdict, by), those in sorted(keys.items()) if verdict == "killed"},
             "same_object_code": sorted(keys["equivalent", "same object code"]),
             "refused_by_the_compiler": sorted(keys["refused", "compiler"]),
             "looked_at": sorted(looked_at, key=lambda one: (one["path"], one["before"], one["after"]))}
    others.append(entry)
    RECORD.write_text(json.dumps(others, indent=1) + "\n")
    unexplained = sum(not one["explanation"] for one in looked_at)
    print(f"{RECORD.relative_to(ROOT)}: {entry['judged']} of {asked} judged, {unexplained} to be looked at")


def lines_of(paths):
    listed = git("ls-files", "-z", "--", *patterns(paths))
    return sum((ROOT / name).read_text().count("\n") for name in listed.split("\0") if name and (ROOT / name).is_file())


def print_moved():
    """One line for each sample and for the plan's metrics: its commit, and the share of its source lines that changed since."""
    for entry in samples():
        print_share(f"mutants of {' '.join(entry['paths'])}, seed {entry['seed']}: {entry['judged']} judged",
                    entry["commit"], entry["date"], entry["paths"], "judge")
    facts = re.search(r"^Measured (\S+) at commit `(\w+)`", METRICS.read_text(encoding="utf-8"), re.MULTILINE)
    print_share(f"{METRICS.relative_to(ROOT)}: measured", facts[2], facts[1], METRICS_OF, "measure")


def print_share(what, commit, date, paths, anew):
    what += f" at {commit[:9]} ({date})"
    if git("cat-file", "-e", f"{commit}^{{commit}}") is None:
        print(f"{what}; that commit is not in this clone, so nothing can be said of what changed since")
        return
    numbers = git("diff", "--numstat", "--no-renames", commit, "--", *patterns(paths)).splitlines()
    changed = sum(max(map(int, line.split("\t")[:2])) for line in numbers)
    share = changed / max(1, lines_of(paths))
    print(f"{'warning: ' if share > MOST_MOVED else ''}{what}; {changed} source lines changed since "
          f"({100 * share:.1f} %)" + (f", more than {MOST_MOVED:.0%}: {anew} anew" if share > MOST_MOVED else ""))
