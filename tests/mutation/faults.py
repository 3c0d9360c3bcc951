"""The faults of one line that mutate.py plants."""

import re

# (what it is called, pattern, replacement); each match of a line is one candidate.
REPLACEMENTS = [
    ("< to <=", r"(?<=[\w\)\]] )<(?= [\w\(\-])", "<="),
    ("<= to <", r"(?<= )<=(?= )", "<"),
    ("> to >=", r"(?<=[\w\)\]] )>(?= [\w\(\-])", ">="),
    (">= to >", r"(?<= )>=(?= )", ">"),
    ("== to !=", r"(?<= )==(?= )", "!="),
    ("!= to ==", r"(?<= )!=(?= )", "=="),
    ("+ to -", r"(?<=[\w\)\]] )\+(?= [\w\(])", "-"),
    ("- to +", r"(?<=[\w\)\]] )-(?= [\w\(])", "+"),
    ("* to +", r"(?<=[\w\)\]] )\*(?= [\w\(])", "+"),
    ("/ to *", r"(?<=[\w\)\]] )/(?= [\w\(])", "*"),
    ("% to /", r"(?<=[\w\)\]] )%(?= [\w\(])", "/"),
    ("+= to -=", r"(?<= )\+=(?= )", "-="),
    ("+= to =", r"(?<= )\+=(?= )", "="),
    ("&& to ||", r"(?<= )&&(?= )", "||"),
    ("|| to &&", r"(?<= )\|\|(?= )", "&&"),
    ("min to max", r"std::min\b", "std::max"),
    ("max to min", r"std::max\b", "std::min"),
    ("0 to 1", r"(?<=[ \(\[])0(?=[;,\) \]])", "1"),
    ("1 to 0", r"(?<=[ \(\[])1(?=[;,\) \]])", "0"),
    ("1 to 2", r"(?<=[ \(\[])1(?=[;,\) \]])", "2"),
    ("begin to end", r"\bbegin\b(?!\()", "end"),
    ("end to begin", r"\bend\b(?!\()", "begin"),
    ("true to false", r"\btrue\b", "false"),
    ("false to true", r"\bfalse\b", "true"),
    ("drop !", r"(?<=[\( ])!(?=\w)", ""),
    ("exp to exp2", r"std::exp\(", "std::exp2("),
    ("swapped arguments", r"\((\w+), (\w+)\)", r"(\2, \1)"),
    ("constant * 1.01", r"(?<![\w.])(\d+\.\d+)(f?)(?![\w.])", None),
]
SKIPPED_LINE = re.compile(r"^\s*(//|#|\*|namespace|using|template|static_assert|class|struct|\[\[)|HEADWATER_SABOTAGE|"
                          r"HEADWATER_MARK|std::to_string|\"")
STATEMENT = re.compile(r"^\s+[\w:\.\->\[\]\(\)\*]+(\(.*\)| [-+*/|&]?= .*);$")


def candidates(text):
    """(line index, name, new line) of every fault that a file offers."""
    found = []
    for index, line in enumerate(text.split("\n")):
        if SKIPPED_LINE.search(line):
            continue
        code, _, tail = line.partition(" //")
        tail = f" //{tail}" if tail else ""
        for name, pattern, replacement in REPLACEMENTS:
            for match in re.finditer(pattern, code):
                if replacement is None:
                    new = f"{float(match.group(1)) * 1.01 + (match.group(1).strip('0.') == '') * 0.01:.9g}"
                    new += ("" if "." in new or "e" in new else ".0") + match.group(2)
                else:
                    new = match.expand(replacement)
                changed = code[: match.start()] + new + code[match.end() :]
                if changed != code:
                    found.append((index, name, changed + tail))
        if STATEMENT.match(code) and not code.strip().startswith(("return", "throw", "delete")):
            found.append((index, "dropped statement", re.match(r"\s*", code).group() + ";" + tail))
    return found
