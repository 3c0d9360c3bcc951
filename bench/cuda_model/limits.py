"""What one multiprocessor of an H200 can do in a cycle, and the processor around it. Nothing here was measured by this
project; each line says where it is from.

Four sub-processors work alike, so a kernel's warpgroup (one warp on each) is followed on one of them: cycles of a pipe
are those of one warp instruction there.
"""

MULTIPROCESSORS = 132
REGISTERS = 65536      # 32-bit, of a multiprocessor
SHARED_BYTES = 232448  # of a block
WARPS = 64             # resident, of a multiprocessor

# Published for the H200: about 790 TFLOP/s BF16 and 4.3 TB/s. Dense BF16 is 4096 operations a cycle and multiprocessor
# (a 128x128x128 product 1024 cycles), so 790 TFLOP/s is a clock of 1.46 GHz. Times below are cycles at that clock: it
# holds for what the matrix units limit, and is on the safe side for the rest.
MATMUL_PER_CYCLE = 4096
CLOCK = 790e12 / (MATMUL_PER_CYCLE * MULTIPROCESSORS)
MEMORY_BYTES_PER_SECOND = 4.3e12
# Assumed: second-level cache to all multiprocessors together, the order of what microbenchmarks of the H100 report.
L2_BYTES_PER_SECOND = 5.5e12
L2_BYTES_PER_CYCLE = L2_BYTES_PER_SECOND / MULTIPROCESSORS / CLOCK
SHARED_BYTES_PER_CYCLE = 128

# Cycles of one warp instruction on a sub-processor (CUDA C++ programming guide, throughput of native arithmetic
# instructions, capability 9.0: 128 F32, 64 integer, compare and convert, 16 special functions, 32 shuffles a cycle and
# multiprocessor).
PIPE_CYCLES = {"fma": 1, "integer_multiply": 2, "alu": 2, "mufu": 8, "memory": 4}

# Assumed latencies, cycles: from the last operand read to registers that may be read; a barrier that is complete; a tile
# asked from the second-level cache until its first bytes land.
PRODUCT_LATENCY = 40
BARRIER_LATENCY = 25
COPY_LATENCY = 700

# Prefixes of SASS opcodes, the longest one that fits counts. What is not listed takes an issue slot only.
PIPES = {
    "FFMA": "fma", "FADD": "fma", "FMUL": "fma", "HFMA2": "fma", "HADD2": "fma",
    "IMAD": "integer_multiply",
    "MUFU": "mufu",
    "FMNMX": "alu", "FSETP": "alu", "FSEL": "alu", "SEL": "alu", "LOP3": "alu", "ISETP": "alu", "IADD3": "alu",
    "SHF": "alu", "PRMT": "alu", "F2FP": "alu", "LEA": "alu", "PLOP3": "alu", "IMNMX": "alu", "VIADD": "alu",
    "VIMNMX": "alu", "MOV": "alu", "I2FP": "alu",
    "SHFL": "memory", "LDS": "memory", "STS": "memory", "LDG": "memory", "STG": "memory", "LDC": "memory",
}
