"""How a module of kernels says what it ships; compiled offline by scripts/check_kernels.py."""

from typing import Any

Case = tuple[Any, dict[str, str], dict[str, Any], dict[str, Any]]

# each has a tile of its own, see triton_rows.py; 320 leaves some of its tile empty
WIDTHS = (64, 128, 256, 320, 512, 1024, 2048, 4096, 8192)


def compile_case(
    kernel: Any,
    pointers: dict[str, str],
    constants: dict[str, Any],
    label: str,
    *,
    divisible: tuple[str, ...] = (),
    **options: Any,
) -> Case:
    """One configuration of a kernel.

    Args:
        kernel: a function of triton.jit.
        pointers: element types of the tensors that it is given, such as {"x": "bf16"}.
        constants: compile-time arguments, None for a tensor that is not given, and num_warps; names
            that the kernel lacks are left out.
        label: what tells the configuration from others.
        divisible: sizes that are multiples of 16, beside all that are named *_stride.
        options: of the compiler and of scripts/check_kernels.py.

    Returns:
        What compile_cases() yields, see that script. Arguments that are neither pointers nor
        constants are 32-bit integers.
    """
    given = {name: value for name, value in constants.items() if name in kernel.arg_names}
    rest = [name for name in kernel.arg_names if name not in given]
    types = {name: f"*{pointers[name]}" if name in pointers else "i32" for name in rest}
    aligned = [name for name in rest if name.endswith("_stride") or name in divisible]
    fixed = {"num_warps": constants.get("num_warps", 4), "divisible": aligned, "label": label}
    return kernel, types, given, fixed | options
