"""Operations of a plan: their codes, and the columns of the array that the interpreter reads.

Knows no model.
"""

from enum import IntEnum, IntFlag

MAX_ROWS = 64  # tokens of a plan's pass
MAX_LOGITS = 16  # tokens of a pass whose logits are returned
NUM_COLUMNS = 16
NUM_NUMBERS = 4  # float32 parameters of an operation


class OpCode(IntEnum):
    """Operation of a row of the plan."""

    PRODUCT = 0
    RMS_NORM = 1
    LAYER_NORM = 2
    ROPE_TABLES = 3
    ROPE = 4
    ATTENTION = 5
    UNARY = 6
    BINARY = 7
    GATHER = 8
    COPY_HEADS = 9
    QUERY_SCALE = 10
    REDUCE = 11
    SCALING = 12
    BROADCAST = 13
    ROUTE = 14
    EXPERT_PRODUCT = 15
    EXPERT_BIAS = 16
    ADAPT = 17
    STATE = 18
    EXPERT_ORDER = 19
    EXPERT_GATHER = 20
    EXPERT_SUM = 21


class Column(IntEnum):
    """Columns of the plan.

    OUT, A and B are offsets in the arena of numbers, each with the distance of two rows; of
    constants that is 0.  The meaning of P0 to P6 depends on the operation.
    """

    CODE = 0
    PER_TOKEN = 1  # rows for each token; 0: rows of the tokens whose logits are returned
    OUT = 2
    OUT_STRIDE = 3
    A = 4
    A_STRIDE = 5
    B = 6
    B_STRIDE = 7
    WIDTH = 8
    P0 = 9
    P1 = 10
    P2 = 11
    P3 = 12
    P4 = 13
    P5 = 14
    P6 = 15


def max_rows(per_token: int) -> int:
    """Return the largest number of rows of a pass, of an operation with that PER_TOKEN."""
    return per_token * MAX_ROWS or MAX_LOGITS


class Unary(IntEnum):
    """P0 of UNARY."""

    SILU = 0
    GELU_TANH = 1
    GELU = 2
    RELU = 3
    SIGMOID = 4


class Scaling(IntEnum):
    """P0 of SCALING, which has a number, CLIP two."""

    SCALE = 0
    SOFTCAP = 1
    GAUSSIAN_TOPK = 2
    CLIP = 3


class Binary(IntEnum):
    """P0 of BINARY.  BROADCAST has only ADD and MUL."""

    ADD = 0
    MUL = 1
    SILU_MUL = 2
    CLAMPED = 3  # gpt-oss's gate, with a number


class RouteFlag(IntFlag):
    """P0 of ROUTE."""

    SIGMOID = 1
    NORMALIZE = 2
    BY_PAIRS = 4


class Reduce(IntEnum):
    """P0 of REDUCE."""

    MEAN = 0
    MATCH_RMS = 1  # scales A to the root mean square of B


class StepColumn(IntEnum):
    """Columns of the array of a pass's tokens."""

    POSITION = 0
    BLOCK = 1  # of the cache, which its key and value are written to
    OFFSET = 2  # within that block
    TABLE = 3  # index of its sequence's first block in the table of blocks
    USES_LONG_ROPE = 4
    ADAPTER = 5  # row of the table of adapters; 0 is none
    STATE_READ = 6  # slot of its sequence's state before it; -1 is none
    STATE_WRITE = 7
    TIME = 8  # positions of a model whose images have positions of their own
    HEIGHT = 9
    WIDTH = 10


class CacheType(IntEnum):
    """Type of the numbers of keys and values."""

    F32 = 0
    F16 = 1
    BF16 = 2
    U8 = 3
