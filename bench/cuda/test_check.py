"""`--check` of the CUDA benchmark, on the emulation at a small size: test_check.py PROGRAM TOOLS. It passes where nothing is wrong, and a
fault planted in one of the three runs is found in that run and in no other."""

import os
import re
import subprocess
import sys

PROGRAM = sys.argv[1]
sys.path.insert(0, sys.argv[2])
import gpu  # noqa: E402


def check(case, *size, **switches):
    environment = dict(os.environ, **switches)
    run = subprocess.run([PROGRAM, "--check", case, *size], capture_output=True, text=True, check=False, env=environment)
    lines = run.stdout.splitlines()
    return run.returncode, lines[0] if lines else "", lines[1:], run.stderr


# Every case passes, with figures of every run: errors that are none would be no comparison with double.
for case in gpu.CHECKS:
    status, head, lines, errors = check(case)
    assert status == 0 and len(lines) == 1 and lines[0].startswith(f"PASS {case}: "), (status, lines, errors)
    assert "emulated device: 4 over 2 heads, S 150, M 64, N 400" in head, head
    for run in ("sm_90a", "mma.sync", "cpu"):
        figures = re.search(rf"(?:: |; ){re.escape(run)} colsum_inter (\S+) colsum_intra (\S+) lse (\S+) out_{case.split()[0]} "
                            r"(\S+)", lines[0])
        assert figures, (run, lines[0])
        for figure in figures.groups():
            assert 0.0 < float(figure.rstrip(";")) <= 1.0, (run, lines[0])
    for other in ("mma.sync", "cpu"):
        apart = re.search(rf"; sm_90a and {re.escape(other)}: (\S+) apart where sets are the same, (\d+) of (\d+)", lines[0])
        assert apart and 0.0 < float(apart.group(1)) < 0.1, lines[0]
        assert 4 <= int(apart.group(2)) <= int(apart.group(3)) == 12, lines[0]

# Each fault is one of one run: of kernels of sm_90a, of those of mma.sync, of a captured window, of the processor's engine.
for case, fault, where in (
        ("BF16 128/128", "cuda.sm90.intra_not_joined", "sm_90a: head"),
        ("F16 64/64", "cuda.sm90.keys_not_awaited", "sm_90a: "),
        ("BF16 192/128", "cuda.fusion.not_scaled", "mma.sync: head"),
        ("BF16 64/64", "cpu.fuse.no_rescale", "cpu: head"),
        ("F16 64/64", "cuda.gather.entry_zero", "sm_90a: head")):
    status, _, lines, errors = check(case, HEADWATER_SABOTAGE=fault)
    assert status == 1 and len(lines) == 1 and lines[0].startswith(f"FAIL {case}: {where}"), (fault, status, lines, errors)

# Every head is judged, to its last row.
for run in ("sm_90a", "mma.sync", "cpu"):
    status, _, lines, errors = check("BF16 64/64", HEADWATER_CHECK_SPOILED=run)
    assert status == 1 and lines[0].startswith(f"FAIL BF16 64/64: {run}: head 3: ") and "[399, 63]" in lines[0], (lines, errors)

# At the chunk and the memory set that people run: rows of the device, windows as graphs, a last chunk of 31 rows.
for case in ("BF16 128/128", "F16 64/64", "BF16 192/128", "F16 256/256"):
    status, head, lines, errors = check(case, "large")
    assert status == 0 and lines[0].startswith(f"PASS {case}: sm_90a "), (status, lines, errors)
    assert "emulated device: 2 over 1 heads, S 1024, M 512, N 2079" in head, head

status, _, lines, errors = check("BF16 1/1")
assert status == 2 and "--check BF16 1/1 is not known" in errors, (status, lines, errors)

for words, what in ((("small",), "small"), (("large", "more"), "more")):
    status, _, lines, errors = check("BF16 128/128", *words)
    assert status == 2 and not lines and f"--check: {what} is not known; allowed: [CASE [large]]" in errors, (status, errors)
