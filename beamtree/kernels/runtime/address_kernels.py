# mypy: allow-untyped-defs, disable-error-code=valid-type
"""Writing the board by a launch: its numbers travel as arguments. A copy would need pinned memory, an event
that tells when it is free again, and several times the host's time.
"""

import triton
import triton.language as tl

NUMBERS = 48
i64 = tl.int64  # Triton would take a small number for 32 bits, and keep to that at the next launch


@triton.jit
def _eight(place, a, b, c, d, e, f, g, h):
    tl.store(place, a)
    tl.store(place + 1, b)
    tl.store(place + 2, c)
    tl.store(place + 3, d)
    tl.store(place + 4, e)
    tl.store(place + 5, f)
    tl.store(place + 6, g)
    tl.store(place + 7, h)


@triton.jit(do_not_specialize=list(range(1, NUMBERS + 1)))
def write_kernel(
    board,
    v00: i64, v01: i64, v02: i64, v03: i64, v04: i64, v05: i64, v06: i64, v07: i64,
    v08: i64, v09: i64, v10: i64, v11: i64, v12: i64, v13: i64, v14: i64, v15: i64,
    v16: i64, v17: i64, v18: i64, v19: i64, v20: i64, v21: i64, v22: i64, v23: i64,
    v24: i64, v25: i64, v26: i64, v27: i64, v28: i64, v29: i64, v30: i64, v31: i64,
    v32: i64, v33: i64, v34: i64, v35: i64, v36: i64, v37: i64, v38: i64, v39: i64,
    v40: i64, v41: i64, v42: i64, v43: i64, v44: i64, v45: i64, v46: i64, v47: i64,
):  # fmt: skip
    _eight(board + 0, v00, v01, v02, v03, v04, v05, v06, v07)
    _eight(board + 8, v08, v09, v10, v11, v12, v13, v14, v15)
    _eight(board + 16, v16, v17, v18, v19, v20, v21, v22, v23)
    _eight(board + 24, v24, v25, v26, v27, v28, v29, v30, v31)
    _eight(board + 32, v32, v33, v34, v35, v36, v37, v38, v39)
    _eight(board + 40, v40, v41, v42, v43, v44, v45, v46, v47)
