"""Cycles, occupancy and traffic of the sm_90a kernels, predicted:

    python3 bench/cuda_model/model.py [--check] [--object FILE] [--json FILE]

Instruction counts come from the kernels' machine code, limits from limits.py, the rest from the layer's shape. Nothing
here is measured. --check exits with 1 where a tile is predicted above its budget (and, where it compiles the kernels
itself, where one spills or its products are serialised); with 77 where a tool of CUDA is not there (ctest: skipped).
"""

import argparse
import functools
import json
import pathlib
import sys
import tempfile

import limits
import overlap
import programs
import sass
from multiprocessor import Multiprocessor, Ring

SKIPPED = 77
# Targets, in cycles: docs/notes/cuda-model.md.
BUDGETS = {"column_sums": 1450, "score": 3000}
UNITS = {"causal_forward": "tile of 128 queries x 128 keys", "memory_forward": "tile of 128 queries x 128 keys",
         "column_sums": "tile of 128 keys x 128 queries", "score": "block of 64 queries x 512 memory keys"}

HEADS, KV_HEADS, HEAD, CHUNK, MEMORY = 32, 8, 128, 1024, 512
TILES = CHUNK // 128
TILES_OF_CHUNK = TILES * (TILES + 1) // 2
# Published forward rates of cuDNN 9.19 on an H200, BF16 causal, 64 heads, 8 KV heads, TFLOP/s.
CUDNN_CAUSAL = {2048: 484, 4096: 591, 16384: 673}
# Assumed where nothing is written out yet: the sequential selection of a step, microseconds (about 1 us a
# head, heads side by side), and the latency of a step's launches inside a graph.
SELECTION_US, LAUNCH_US = 1.0, 2.0
# optimized/cuda/tuning.hpp: chunks of a window (kWindowRows), of an intra launch (kGroupRows), memory sets kept gathered; launches of a step that the
# next one waits for: selection, gather, score and its sums.
WINDOW_CHUNKS, GROUP_CHUNKS, GATHERED_SETS, CHAIN_LAUNCHES = 4, 2, 4, 4


def microseconds(cycles):
    return cycles / limits.CLOCK * 1e6


# ---- one kernel ------------------------------------------------------------------------------------------------

class Machined:
    """What the model reads from the machine code of one kernel."""

    def __init__(self, key, body):
        self.key, self.kernel = key, programs.KERNELS[key]
        self.instructions = sass.tile_loop(body)
        self.registers = sass.registers(body)
        self.loops = [programs.loop_program(self.kernel, self.instructions, c) for c in range(programs.CONSUMERS)]

    def pipes(self):
        """Cycles a tile of each pipe of a sub-processor, both consumers; the lower bounds of a tile."""
        sums = {}
        for loop in self.loops:
            for pipe, cycles in programs.total(loop).items():
                sums[pipe] = sums.get(pipe, 0) + cycles / self.kernel.tiles_a_loop
        reads = sum(programs.PRODUCT_BYTES[where(i)] for i in self.instructions if i.opcode.startswith("HGMMA"))
        copied = sum(self.kernel.rings[name][1] for name in self.kernel.full) / self.kernel.tiles_a_loop
        sums["shared memory"] = (programs.CONSUMERS * reads / self.kernel.tiles_a_loop + copied) / \
            limits.SHARED_BYTES_PER_CYCLE
        sums["second-level cache"] = copied / limits.L2_BYTES_PER_CYCLE
        return sums

    def tile_cycles(self):
        """Cycles from tile to tile once the pipeline runs."""
        warm, counted = 8, 32
        loops = [[("mark",), *loop] for loop in self.loops]
        rings = {name: Ring(*size) for name, size in self.kernel.rings.items()}
        chip = Multiprocessor([programs.repeated(self.kernel, loop, consumer, warm + counted)
                               for consumer, loop in enumerate(loops)], rings)
        chip.do_arrive(None, "turn0")
        chip.run()
        marks = chip.agents[0].marks
        return (marks[-1] - marks[warm]) / (len(marks) - 1 - warm) / self.kernel.tiles_a_loop


def where(product):
    return "registers" if product.operands.split(",")[1].strip().startswith("R") else "shared"


# ---- stages of a layer -----------------------------------------------------------------------------------------

