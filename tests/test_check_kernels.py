"""The compile check of kernels: what it reads off machine code, and one run of it."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

import check_kernels
from check_kernels import Code, instructions

LISTING = """
.L_x_0:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/               @P1 LDGSTS.E.BYPASS.128 [R3], desc[UR4][R2.64] ;
        /*0030*/             @!UP2 UIADD3 UR4, UR4, 0x1, URZ ;
        /*0040*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], !UPT ;
        /*0050*/                   STL.64 [R1], R2 ;
"""
# a copy that is fine and a product that is wide enough for wgmma
KERNELS = """
import triton
import triton.language as tl


@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


@triton.jit
def product(x, y, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    tile = i[:, None] * SIZE + i[None, :]
    a = tl.load(x + tile)
    tl.store(y + tile, tl.dot(a, a).to(tl.bfloat16))


def compile_cases():
    pointers = {"x": "*bf16", "y": "*bf16"}
    yield copy, {**pointers, "n": "i32"}, {"BLOCK": 1024}, {"divisible": ("n",)}
    yield product, pointers, {"SIZE": 64}, {"num_warps": 4}
    yield product, pointers, {}, {"label": "incomplete"}
"""


def test_instructions_are_counted_by_their_full_names():
    """Predicates, labels and operands are no part of a name."""
    assert sum(instructions(LISTING).values()) == 6
    code = Code(32, 0, 0, instructions(LISTING))
    assert code.count("LDG.*128") == 2
    assert code.spills == 1


def test_what_must_not_be_shipped():
    """Spills where they are not allowed, Hopper's wide products and too much shared memory."""
    assert Code(255, 0, 227 * 1024).faults(may_spill=False) == []
    assert Code(255, 64, 0, {"LDL": 2}).faults(may_spill=True) == []
    assert Code(255, 64, 0, {"LDL": 2}).faults(may_spill=False) == ["2 spills, 64 bytes of stack"]
    assert Code(99, 0, 0, {"HGMMA.64x8x16": 1}).faults(may_spill=True) == ["HGMMA"]
    assert len(Code(99, 0, 228 * 1024).faults(may_spill=True)) == 1


@pytest.mark.skipif(
    sys.platform != "linux" or importlib.util.find_spec("triton") is None,
    reason="Triton's assembler comes with its Linux wheel",
)
def test_kernels_are_compiled_for_a_gpu_that_is_not_here(tmp_path):
    """Every case has its line, also where kernels are set to be interpreted; bad ones fail."""
    (tmp_path / "some_kernels.py").write_text(KERNELS)
    (tmp_path / "no_kernels.py").write_text("")
    done = subprocess.run(
        [sys.executable, check_kernels.__file__, "--module", "some_kernels",
         "--module", "no_kernels"],
        capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "TRITON_INTERPRET": "1",
             "TRITON_CACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert done.returncode == 1, done.stderr
    assert "FAILS" not in next(line for line in lines if "copy BLOCK=1024" in line)
    assert "FAILS: HGMMA" in next(line for line in lines if "product SIZE=64" in line)
    assert "missing: SIZE" in next(line for line in lines if "incomplete" in line)
    assert lines[-2:] == ["no_kernels: skipped, it has no compile_cases()",
                          "3 kernels compiled, 2 failed"]  # fmt: skip
