"""Cases of operators that work element by element."""

import numpy as np
import torch

from tests.mindir.drawing import Case

F = torch.nn.functional
ROUNDING_MODES = {None: None, 1: "trunc", 2: "floor"}


def of_torch(function):
    """A reference of torch, called with tensors for arrays."""

    def call(*arguments):
        made = [
            torch.from_numpy(np.array(one)) if isinstance(one, np.ndarray) else one
            for one in arguments
        ]
        return function(*made)

    return call


def unary(low=-3.0, high=3.0, reference=None, tolerance=1e-4):
    made = None if reference is None else of_torch(reference)
    return lambda d: Case((d.floats(low=low, high=high),), reference=made, tolerance=tolerance)


def binary(low=-3.0, high=3.0, reference=None):
    made = None if reference is None else of_torch(reference)
    return lambda d: Case(tuple(d.pair(low, high)), reference=made)


def whole(low=-9, high=9, reference=None):
    made = None if reference is None else of_torch(reference)
    return lambda d: Case(tuple(d.whole_pair(low, high)), reference=made)


def either(first, second):
    return lambda d: d.choice(first, second)(d)


def with_number(low=0.5, high=3.0, reference=None):
    made = None if reference is None else of_torch(reference)
    return lambda d: Case(
        (d.floats(),), (round(float(d.floats((), low, high)), 2),), reference=made
    )


def masked(d):
    x = d.floats()
    return Case((x, d.bools(x.shape)), (2.5,))


def chosen(d):
    x = d.floats()
    return Case((d.bools(x.shape), x, d.floats(x.shape)))


def three(reference=None, **fields):
    def make(d):
        x = d.floats()
        return Case(
            (x, d.floats(x.shape, 0.5, 2), d.floats(x.shape, 0.5, 2)), reference=reference, **fields
        )

    return make


def numbers(reference, low=1, high=9):
    return lambda d: Case((), (d.number(low, high), d.number(low, high)), reference=reference)


def tensor_numbers(reference):
    """One of the two depends on the data."""
    return lambda d: Case((d.whole((), 1, 9, np.int64),), (d.number(1, 9),), reference=reference)