def dealt(sizes, block):
    """Of items in the order of a schedule, those of persistent block `block`, as item_of_round() deals them out."""
    own = []
    for turn in range(len(sizes) // limits.MULTIPROCESSORS + 1):
        place = block if turn % 2 == 0 else limits.MULTIPROCESSORS - 1 - block
        own += sizes[turn * limits.MULTIPROCESSORS + place:][:1]
    return own


def items_of_block(chunks, block=0):
    """Tiles of the items of persistent block `block` of an intra pass: those with the most tiles first."""
    pairs = HEADS * chunks
    return dealt([TILES - index // pairs for index in range(pairs * TILES)], block)


def most_tiles(chunks):
    return max(sum(items_of_block(chunks, block)) for block in range(limits.MULTIPROCESSORS))


def persistent_cycles(machined, chunks):
    """All items of one phase-1 kernel: a block's items are followed for 16 chunks; more chunks are more of the same."""
    followed = min(chunks, 16)
    return followed_cycles(machined, followed) / sum(items_of_block(followed)) * most_tiles(chunks)


def followed_cycles(machined, chunks):
    """Cycles of block 0 over all its items."""
    return items_cycles(machined, tuple(items_of_block(chunks)))


@functools.lru_cache(maxsize=None)
def items_cycles(machined, sizes):
    """Cycles of a persistent block over items of so many tiles."""
    if machined.key == "column_sums":
        runs = [programs.column_items(loop, sizes) for loop in machined.loops]
    else:
        joined = machined.key == "memory_forward"
        runs = [programs.forward_items(loop, consumer, sizes, joined) for consumer, loop in enumerate(machined.loops)]
    rings = {"item": Ring(1, programs.TILE_BYTES)}
    rings.update({name: Ring(*size) for name, size in machined.kernel.rings.items()})
    chip = Multiprocessor(runs, rings)
    chip.do_arrive(None, "turn0")
    return chip.run()


def score_cycles(machined):
    """One chunk's scores: every block takes a run of query blocks of one head."""
    blocks = -(-HEADS * (CHUNK // 64) // limits.MULTIPROCESSORS)
    rings = {"keys": Ring(1, MEMORY * HEAD * 2)}
    rings.update({name: Ring(*size) for name, size in machined.kernel.rings.items()})
    runs = [programs.score_run(loop, consumer, blocks) for consumer, loop in enumerate(machined.loops)]
    return Multiprocessor(runs, rings).run()


def inter_sizes(block=0):
    """Tiles of the items of a block of inter output: all alike."""
    items = HEADS * TILES
    return (-(-MEMORY // 128),) * (items // limits.MULTIPROCESSORS + (block < items % limits.MULTIPROCESSORS))


def inter_cycles(machined):
    """Outputs of one chunk over its memory sets, by the block with the most items."""
    return items_cycles(machined, inter_sizes())


def rows_bytes(tokens, heads, width):
    return tokens * heads * HEAD * width


def traffic(tokens):
    """Bytes of device memory a layer moves, by stage: what must be read and written once."""
    steps = tokens // CHUNK - 1
    q, kv, out = rows_bytes(tokens, HEADS, 2), rows_bytes(tokens, KV_HEADS, 2), rows_bytes(tokens, HEADS, 4)
    lse = tokens * HEADS * 4
    gathered = steps * rows_bytes(MEMORY, HEADS, 2)
    return {
        "intra forward": q + 2 * kv + out + 2 * lse,
        "column sums": q + kv + 2 * lse,
        "score": (q + gathered) * steps // max(steps + 1, 1),
        "selection": steps * HEADS * (CHUNK + MEMORY) * 2,
        "gather": 2 * 2 * gathered,
        "inter output": q + 2 * gathered + 2 * out,
    }


def memory_needed(tokens):
    """Bytes a session of one layer holds on the device for `tokens`, all scratch included."""
    return {
        "K and V": 2 * rows_bytes(tokens, KV_HEADS, 2),
        "scores": tokens * HEADS * 2,
        "queries": rows_bytes(tokens, HEADS, 2),
        "outputs, F32": rows_bytes(tokens, HEADS, 4),
        "log-sum-exps and column sums": 3 * tokens * HEADS * 4,
        "gathered K and V of four chunks": 4 * 2 * rows_bytes(MEMORY, HEADS, 2),
    }


def layer(machined, tokens):
    """Microseconds of each stage of one layer, everything on the matrix path side by side at best."""
    chunks = tokens // CHUNK
    steps = chunks - 1
    moved = traffic(tokens)

    def at_least_memory(stage, us):
        return max(us, moved[stage] / limits.MEMORY_BYTES_PER_SECOND * 1e6)

    forward = microseconds(persistent_cycles(machined["causal_forward"], chunks))
    sums = microseconds(persistent_cycles(machined["column_sums"], chunks))
    stages = {
        "intra forward": at_least_memory("intra forward", forward),
        "column sums": at_least_memory("column sums", sums),
        "score": at_least_memory("score", steps * microseconds(score_cycles(machined["score"]))),
        "selection": steps * (SELECTION_US + LAUNCH_US),
        "gather": at_least_memory("gather", 0.0),
        "inter output": at_least_memory(
            "inter output", steps * microseconds(inter_cycles(machined["memory_forward"]))),
    }
    return stages


def overlapped_us(machined, stages, tokens, together=GROUP_CHUNKS):
    """A layer window after window, each in the order that its graph allows."""
    chunks = tokens // CHUNK
    steps = chunks - 1

    def persistent(key, sizes_of):
        return [microseconds(items_cycles(machined[key], tuple(sizes_of(block))))
                for block in range(limits.MULTIPROCESSORS)]

    score_blocks = HEADS * (CHUNK // 64)
    run = -(-score_blocks // limits.MULTIPROCESSORS)
    score = microseconds(score_cycles(machined["score"]))
    blocks = {
        "intra forward": persistent("causal_forward", lambda block: items_of_block(together, block)),
        "column sums": persistent("column_sums", lambda block: items_of_block(together, block)),
        "score": [score] * (score_blocks // run),
        "selection": [SELECTION_US] * HEADS,
        "gather": [stages["gather"] / steps] * limits.MULTIPROCESSORS,
        "inter output": persistent("memory_forward", inter_sizes),
    }
    # Where memory is slower than the kernel, so is every block.
    for stage, times in blocks.items():
        slowest = stages[stage] / (chunks / together if stage in ("intra forward", "column sums") else steps)
        factor = slowest / max(times) if stage != "selection" and slowest > max(times) else 1.0
        blocks[stage] = [factor * us for us in times]
    of_window = [overlap.finish(overlap.window(WINDOW_CHUNKS, together, first, blocks, GATHERED_SETS), limits.MULTIPROCESSORS,
                                LAUNCH_US / CHAIN_LAUNCHES) for first in (True, False)]
    return of_window[0] + (chunks // WINDOW_CHUNKS - 1) * of_window[1]


def own_dense_us(machined, tokens):
    """Dense prefill by this forward: window after window, the block with the most tiles of each, at the rate of the loop."""
    rows = WINDOW_CHUNKS * TILES
    most = 0
    for last in range(rows, tokens // 128 + 1, rows):
        sizes = [last - index // HEADS for index in range(HEADS * rows)]
        most += max(sum(dealt(sizes, block)) for block in range(limits.MULTIPROCESSORS))
    return microseconds(most * machined.tile_cycles())


def dense_us(tokens):
    """cuDNN's dense causal forward at the published rate of the nearest length."""
    nearest = min(CUDNN_CAUSAL, key=lambda n: abs(n - tokens))
    operations = 4 * HEADS * HEAD * tokens * tokens / 2
    return operations / (CUDNN_CAUSAL[nearest] * 1e12) * 1e6


def layers(machined):
    found = {}
    for tokens in (16384, 131072):
        stages = layer(machined, tokens)
        # Selection and gather run beside inter output and other heads' work where there is any; both sums are given.
        all_us = sum(stages.values())
        hidden = all_us - stages["selection"] - stages["gather"]
        found[tokens] = {
            "stages_us": stages, "sum_us": all_us, "sum_hidden_us": hidden, "dense_us": dense_us(tokens),
            "overlapped_us": overlapped_us(machined, stages, tokens),
            "own_dense_us": own_dense_us(machined["causal_forward"], tokens),
            "speedup": dense_us(tokens) / all_us, "speedup_hidden": dense_us(tokens) / hidden,
            "traffic_bytes": traffic(tokens), "memory_bytes": memory_needed(tokens),
            "tokens_per_second": tokens / all_us * 1e6,
        }
    return found


def rates(machined):
    """TFLOP/s of the intra forward, counted as causal attention is (half of all pairs)."""
    chunks = 16
    us = microseconds(persistent_cycles(machined["causal_forward"], chunks))
    operations = 4 * HEADS * HEAD * chunks * CHUNK * CHUNK / 2
    return {"intra_forward_tflops": operations / us / 1e6,
            "column_sums_share": microseconds(persistent_cycles(machined["column_sums"], chunks)) / us}


# ---- report ----------------------------------------------------------------------------------------------------

# sizeof of each kernel's Smem and 1024 bytes to align it; tests/cuda/sm90/maps_test.cpp holds the same figures.
SHARED = {"causal_forward": 164864 + 1024, "memory_forward": 164864 + 1024, "column_sums": 133120 + 1024, "score": 175104 + 1024}


def predict(text, whole):
    """Kernels of a disassembly; `whole`: and the layer."""
    bodies = sass.functions(text)
    machined = {}
    for key, kernel in programs.KERNELS.items():
        body = next((body for name, body in bodies.items() if kernel.name in name), None)
        if body is None:
            raise sass.Rejected(f"{kernel.name} is not in the machine code")
        machined[key] = Machined(key, body)
    kernels = {}
    for key, one in machined.items():
        kernels[key] = {
            "unit": UNITS[key], "predicted_cycles": one.tile_cycles(), "budget": BUDGETS.get(key),
            "pipe_cycles": one.pipes(), "instructions": len(one.instructions) / one.kernel.tiles_a_loop,
            "registers_named": one.registers, "shared_bytes": SHARED[key],
            "warps": 12, "occupancy": 12 / limits.WARPS,
        }
    found = {"clock_hz": limits.CLOCK, "kernels": kernels}
    if whole:
        found.update(rates=rates(machined), layers=layers(machined))
    return found


def print_report(found):
    print("predicted, not measured; cycles at", f"{found['clock_hz'] / 1e9:.2f} GHz")
    for key, kernel in found["kernels"].items():
        budget = f", budget {kernel['budget']}" if kernel["budget"] else ""
        print(f"\n{key}: {kernel['predicted_cycles']:.0f} cycles a {kernel['unit']}{budget}")
        print(f"  {kernel['instructions']:.0f} instructions a warp, registers named {kernel['registers_named']}, shared "
              f"memory {kernel['shared_bytes']} bytes, {kernel['warps']} of {limits.WARPS} warps")
        for pipe, cycles in sorted(kernel["pipe_cycles"].items(), key=lambda item: -item[1]):
            print(f"  {pipe:20} {cycles:6.0f} cycles")
    if "layers" not in found:
        return
    print(f"\nintra forward {found['rates']['intra_forward_tflops']:.0f} TFLOP/s causal at chunks of {CHUNK}; column sums "
          f"{100 * found['rates']['column_sums_share']:.0f} % of it in time")
    for tokens, one in found["layers"].items():
        print(f"\nN = {tokens}: {one['sum_us'] / 1e3:.2f} ms a layer; with selection and gather hidden "
              f"{one['sum_hidden_us'] / 1e3:.2f} ms; cuDNN dense {one['dense_us'] / 1e3:.1f} ms: "
              f"{one['speedup']:.1f}x, {one['speedup_hidden']:.1f}x")
        for stage, us in one["stages_us"].items():
            print(f"  {stage:16} {us:9.1f} us {100 * us / one['sum_us']:5.1f} %  "
                  f"{one['traffic_bytes'][stage] / 2**20:9.1f} MiB moved")
        print(f"  as the session's graph runs it, window after window: {one['overlapped_us'] / 1e3:.2f} ms, "
              f"{one['dense_us'] / one['overlapped_us']:.1f}x; dense by this forward {one['own_dense_us'] / 1e3:.1f} ms")
        held = sum(one["memory_bytes"].values())
        print(f"  device memory a layer {held / 2**20:.0f} MiB")


def over_budget(found):
    return [f"{key}: {kernel['predicted_cycles']:.0f} cycles a {kernel['unit']}, budget {kernel['budget']}"
            for key, kernel in found["kernels"].items()
            if kernel["budget"] and kernel["predicted_cycles"] > kernel["budget"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="kernels only; fail where a budget is exceeded")
    parser.add_argument("--object", type=pathlib.Path, help="compiled kernels; without it they are compiled here")
    parser.add_argument("--json", type=pathlib.Path, help="write all figures here")
    arguments = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as folder:
            code = arguments.object
            if code is None:
                code = pathlib.Path(folder) / "kernels.cubin"
                sass.compile_kernels(code)
            found = predict(sass.disassemble(code), whole=not arguments.check)
    except sass.Missing as missing:
        print(f"SKIP: {missing}")
        return SKIPPED
    except sass.Rejected as rejected:
        print(f"model: {rejected}")
        return 1
    print_report(found)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    problems = over_budget(found) if arguments.check else []
    for problem in problems:
        print(f"over budget: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
