"""Compiles every shipped kernel for the H200 without a GPU, and looks at the machine code.

    python scripts/check_kernels.py
    python scripts/check_kernels.py --module fracdna_kernels.frac_scan.triton_chunk

A module of kernels lists what it ships in compile_cases(), which yields tuples of
  kernel       a function of triton.jit,
  signature    types of its run-time arguments, such as {"values": "*bf16", "T": "i32"},
  constexprs   values of all other arguments,
  options      num_warps, num_stages and the like; besides, for this script alone:
               divisible: names of integers that are multiples of 16 (pointers always are aligned),
               may_spill: True for a kernel that may keep registers in memory (default: kernels of
               the backward pass, by "backward" or "bwd" in their names),
               label: what to call the case (default: constants and warps).
Modules named triton_* are searched. A case fails by spills, by too much shared memory, or by HGMMA:
with the assembler of Triton 3.6 some of those products are wrong on Hopper.
"""

import argparse
import collections
import importlib
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

CAPABILITY = 90
MOST_REGISTERS = 255
MOST_SHARED = 227 * 1024
OWN_OPTIONS = ("divisible", "may_spill", "label")


@dataclass(frozen=True)
class Case:
    """One configuration of a kernel, see the module's text."""

    kernel: Any
    signature: dict[str, str]
    constexprs: dict[str, Any]
    options: dict[str, Any]

    @property
    def label(self) -> str:
        """Name of the kernel and what tells this case from others."""
        name = self.kernel.fn.__name__
        told = self.options.get("label")
        if told is None:
            numbers = {k: v for k, v in self.constexprs.items() if isinstance(v, bool | int)}
            told = " ".join(f"{k}={v:d}" for k, v in numbers.items())
        warps = self.options.get("num_warps", 4)
        return f"{name} {told} {warps}w".replace("  ", " ")

    @property
    def may_spill(self) -> bool:
        """Whether registers in memory are tolerated."""
        backward = re.search("backward|bwd", self.kernel.fn.__name__) is not None
        return self.options.get("may_spill", backward)


@dataclass(frozen=True)
class Code:
    """What a compiled kernel needs.

    Attributes:
        registers: per thread.
        stack: bytes of local memory per thread.
        shared: bytes of shared memory per program.
        counts: machine instructions by their full names, such as LDG.E.128.
    """

    registers: int
    stack: int
    shared: int
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, pattern: str) -> int:
        """Instructions whose names match from their beginning."""
        return sum(n for name, n in self.counts.items() if re.match(pattern, name))

    @property
    def spills(self) -> int:
        """Loads and stores of local memory."""
        return self.count(r"(LDL|STL)\b")

    def faults(self, may_spill: bool) -> list[str]:
        """Why this code must not be shipped."""
        found = []
        if self.registers > MOST_REGISTERS:
            found.append(f"{self.registers} registers")
        if self.shared > MOST_SHARED:
            found.append(f"{self.shared} bytes of shared memory")
        if self.count("HGMMA"):
            found.append("HGMMA")
        if not may_spill and (self.spills or self.stack):
            found.append(f"{self.spills} spills, {self.stack} bytes of stack")
        return found

    def __str__(self) -> str:
        loads = f"{self.count('LDG.*128')}/{self.count('LDG')}"
        return (
            f"{self.registers:>4} regs {self.stack:>5} stack {self.spills:>4} spills "
            f"{self.shared / 1024:>6.1f} KB  16-byte loads {loads:<7} "
            f"HMMA {self.count('HMMA'):>4}  instructions {sum(self.counts.values()):>6}"
        )


def main() -> None:
    """Compiles, prints a line per case, exits with 1 if any fails."""
    parser = argparse.ArgumentParser(
        description=f"{__doc__.splitlines()[0]} Takes several minutes on one core."
    )
    parser.add_argument("--module", action="append", help="this module alone; may be repeated")
    arguments = parser.parse_args()
    # read when kernels are defined, and interpreted ones cannot be compiled
    os.environ.pop("TRITON_INTERPRET", None)
    import triton

    print(f"Triton {triton.__version__}, compute capability {CAPABILITY / 10}")
    failed = compiled = 0
    for module in modules(arguments.module):
        cases = getattr(module, "compile_cases", None)
        if cases is None:
            print(f"{module.__name__}: skipped, it has no compile_cases()")
            continue
        print(module.__name__)
        for given in cases():
            case = Case(*given)
            code, faults = checked(case)
            print(f"  {case.label:<64} {code}{'  FAILS: ' if faults else ''}{', '.join(faults)}")
            sys.stdout.flush()
            compiled += 1
            failed += bool(faults)
    print(f"{compiled} kernels compiled, {failed} failed")
    if failed or not compiled:
        raise SystemExit(1)


def modules(names: list[str] | None) -> Iterator[ModuleType]:
    """Those named, or all of fracdna_kernels whose names begin with triton_."""
    if names is None:
        package = importlib.import_module("fracdna_kernels")
        found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        names = [m.name for m in found if m.name.rpartition(".")[2].startswith("triton_")]
    for name in names:
        try:
            yield importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise SystemExit(
                f"--module {name}: {error}; names are like fracdna_kernels.frac_scan.triton_chunk"
            ) from error


def checked(case: Case) -> tuple[str, list[str]]:
    """A case's line of figures and its faults; a kernel that does not compile has one."""
    try:
        code = compile_case(case)
    # compilers raise what they like; the other cases are still worth a line
    except Exception as error:
        message = (str(error) or type(error).__name__).strip().splitlines()
        return "", [f"{type(error).__name__}: {message[-1]}"]
    return str(code), code.faults(case.may_spill)


def compile_case(case: Case) -> Code:
    """Machine code for the H200 as the wheel's own assembler makes it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = case.kernel.arg_names
    unknown = {*case.signature, *case.constexprs} ^ set(names)
    if unknown:
        raise ValueError(f"arguments that are unknown or missing: {', '.join(sorted(unknown))}")
    signature = {name: case.signature.get(name, "constexpr") for name in names}
    aligned = {name for name, kind in case.signature.items() if kind.startswith("*")}
    aligned |= set(case.options.get("divisible", ()))
    source = ASTSource(
        fn=case.kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in case.constexprs.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {key: value for key, value in case.options.items() if key not in OWN_OPTIONS}
    kernel = triton.compile(source, target=GPUTarget("cuda", CAPABILITY, 32), options=options)
    usage = disassemble("cuobjdump", "-res-usage", kernel.asm["cubin"])
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", usage).groups()
    counts = instructions(disassemble("nvdisasm", "-c", kernel.asm["cubin"]))
    return Code(int(registers), int(stack), kernel.metadata.shared, counts)


def disassemble(tool: str, option: str, cubin: bytes) -> str:
    """What a tool of Triton's wheel prints about a binary."""
    import triton

    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / tool
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(program), option, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def instructions(listing: str) -> dict[str, int]:
    """How often each instruction stands in a disassembly; predicates and operands are dropped."""
    lines = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", listing)
    return dict(collections.Counter(lines))


if __name__ == "__main__":
    main()
