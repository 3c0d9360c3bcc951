#!/usr/bin/env python3
"""First token of a long prompt on several machines, on paper: every parameter is measured, nothing is run over a wire here.

    simulate.py measure PROGRAM PARAMETERS.json   measures attention and projections of this machine (minutes)
    simulate.py tables PARAMETERS.json            prints the Markdown tables of docs/machines.md
    simulate.py plot FOLDER                       draws docs/plots/machines.svg (matplotlib)
    simulate.py parts PARAMETERS.json             prints what a chunk that goes from rank to rank in 4 parts would gain
    simulate.py check PROGRAM MODEL TEXT          holds the pipeline against runs of 1, 2 and 4 ranks on this machine

Three ways to split a prompt of N tokens in chunks of S over P machines, all with sparse prefill:
- pipeline: every machine has some of the layers; chunks stream through; a hop is the activations of a chunk.
- wavefront: every machine has all layers; chunk c runs on machine c mod P; at each layer it waits for the memory set of
  the chunk before (rule h2o), which is a hop.
- ring: every machine has all layers and N / P tokens; in each layer the keys and values of all tokens go round (rule
  blocks may choose any of them), while it computes.
Links: rates and delays as hosts.py has them. A message takes delay + bytes / rate, one at a time on a wire.
"""

import argparse
import dataclasses
import heapq
import json
import os
import pathlib
import statistics
import subprocess
import sys


@dataclasses.dataclass(frozen=True)
class Shape:
    """A model by the sizes that its cost follows from. Weights in bytes a parameter."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    d_head: int
    feed_forward: int
    vocabulary: int
    weight_bytes: float = 8.5 / 8  # Q8_0

    @property
    def layer_parameters(self):
        attention = self.width * self.d_head * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.width * self.feed_forward

    @property
    def parameters(self):
        return self.layers * self.layer_parameters + 2 * self.vocabulary * self.width

    @property
    def activation_bytes(self):
        """Of a token: the residual stream in F32, so that the bits are those of one process."""
        return 4 * self.width

    @property
    def kv_bytes(self):
        """Of a token and layer, in BF16."""
        return 2 * self.kv_heads * 2 * self.d_head


SHAPES = [Shape("30B (Qwen3-32B)", 64, 5120, 64, 8, 128, 25600, 151936),
          Shape("70B (Llama 3.3)", 80, 8192, 64, 8, 128, 28672, 128256)]
CHUNK = 1024
MEMORY = 512
# Bytes a second and seconds one way.
LINKS = {"10 GbE": (10e9 / 8, 50e-6), "1 GbE": (1e9 / 8, 50e-6), "Wi-Fi, 5 ms": (300e6 / 8, 5e-3)}


@dataclasses.dataclass(frozen=True)
class Machine:
    """What was measured."""

    projection_flops: float      # a second, of products of CHUNK rows
    attention_seconds: float     # of a token and query head in one layer, sparse, far into a prompt
    cores: int                   # of a machine: the two above are of one core, and cores are taken to add up

    def layer_seconds(self, shape, rows):
        of_row = 2 * shape.layer_parameters / self.projection_flops + shape.heads * self.attention_seconds
        return rows * of_row / self.cores

    def head_seconds(self, shape):
        """Of the last row alone: the output head."""
        return 2 * shape.vocabulary * shape.width / self.projection_flops / self.cores


def pipeline(chunk_seconds, chunks, hop_bytes, link, overlap=True, last_seconds=0.0, cores=None):
    """Seconds until the last rank has the last chunk. chunk_seconds[rank]: of a chunk. Without overlap a rank waits until
    its activations have arrived. `cores`: shared by all ranks, a chunk of a rank at a time; None: each has its own."""
    rate, delay = link
    ranks = len(chunk_seconds)
    free = [0.0] * ranks           # when a rank is free for its next chunk
    wire = [0.0] * ranks           # when the wire after it is free
    core = [0.0] * (cores or ranks)
    begun = [0] * ranks            # chunks that a rank has begun
    arrived = {(chunk, 0): 0.0 for chunk in range(chunks)}
    ready = []                     # (time, chunk, rank), the earliest first

    def queue(rank):
        at = arrived.pop((begun[rank], rank), None)
        if at is not None:
            heapq.heappush(ready, (max(at, free[rank]), begun[rank], rank))

    queue(0)
    while ready:
        now, chunk, rank = heapq.heappop(ready)
        taken = min(range(len(core)), key=core.__getitem__) if cores else rank
        end = max(now, core[taken]) + chunk_seconds[rank]
        free[rank] = core[taken] = end
        begun[rank] = chunk + 1
        if rank + 1 < ranks:
            wire[rank] = max(end, wire[rank]) + hop_bytes / rate
            arrived[chunk, rank + 1] = wire[rank] + delay
            if not overlap:
                free[rank] = wire[rank] + delay
            if begun[rank + 1] == chunk:
                queue(rank + 1)
        queue(rank)
    return free[-1] + last_seconds


def wavefront(layer_seconds, layers, ranks, chunks, hop_bytes, link, last_seconds=0.0):
    """layer_seconds: of one chunk in one layer. The wire of each machine carries one message at a time."""
    rate, delay = link
    free = [0.0] * ranks
    before = [0.0] * layers  # when the memory set for the chunk at this layer is there
    wire = [0.0] * ranks
    for chunk in range(chunks):
        rank = chunk % ranks
        now = free[rank]
        for layer in range(layers):
            now = max(now, before[layer]) + layer_seconds
            if ranks > 1:
                wire[rank] = max(now, wire[rank]) + hop_bytes / rate
                before[layer] = wire[rank] + delay
            else:
                before[layer] = now
        free[rank] = now
    return max(free) + last_seconds


def ring(layer_seconds, layers, ranks, tokens, kv_bytes, link, last_seconds=0.0):
    """layer_seconds: of all tokens in one layer on one machine. Keys and values travel while a machine computes."""
    rate, delay = link
    wire = (ranks - 1) * (tokens / ranks * kv_bytes / rate + delay)
    return layers * max(layer_seconds / ranks, wire) + last_seconds


def split(layers, ranks):
    """Layers of each rank, as even as they can be, the first ranks having one more."""
    return [layers // ranks + (rank < layers % ranks) for rank in range(ranks)]


def first_token(machine, shape, tokens, ranks, link):
    """Seconds of the three ways, and of the pipeline without overlap."""
    chunks = tokens // CHUNK
    layer = machine.layer_seconds(shape, CHUNK)
    head = machine.head_seconds(shape)
    stages = [count * layer for count in split(shape.layers, ranks)]
    hop = CHUNK * shape.activation_bytes
    chosen = MEMORY * shape.heads * 2 * 2 * shape.d_head  # a set for every query head, in BF16
    return {"pipeline": pipeline(stages, chunks, hop, link, True, head),
            "no overlap": pipeline(stages, chunks, hop, link, False, head),
            "wavefront": wavefront(layer, shape.layers, ranks, chunks, chosen, link, head),
            "ring": ring(layer * chunks, shape.layers, ranks, tokens, shape.kv_bytes, link, head)}


def memory_gb(shape, tokens, ranks, whole):
    """Of one machine: weights and the KV cache; whole: all layers' weights, and its share of the tokens."""
    cache = shape.layers * tokens * shape.kv_bytes / ranks
    weights = shape.parameters * shape.weight_bytes
    return (weights if whole else weights / ranks) / 1e9 + cache / 1e9