UNARY = {
    **dict.fromkeys(("ACos", "Asin", "Atanh"), unary(-0.9, 0.9)),
    **dict.fromkeys(("Acosh",), unary(1.1, 4)),
    **dict.fromkeys(("Log", "Log1p", "Sqrt", "Rsqrt", "Inv", "Reciprocal"), unary(0.1, 4)),
    **dict.fromkeys(
        ("Abs", "Asinh", "Atan", "Ceil", "Cos", "Cosh", "Elu", "Erf", "Erfc", "Exp", "Expm1"),
        unary(),
    ),
    **dict.fromkeys(
        ("FastGeLU", "Floor", "GeLU", "HShrink", "HSigmoid", "HSwish", "Identity", "IsFinite"),
        unary(),
    ),
    **dict.fromkeys(
        ("IsInf", "IsNan", "Mish", "Neg", "ReLU", "ReLU6", "Rint", "Round", "SeLU"),
        unary(),
    ),
    **dict.fromkeys(
        ("SiLU", "Sigmoid", "Sign", "Sin", "Sinh", "SoftShrink", "Softplus", "Softsign"), unary()
    ),
    **dict.fromkeys(("Square", "StopGradient", "Tanh", "Trunc", "CeLU", "ReLUV3"), unary()),
    "LogSigmoid": unary(reference=lambda x: (F.logsigmoid(x), torch.exp(-x.abs()))),
    "Tan": unary(-1.2, 1.2),
    "AcosExt": unary(-0.9, 0.9, torch.acos),
    "AcoshExt": unary(1.1, 4, torch.acosh),
    "AsinExt": unary(-0.9, 0.9, torch.asin),
    "AsinhExt": unary(reference=torch.asinh),
    "AtanExt": unary(reference=torch.atan),
    "Clone": unary(reference=torch.clone),
    "Contiguous": unary(reference=torch.clone),
    "Copy": unary(reference=torch.clone),
    "Detach": unary(reference=torch.clone),
    "EluExt": unary(reference=F.elu),
    "Exp2": unary(reference=torch.exp2),
    "Log10": unary(0.1, 4, torch.log10),
    "Log2": unary(0.1, 4, torch.log2),
    "MishExt": unary(reference=F.mish),
    "SeLUExt": unary(reference=F.selu),
    "LogicalNot": lambda d: Case((d.bools(),)),
    "BitwiseNot": lambda d: Case((d.whole(),), reference=of_torch(torch.bitwise_not)),
    "GeluExt": lambda d: Case(
        (d.floats(),),
        (d.number(0, 1),),
        reference=of_torch(lambda x, how: F.gelu(x, approximate=("none", "tanh")[how])),
    ),
    "GLU": lambda d: Case((d.floats((3, 4)),), init={"axis": d.choice(1, -1)}),
    "Swiglu": lambda d: Case(
        (d.floats((3, 4)),),
        (-1,),
        reference=of_torch(lambda x, dim: F.silu(x.chunk(2, dim)[0]) * x.chunk(2, dim)[1]),
    ),
    "Hardtanh": lambda d: Case((d.floats(),), (-1.0, 0.5), reference=of_torch(F.hardtanh)),
    "LeakyReLU": lambda d: Case(
        (d.floats(),), (), {"alpha": 0.2}, of_torch(lambda x: F.leaky_relu(x, 0.2))
    ),
    "LeakyReLUExt": lambda d: Case((d.floats(),), (0.3,), reference=of_torch(F.leaky_relu)),
    "Logit": lambda d: Case((d.floats(None, 0.1, 0.9),), init={"eps": d.choice(-1.0, 0.2)}),
    "NanToNum": lambda d: Case(
        (np.array([np.nan, np.inf, -np.inf, 1.5], np.float32),),
        init={"nan": 1.0, "posinf": 2.0, "neginf": -2.0},
    ),
    "PReLU": lambda d: Case((d.floats((2, 3, 4)), d.floats(d.choice((1,), (3,)), 0.1, 0.9))),
    "SoftplusExt": lambda d: Case((d.floats(),), (2.0, 3.0), reference=of_torch(F.softplus)),
    "Threshold": lambda d: Case((d.floats(),), (0.5, 2.0), reference=of_torch(F.threshold)),
}
BINARY = {
    **dict.fromkeys(
        ("Add", "Sub", "Mul", "Maximum", "Minimum", "Equal", "NotEqual", "Greater", "Less"),
        either(binary(), whole()),
    ),
    **dict.fromkeys(("GreaterEqual", "LessEqual", "SquaredDifference"), either(binary(), whole())),
    **dict.fromkeys(("Div", "RealDiv", "Xdivy", "FloorDiv", "FloorMod", "Mod"), binary(0.5, 3)),
    **dict.fromkeys(("DivNoNan",), binary(0.5, 3)),
    "Pow": binary(0.5, 2),
    "AddV2": binary(reference=torch.add),
    "Atan2": binary(),
    "Xlogy": binary(0.5, 3),
    "TruncateDiv": whole(1, 9),
    "TruncateMod": whole(1, 9),
    "BitwiseAnd": whole(0, 9),
    "BitwiseOr": whole(0, 9),
    "BitwiseXor": whole(0, 9),
    "Atan2Ext": binary(reference=torch.atan2),
    "LogAddExp": binary(reference=torch.logaddexp),
    "BitwiseAndTensor": whole(reference=torch.bitwise_and),
    "BitwiseOrTensor": whole(reference=torch.bitwise_or),
    "BitwiseXorTensor": whole(reference=torch.bitwise_xor),
    "LeftShift": whole(0, 5, torch.bitwise_left_shift),
    "RightShift": whole(0, 5, torch.bitwise_right_shift),
    "FmodTensor": binary(0.5, 3, torch.fmod),
    "RemainderTensorTensor": binary(0.5, 3, torch.remainder),
    **{
        f"Bitwise{name}Scalar": lambda d, call=call: Case(
            (d.whole(None, 0, 9),), (d.number(0, 9),), reference=of_torch(call)
        )
        for name, call in (
            ("And", torch.bitwise_and),
            ("Or", torch.bitwise_or),
            ("Xor", torch.bitwise_xor),
        )
    },
    "Muls": with_number(reference=torch.mul),
    "Divs": with_number(reference=torch.div),
    "EqScalar": with_number(reference=torch.eq),
    "FloorDivScalar": with_number(reference=torch.floor_divide),
    "FmodScalar": with_number(reference=torch.fmod),
    "GreaterEqualScalar": with_number(reference=torch.ge),
    "LessScalar": with_number(reference=torch.lt),
    "PowTensorScalar": lambda d: Case(
        (d.floats(None, 0.5, 2),), (1.5,), reference=of_torch(torch.pow)
    ),
    "PowScalarTensor": lambda d: Case((), (1.5, d.floats()), reference=of_torch(torch.pow)),
    "RemainderTensorScalar": with_number(reference=torch.remainder),
    "RemainderScalarTensor": lambda d: Case(
        (), (5.0, d.floats(None, 0.5, 2)), reference=of_torch(torch.remainder)
    ),
    **{
        name: lambda d, call=call: Case(
            tuple(d.pair()), (2.0,), reference=of_torch(lambda x, y, alpha: call(x, y, alpha=alpha))
        )
        for name, call in (("AddExt", torch.add), ("SubExt", torch.sub))
    },
    **{
        name: lambda d, call=call: Case(
            (d.floats(),),
            (1.5, 2.0),
            reference=of_torch(lambda x, y, alpha: call(x, y, alpha=alpha)),
        )
        for name, call in (("AddScalar", torch.add), ("SubScalar", torch.sub))
    },
    **{
        name: lambda d: Case(
            tuple(d.pair(0.5, 3)),
            (d.choice(None, 1, 2),),
            reference=of_torch(
                lambda x, y, how: torch.div(x, y, rounding_mode=ROUNDING_MODES[how])
            ),
        )
        for name in ("DivMod",)
    },
    "DivMods": lambda d: Case(
        (d.floats(),),
        (0.7, d.choice(None, 1, 2)),
        reference=of_torch(lambda x, y, how: torch.div(x, y, rounding_mode=ROUNDING_MODES[how])),
    ),
    "AddN": lambda d: Case(((x := d.floats(), d.floats(x.shape), d.floats(x.shape)),)),
    "Addcdiv": lambda d: Case((*three()(d).tensors, np.float32(0.5))),
    "Addcmul": lambda d: Case((*three()(d).tensors, np.float32(0.5))),
    "AddcdivExt": three(of_torch(lambda x, a, b, v: torch.addcdiv(x, a, b, value=v)), more=(0.5,)),
    "AddcmulExt": three(of_torch(lambda x, a, b, v: torch.addcmul(x, a, b, value=v)), more=(0.5,)),
    "BiasAdd": lambda d: Case((x := d.floats(d.shape(2, 4)), d.floats((x.shape[1],)))),
    "ClampScalar": lambda d: Case(
        (d.floats(),), (-0.5, d.choice(None, 1.0)), reference=of_torch(torch.clamp)
    ),
    "ClampTensor": lambda d: Case(
        (x := d.floats(), d.floats(x.shape) - 3, d.floats(x.shape) + 3),
        reference=of_torch(torch.clamp),
    ),
    "IsClose": lambda d: Case((x := d.floats(), x + d.choice(0.0, 1e-3)), init={"rtol": 1e-4}),
    "Lerp": three(),
    "LerpScalar": lambda d: Case(
        (x := d.floats(), d.floats(x.shape)), (0.3,), reference=of_torch(torch.lerp)
    ),
    **dict.fromkeys(
        ("LogicalAnd", "LogicalOr", "LogicalXor"),
        lambda d: Case((x := d.bools(), d.bools(x.shape))),
    ),
    "MaskedFill": masked,
    "MaskedFillScalar": lambda d: Case(
        (x := d.floats(), d.bools(x.shape)), (2.5,), reference=of_torch(torch.masked_fill)
    ),
    "Select": chosen,
    "SelectV2": lambda d: Case(chosen(d).tensors, reference=of_torch(torch.where)),
}
NUMBERS = {
    "ScalarAdd": tensor_numbers(lambda x, y: x + y),
    "ScalarBool": lambda d: Case((d.whole((), 0, 1, np.int64),), reference=lambda x: x != 0),
    "ScalarCast": lambda d: Case(
        (d.whole((), 0, 9, np.int64),), (43,), reference=lambda x, _: np.float32(x)
    ),
    "ScalarDiv": tensor_numbers(lambda x, y: np.float32(x / y)),
    "ScalarEq": tensor_numbers(lambda x, y: x == y),
    "ScalarFloorDiv": tensor_numbers(lambda x, y: x // y),
    "ScalarGe": tensor_numbers(lambda x, y: x >= y),
    "ScalarGt": tensor_numbers(lambda x, y: x > y),
    "ScalarLe": tensor_numbers(lambda x, y: x <= y),
    "ScalarLt": tensor_numbers(lambda x, y: x < y),
    "ScalarMax": tensor_numbers(np.maximum),
    "ScalarMin": tensor_numbers(np.minimum),
    "ScalarMod": tensor_numbers(lambda x, y: x % y),
    "ScalarMul": numbers(lambda x, y: x * y),
    "ScalarPow": tensor_numbers(lambda x, _: x**2)
    and (lambda d: Case((d.whole((), 1, 9, np.int64),), (2,), reference=lambda x, y: x**y)),
    "ScalarSub": numbers(lambda x, y: x - y),
    "ScalarUsub": lambda d: Case((d.whole((), 1, 9, np.int64),), reference=np.negative),
}
CASES = {**UNARY, **BINARY, **NUMBERS}
