"""The targets of the CUDA engine (one layer, 32 heads, 8 key-value heads, d = 128, chunks of 1024, memory of 512, BF16) against what
a run of tools/gpu.py measured."""

import collections

Target = collections.namedtuple("Target", "name bound measured why_not")

LONG, SHORT, CHUNK = 131072, 16384, 1024
CHOOSING = ("summaries", "pools", "region votes", "region selection", "block votes", "block selection", "token votes", "sets")
HEADS, WIDTH, MEMORY, ELEMENT = 32, 128, 512, 2


def gathered_bytes(tokens):
    """Keys and values read and written: every chunk but the first has a full memory set."""
    return (tokens // CHUNK - 1) * HEADS * MEMORY * 2 * WIDTH * ELEMENT * 2


# Name, bound, ratio made of the milliseconds of both contenders, and of the bytes a second that a copy inside the device's
# memory read and wrote.
TARGETS = (
    ("intra forward against cuDNN at the same chunk length", (">=", 0.90),
     lambda own, peer, _: peer[f"cudnn {SHORT // CHUNK} x {CHUNK}"] / own[f"sparse {SHORT}: intra forward"]),
    ("column sums / intra forward", ("<=", 0.30),
     lambda own, *_: own[f"sparse {SHORT}: intra column sums"] / own[f"sparse {SHORT}: intra forward"]),
    (f"sparse layer against cuDNN's dense causal, N = {LONG}", (">=", 12.0),
     lambda own, peer, _: peer[f"cudnn 1 x {LONG}"] / own[f"sparse {LONG}: pipeline"]),
    (f"throughput at {LONG} / at {SHORT}", (">=", 0.95),
     lambda own, *_: own[f"sparse {SHORT}: pipeline"] / SHORT * LONG / own[f"sparse {LONG}: pipeline"]),
    ("time of all stages that the pipeline hides / selection and gather", (">=", 1.0),
     lambda own, *_: (own[f"sparse {LONG}: all stages"] - own[f"sparse {LONG}: pipeline"]) /
     (own[f"sparse {LONG}: selection"] + own[f"sparse {LONG}: gather"])),
    ("bandwidth of gather / the device's own copy rate", (">=", 0.60),
     lambda own, _, copy_rate: gathered_bytes(LONG) / (own[f"sparse {LONG}: gather"] * 1e-3) / copy_rate),
    (f"layer of rule blocks against cuDNN's dense causal, N = {LONG}", (">=", 15.0),
     lambda own, peer, _: peer[f"cudnn 1 x {LONG}"] / own[f"blocks {LONG}: pipeline"]),
    (f"layer of rule blocks against cuDNN's dense causal, N = {SHORT}", (">=", 2.5),
     lambda own, peer, _: peer[f"cudnn 1 x {SHORT}"] / own[f"blocks {SHORT}: pipeline"]),
    (f"selection of rule blocks / all its stages, N = {LONG}", ("<=", 0.25),
     lambda own, *_: sum(own[f"blocks {LONG}: {stage}"] for stage in CHOOSING) / own[f"blocks {LONG}: all stages"]),
)


def medians(contenders, name):
    return {case: times["median_ms"] for case, times in contenders.get(name, {}).items()}


def against_targets(contenders, own_name, copy_rate):
    """[Target] for {contender: {case: {"median_ms": ..}}}; what was not measured says what is missing."""
    own, peer = medians(contenders, own_name), medians(contenders, "pytorch")
    rows = []
    for name, bound, measure in TARGETS:
        try:
            rows.append(Target(name, bound, measure(own, peer, copy_rate), None))
        except KeyError as missing:
            rows.append(Target(name, bound, None, f"no time of {missing.args[0]}"))
        except ZeroDivisionError:
            rows.append(Target(name, bound, None, "a time or a copy rate of 0"))
    return rows


def verdict(target):
    if target.measured is None:
        return "not measured: " + target.why_not
    sense, bound = target.bound
    return "met" if (target.measured >= bound if sense == ">=" else target.measured <= bound) else "NOT MET"


def table(contenders, own_name, copy_rate):
    lines = ["| target | bound | measured | |", "| --- | --- | --- | --- |"]
    for target in against_targets(contenders, own_name, copy_rate):
        measured = "" if target.measured is None else f"{target.measured:.3g}"
        lines.append(f"| {target.name} | {target.bound[0]} {target.bound[1]:g} | {measured} | {verdict(target)} |")
    return lines
