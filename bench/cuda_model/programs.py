"""The kernels as programs of warpgroups: what a tile costs is read from the loop over tiles in their machine code, in the
order of its instructions; what stands before and behind that loop is written out here."""

import limits

PRODUCT_CYCLES = 64          # m64n128k16: 64 * 128 * 16 / 2048
TILE_BYTES = 128 * 128 * 2
# Shared memory that a product reads: B, and A where it is not in registers.
PRODUCT_BYTES = {"shared": 6144, "registers": 4096}
STEPS = 8                    # products of a 64x128x128 product
CONSUMERS = 2
# A warp issues in order. Instructions overlap on different pipes within so many of them, no further: a maximum is known
# before the exponentials that need it begin.
WINDOW = 32


class Kernel:
    """How the barriers of a kernel's loop are to be read, in the order in which they stand there."""

    def __init__(self, name, full, free, tiles_a_loop, rings):
        self.name, self.full, self.free, self.tiles_a_loop, self.rings = name, full, free, tiles_a_loop, rings


def forward_kernel(name):
    return Kernel(name, ["k", "v"], ["k", "v"], 1, {"k": (2, TILE_BYTES), "v": (2, TILE_BYTES)})


KERNELS = {
    "causal_forward": forward_kernel("sm90_causal_forward_bf16_128"),
    "memory_forward": forward_kernel("sm90_memory_forward_bf16_128"),
    "column_sums": Kernel("sm90_column_sums_bf16_128", ["q", "q"], ["q", "q"], 2, {"q": (3, TILE_BYTES + 512)}),
    "score": Kernel("sm90_score_bf16_128", ["q"], ["q"], 1, {"q": (2, TILE_BYTES // 2)}),
}


# Named barriers of the score kernel that order its products -> the consumer that passes them; barrier 1 joins both.
SCORE_TURNS = {"0x2": 0, "0x3": 1, "0x4": 0}


def pipe_of(opcode):
    fitting = [prefix for prefix in limits.PIPES if opcode.startswith(prefix)]
    return limits.PIPES[max(fitting, key=len)] if fitting else None


def add(work, opcode):
    work["issue"] = work.get("issue", 0) + 1
    pipe = pipe_of(opcode)
    if pipe:
        work[pipe] = work.get(pipe, 0) + limits.PIPE_CYCLES[pipe]


def total(program):
    """Cycles of each pipe over a program, one warpgroup."""
    sums = {}
    for step in program:
        if step[0] == "work":
            for pipe, cycles in step[1].items():
                sums[pipe] = sums.get(pipe, 0) + cycles
        elif step[0] == "product":
            sums["tensor"] = sums.get("tensor", 0) + step[1]
    return sums


def turn_steps(kernel, consumer, instruction):
    """Named barriers. Forward: BAR.SYNC takes a turn, BAR.ARV passes it. Score: SCORE_TURNS."""
    arrival = instruction.opcode.startswith("BAR.ARV")
    if kernel in (KERNELS["causal_forward"], KERNELS["memory_forward"]):
        return [("arrive", f"turn{1 - consumer}")] if arrival else [("await", f"turn{consumer}")]
    number = instruction.operands.split(",")[0].strip()
    if number in SCORE_TURNS:
        passes = SCORE_TURNS[number] == consumer
        if arrival:
            return [("arrive", number)] if passes else []
        return [] if passes else [("await", number)]
    return [("meet", "exchange")]


def loop_program(kernel, instructions, consumer):
    """The loop over tiles of one consumer as steps."""
    program, work = [], {}
    full, free = list(kernel.full), list(kernel.free)

    def event(*steps):
        nonlocal work
        if work:
            program.append(("work", work))
            work = {}
        program.extend(steps)

    for instruction in instructions:
        opcode = instruction.opcode
        add(work, opcode)
        if work["issue"] == WINDOW:
            event()
        if opcode.startswith("HGMMA"):
            event(("product", PRODUCT_CYCLES))
            if "gsb0" in instruction.operands:
                event(("commit",))
        elif opcode.startswith("WARPGROUP.DEPBAR"):
            event(("products", int(instruction.operands.split(",")[1].strip(), 16)))
        elif opcode.startswith("SYNCS.PHASECHK"):
            event(("full", full.pop(0)))
        elif opcode.startswith("SYNCS.ARRIVE"):
            event(("free", free.pop(0)))
        elif opcode.startswith("BAR."):
            event(*turn_steps(kernel, consumer, instruction))
    event()
    if full or free:
        raise ValueError(f"{kernel.name}: barriers in the loop are not those that the model knows: {full} {free}")
    return program


def products(count=STEPS):
    return [("product", PRODUCT_CYCLES)] * count + [("commit",)]


def work_of_tile(loop, tiles):
    """All work of a loop that is not products, per tile."""
    sums = total(loop)
    return {pipe: cycles / tiles for pipe, cycles in sums.items() if pipe != "tensor"}


# An output tile: 64 multiplications and 32 stores of 8 bytes a thread, and what surrounds them.
STORE_WORK = {"issue": 200, "fma": 64, "memory": 32 * limits.PIPE_CYCLES["memory"], "mufu": 64}
# 32 words of keys to registers.
LOAD_KEYS_WORK = {"issue": 120, "memory": 32 * limits.PIPE_CYCLES["memory"]}


# The same of rows that are joined with the intra pass: as many loads, asked for beside the last product, and two more
# multiplications.
JOIN_WORK = {"issue": 300, "fma": 192, "memory": 64 * limits.PIPE_CYCLES["memory"], "mufu": 64}
JOIN_BYTES = 64 * 128 * 4    # of each consumer


def forward_items(loop, consumer, tiles_of_items, joined=False):
    """Items of a persistent block: the masked tile, the loop, the last values, the output."""
    tile = work_of_tile(loop, 1)
    asked = [("ask", JOIN_BYTES)] if joined else []
    end = [("asked",), ("work", JOIN_WORK)] if joined else [("work", STORE_WORK)]
    program = []
    for tiles in tiles_of_items:
        program += [("full", "item"), ("full", "k"), ("await", f"turn{consumer}"), *products(),
                    ("arrive", f"turn{1 - consumer}"), ("products", 0), ("free", "k"), ("work", tile)]
        program += loop * (tiles - 1)
        program += [("free", "item"), ("full", "v"), *products(), *asked, ("products", 0), ("free", "v"), *end]
    return program


def column_items(loop, tiles_of_items):
    """Items of a persistent block: keys to registers, then one product ahead of the tile that is added up."""
    tile = work_of_tile(loop, 2)
    program = []
    for tiles in tiles_of_items:
        program += [("full", "item"), ("work", LOAD_KEYS_WORK), ("free", "item"), ("full", "q"), *products()]
        for left in range(tiles - 1, -1, -1):
            if left:
                program += [("full", "q"), *products()]
            program += [("products", 1 if left else 0), ("work", tile), ("free", "q")]
    return program


def repeated(kernel, loop, consumer, times):
    """The loop `times` times. Score: consumer 1 is let in before its first block, and out of its last."""
    if kernel is not KERNELS["score"]:
        return loop * times
    if consumer == 0:
        return loop * times + [("arrive", "0x2")]
    return [("await", "0x2")] + loop * times


def score_run(loop, consumer, blocks):
    """A run of query blocks; the keys arrive once."""
    return [("full", "keys")] + repeated(KERNELS["score"], loop, consumer, blocks)