def tables(machine):
    tokens = 128 * 1024
    print(f"{tokens} tokens, S = {CHUNK}, M = {MEMORY}, machines of {machine.cores} cores; hours to the first token, in "
          "brackets the share of P times one machine's speed; GB of a machine: weights in Q8_0 and its share of the cache.\n")
    print("| model | P | link | pipeline | without overlap | wavefront | ring | GB, pipeline | GB, the others |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for shape in SHAPES:
        alone = first_token(machine, shape, tokens, 1, LINKS["10 GbE"])["pipeline"]
        for ranks in (1, 2, 4, 8):
            for name, link in LINKS.items():
                if ranks < 8 and name != "1 GbE":
                    continue
                got = first_token(machine, shape, tokens, ranks, link)
                cells = [f"{seconds / 3600:.2f} ({alone / seconds / ranks:.0%})" for seconds in got.values()]
                print(f"| {shape.name} | {ranks} | {name if ranks > 1 else '-'} | " + " | ".join(cells) +
                      f" | {memory_gb(shape, tokens, ranks, False):.0f} | {memory_gb(shape, tokens, ranks, True):.0f} |")


def parts(machine):
    """Shares of P times one machine's speed, a chunk as a whole and in 4 parts."""
    print("| model | P | chunks | link | whole chunks | 4 parts of a chunk |\n| --- | --- | --- | --- | --- | --- |")
    for shape in SHAPES:
        layer = machine.layer_seconds(shape, CHUNK)
        hop = CHUNK * shape.activation_bytes
        for ranks in (2, 8):
            stages = [count * layer for count in split(shape.layers, ranks)]
            for chunks in (4, 16, 128):
                alone = chunks * shape.layers * layer
                for name, link in LINKS.items():
                    shares = [alone / ranks / pipeline([one / count for one in stages], chunks * count, hop / count, link)
                              for count in (1, 4)]
                    print(f"| {shape.name} | {ranks} | {chunks} | {name} | {shares[0]:.1%} | {shares[1]:.1%} |")


# (ranks, chunks, seconds of one process over those of the ranks): docs/machines.md, "Over a wire", a virtual wire.
MEASURED = [(2, 17, 2.54 / 1.43), (2, 4, 23.3 / 15.3)]


def plot(folder):
    """Share of P machines' speed over the number of chunks, simulated with free links, and what was measured."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "report"))
    import plots
    figure, axis = plots.plt.subplots(figsize=(6.5, 3.6))
    counts = [2 ** power for power in range(8)]
    for ranks, colour in ((2, plots.BLUE), (4, plots.ORANGE), (8, plots.GREEN)):
        shares = [count / ranks / pipeline([1 / ranks] * ranks, count, 0, (1.0, 0.0)) for count in counts]
        axis.plot(counts, shares, color=colour, label=f"{ranks} machines, simulated")
        points = [(count, faster / ranks) for with_ranks, count, faster in MEASURED if with_ranks == ranks]
        if points:
            axis.plot(*zip(*points), "o", color=colour, label=f"{ranks} ranks, measured over a virtual wire")
    axis.set_xscale("log", base=2)
    axis.set_xticks(counts, counts)
    axis.set_ylim(0, 1.05)
    axis.set_xlabel("chunks of the prompt")
    axis.set_ylabel("share of P times one machine's speed")
    axis.legend(loc="lower right")
    plots.save(figure, pathlib.Path(folder), "machines")


def run(program, *arguments):
    done = subprocess.run([program, "bench", *map(str, arguments), "--json"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"simulate: {done.stderr.strip()}")
    return json.loads(done.stdout)


def measure(program, target):
    """One core, processor time: a layer of 64 query heads over 8 for attention, a model of 0.6B for projections."""
    tokens, heads = 16384, 64
    layer = run(program, "-n", tokens, "--heads", heads, "--kv-heads", 8, "-d", 128, "--dtype", "bf16", "-t", 1, "--rounds", 3,
                "--no-dense")
    rows = 1024
    shape = Shape("qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151936)
    model = run(program, "--random", shape.name, "-n", rows, "--decode", 1, "--rounds", 3, "--no-dense", "-t", 1)
    spent = model["prompts"][0]["first_token"]["split"]
    result = {"cpu": layer["cpu"], "isa": layer["isa"],
              "projection_flops": 2 * shape.layers * shape.layer_parameters * rows / (spent["projections"] + spent["rest"]),
              "attention_seconds": statistics.median(layer["sparse"]["judged_seconds"]) / tokens / heads}
    pathlib.Path(target).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


def check(program, model, text, cores):
    """Runs of 1, 2 and 4 ranks of one thread: a chunk's time is the rank's processor time over its chunks."""
    chunk = 256
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    print("| ranks | chunks | processor seconds of the ranks | measured, s | simulated, s | simulated / measured |")
    print("| --- | --- | --- | --- | --- | --- |")
    for ranks in (1, 2, 4):
        command = ["mpirun", "-np", str(ranks), "--oversubscribe", program, "generate", "-m", model, "-f", text, "-n", "1",
                   "-t", "1", "-ub", str(chunk), "-b", str(chunk), "--h2o-local", "64", "--h2o-heavy", "64", "--dense-tail", "0",
                   "--json"]
        found = []
        for _ in range(5):
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
            if done.returncode != 0:
                sys.exit(f"simulate: {done.stderr.strip()}")
            got = json.loads(done.stdout)
            spent = [rank["processor_seconds"] for rank in got.get("ranks", [])] or [got["seconds"]["prefill"]]
            found.append((got["seconds"]["prefill"], spent, -(-got["prompt_tokens"] // chunk)))
        seconds, spent, chunks = sorted(found)[len(found) // 2]
        # Between processes of one machine a hop costs what their processor times hold.
        simulated = pipeline([one / chunks for one in spent], chunks, 0, (1.0, 0.0), cores=cores)
        print(f"| {ranks} | {chunks} | {', '.join(f'{one:.2f}' for one in spent)} | {seconds:.2f} | {simulated:.2f} | "
              f"{simulated / seconds:.2f} |")


def read(name):
    try:
        return json.loads(pathlib.Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        sys.exit(f"simulate: {name}: {error}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "tables", "plot", "parts", "check"))
    parser.add_argument("files", nargs="+")
    parser.add_argument("--cores", type=int, default=16, help="of a machine of `tables` (16)")
    arguments = parser.parse_args()
    wanted = {"measure": 2, "tables": 1, "plot": 1, "parts": 1, "check": 3}[arguments.what]
    if len(arguments.files) != wanted:
        parser.error(f"{arguments.what}: {len(arguments.files)} files; allowed: {wanted}")
    if arguments.cores < 1:
        parser.error(f"--cores: {arguments.cores}; allowed: at least 1")
    try:
        if arguments.what == "measure":
            measure(*arguments.files)
        elif arguments.what == "plot":
            plot(arguments.files[0])
        elif arguments.what in ("tables", "parts"):
            parameters = read(arguments.files[0])
            machine = Machine(parameters["projection_flops"], parameters["attention_seconds"], arguments.cores)
            (tables if arguments.what == "tables" else parts)(machine)
        else:
            check(*arguments.files, os.cpu_count())
    except (KeyError, TypeError, IndexError) as error:
        sys.exit(f"simulate: {arguments.files[-1]} lacks something: {error!r}")


if __name__ == "__main__":
    main()
