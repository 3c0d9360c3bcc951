"""What the cells of an evaluation say: summaries, a table in Markdown, a plot."""

import math
import statistics

from . import tasks

COLOURS = {"dense": "#000000", "h2o": "#D55E00", "window": "#56B4E9", "blocks": "#0072B2", "sketches": "#009E73"}


def wilson(mean, count):
    """Wilson's interval of 95 % for a share, the mean of `count` scores from 0 to 1 (wider than needed for scores between)."""
    z = statistics.NormalDist().inv_cdf(0.975)
    centre = (mean + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(mean * (1 - mean) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return min(mean, max(0.0, centre - half)), max(mean, min(1.0, centre + half))  # not a rounding inside 0 and 1


def mean_and_error(values):
    """(mean, its standard error, None for one value)."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return statistics.fmean(values), error


def _answers(results, first_line):
    answers = [result["answer"].strip().partition("\n")[0] if first_line else result["answer"] for result in results]
    scores = [tasks.match_all(answer, result["wanted"]) for answer, result in zip(answers, results)]
    mean = statistics.fmean(scores)
    low, high = wilson(mean, len(scores))
    return {"samples": len(scores), "score": mean, "low": low, "high": high,
            "any": statistics.fmean(tasks.match_part(answer, result["wanted"]) for answer, result in zip(answers, results))}


def _losses(rule, results, dense):
    """Over windows. "prefill" of rules blocks and sketches is taken after query blocks, and compared with dense losses there."""
    found = {"windows": len(results)}
    inside = "ends" if rule in ("blocks", "sketches") else "prefill"
    for name, key in (("prefill", inside), ("decoded", "decoded")):
        if any(result[key] is None for result in results):
            continue
        mean, error = mean_and_error([result[key] for result in results])
        found[name] = {"nll": mean, "stderr": error}
        if dense and rule != "dense":
            mean, error = mean_and_error([result[key] - other[key] for result, other in zip(results, dense)])
            found[name] |= {"difference": mean, "difference_stderr": error}
    return found


def _first_token(cells):
    """Medians over the prompts that one run timed with every rule, one after the other: what else a machine did, and what a
    day it was, is the same for all rules. Of a length without such a prompt there are none."""
    timed, rules_of = {}, {}
    for (rule, length, task, sample), result in cells.items():
        if not task.startswith("text "):
            timed.setdefault((length, task, sample, result.get("run")), {})[rule] = result["seconds"]
            rules_of.setdefault(length, {})[rule] = None
    found = []
    for length, rules in rules_of.items():
        whole = [seconds for key, seconds in timed.items() if key[0] == length and seconds.keys() == rules.keys()]
        if not whole:
            continue
        medians = {rule: statistics.median(seconds[rule] for seconds in whole) for rule in rules}
        found += [{"rule": rule, "length": length, "samples": len(whole), "median": median,
                   "of_dense": median / medians["dense"] if "dense" in medians else None} for rule, median in medians.items()]
    return found


def summarize(cells, rules, first_line=False):
    """cells: of (rule, length, task, sample) -> result, in order; a task "text NAME" holds losses. first_line: answers
    end there.

    Returns {"answers": [..], "losses": [..], "first_token": [..]}: dicts with rule, length, task, and what was found.
    """
    groups = {}
    for (rule, length, task, _sample), result in cells.items():
        groups.setdefault((rule, length, task), []).append(result)
    found = {"answers": [], "losses": [], "first_token": []}
    for (rule, length, task), results in groups.items():
        head = {"rule": rule, "length": length, "task": task}
        if task.startswith("text "):
            found["losses"].append(head | _losses(rule, results, groups.get(("dense", length, task))))
        else:
            found["answers"].append(head | _answers(results, first_line))
    found["first_token"] = _first_token(cells)
    for rows in found.values():
        order = list(dict.fromkeys(row.get("task") for row in rows))
        rows.sort(key=lambda row: (order.index(row.get("task")), rules.index(row["rule"]), row["length"]))
    return found


# ---- Markdown ----


def _table(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _shown(name):
    """Of a text its file's name alone, without its digest."""
    return _plain(name[5:].rpartition(" ")[0] if name.startswith("text ") else name)


def _plain(text):
    """Names of files and models are anybody's: nothing that would leave a line or a cell of a table."""
    return "".join("?" if letter in "`|<" or not letter.isprintable() else letter for letter in text)


def _by_length(entries, keys, cell):
    """Rows: what the keys say, then a cell for each length."""
    lengths = sorted({entry["length"] for entry in entries})
    rows = {}
    for entry in entries:
        rows.setdefault(tuple(entry[key] for key in keys), {})[entry["length"]] = cell(entry)
    shown = [[*(f"`{_shown(name)}`" for name in row), *(cells.get(length, "") for length in lengths)]
             for row, cells in rows.items()]
    return _table([*keys, *map(str, lengths)], shown)


def _with_error(value, error, form):
    return form.format(value) + ("" if error is None else f" ({form.format(error).lstrip('+')})")


def _loss(name):
    def cell(entry):
        if name not in entry:
            return ""
        loss = entry[name]
        if "difference" not in loss:
            return _with_error(loss["nll"], loss["stderr"], "{:.4f}") + " nats"
        error = loss["difference_stderr"]
        return _with_error(100 * math.expm1(loss["difference"]), None if error is None else 100 * error, "{:+.2f}") + " %"
    return cell


def markdown(found, settings):
    """The report as Markdown; settings: lines that say how it was measured."""
    parts = ["# Evaluation", "\n".join(f"- {_plain(line)}" for line in settings)]
    if found["answers"]:
        parts += ["## Answers", "Per cent of the wanted strings that answers hold, with Wilson's interval of 95 %.",
                  _by_length(found["answers"], ("task", "rule"), lambda entry: (
                      f"{100 * entry['score']:.0f} ({100 * entry['low']:.0f} to {100 * entry['high']:.0f})"))]
    for name, about in (("prefill", "Tokens inside the prefill; of rules `blocks` and `sketches` those after a query block."),
                        ("decoded", "Tokens that are decoded densely after the prefill.")):
        if any(name in entry for entry in found["losses"]):
            parts += [f"## Perplexity, {name}", f"{about} Mean loss of a token, or the change of perplexity against dense, "
                      "with the standard error over windows.", _by_length(found["losses"], ("task", "rule"), _loss(name))]
    if found["first_token"]:
        parts += ["## Time to the first token", "Seconds, median over the prompts of a length that one run timed with every "
                  "rule in turn, and the ratio to dense.",
                  _by_length(found["first_token"], ("rule",), lambda entry: f"{entry['median']:.3f}" + (
                      "" if entry["of_dense"] is None else f" ({entry['of_dense']:.2f})"))]
    return "\n\n".join(parts) + "\n"


# ---- plot ----


def plot(found, path):
    """Draws the answers' mean over tasks, the change of perplexity, and the time to the first token. Needs matplotlib."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot

    # Deterministic files: no date, ids that do not change.
    with matplotlib.rc_context({"svg.hashsalt": "headwater", "font.size": 9, "axes.spines.top": False,
                                "axes.spines.right": False}):
        figure, panels = matplotlib.pyplot.subplots(1, 3, figsize=(10, 3.2))
        _lines(panels[0], found["answers"], lambda entry: 100 * entry["score"], "wanted strings found, %")
        _lines(panels[1], [entry for entry in found["losses"] if "difference" in entry.get("prefill", {})],
               lambda entry: 100 * math.expm1(entry["prefill"]["difference"]),
               "perplexity against dense,\ninside the prefill, %")
        _lines(panels[2], found["first_token"], lambda entry: entry["median"], "time to the first token, s")
        figure.tight_layout()
        figure.savefig(path, format="svg", metadata={"Date": None})
        matplotlib.pyplot.close(figure)


def _lines(panel, entries, value, label):
    values = {}
    for entry in entries:
        values.setdefault(entry["rule"], {}).setdefault(entry["length"], []).append(value(entry))
    if len({entry["length"] for entry in entries}) == 1:  # a point a rule says nothing: bars, each with its number
        (length,) = {entry["length"] for entry in entries}
        heights = [statistics.fmean(by_length[length]) for by_length in values.values()]
        bars = panel.bar(list(values), heights, color=[COLOURS[rule] for rule in values], width=0.6)
        panel.bar_label(bars, fmt="%.3g", fontsize=7)
        panel.margins(y=0.12)
        panel.set_xlabel(f"rule, at {length} tokens")
        panel.set_ylabel(label)
        return
    for rule, by_length in values.items():
        lengths = sorted(by_length)
        panel.plot(lengths, [statistics.fmean(by_length[length]) for length in lengths], color=COLOURS[rule], marker="o",
                   markersize=3.5, label=rule)
    panel.set_xlabel("tokens of a prompt and its answer")
    panel.set_ylabel(label)
    if values:
        panel.legend(frameon=False, fontsize=7)
