"""Special functions of one tensor, element by element, by approximations for float32.

Abramowitz and Stegun, "Handbook of Mathematical Functions" (6.1, 6.3, 9.8); Giles, "Approximating
the erfinv function" (2012); Lanczos, "A precision approximation of the gamma function" (1964).
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from openvino import opset16 as op

from mindspore_serving.mindir.operators.types import as_float, common
from mindspore_serving.mindir.tensors import Operator, Tensor, absolute, like
from mindspore_serving.mindir.values import Value

_ERFINV_CENTRE = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
_ERFINV_TAIL = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)
# 9.8.1 to 9.8.4, from the highest power: below 3.75 of (x / 3.75)^2, from there of 3.75 / x.
_BESSEL_CENTRE = {
    0: (0.0045813, 0.0360768, 0.2659732, 1.2067492, 3.0899424, 3.5156229, 1.0),
    1: (0.00032411, 0.00301532, 0.02658733, 0.15084934, 0.51498869, 0.87890594, 0.5),
}
_BESSEL_TAIL = {
    0: (
        *(0.00392377, -0.01647633, 0.02635537, -0.02057706, 0.00916281),
        *(-0.00157565, 0.00225319, 0.01328592, 0.39894228),
    ),
    1: (
        *(-0.00420059, 0.01787654, -0.02895312, 0.02282967, -0.01031555),
        *(0.00163801, -0.00362018, -0.03988024, 0.39894228),
    ),
}
_BESSEL_SPLIT = 3.75
# Lanczos' series with g = 5.
_GAMMA = (
    *(76.18009172947146, -86.50532032941677, 24.01409824083091),
    *(-1.231739572450155, 0.1208650973866179e-2, -0.5395239384953e-5),
)
_DIGAMMA_SHIFT = 6
# 6.3.18: -1/12, 1/120, -1/252, 1/240 of even powers of 1/x, from the highest.
_DIGAMMA = (1 / 240, -1 / 252, 1 / 120, -1 / 12, 0.0)


def _polynomial(coefficients: Sequence[float], x: Any) -> Any:
    """Evaluate by Horner's rule; the coefficient of the highest power comes first."""
    value = like(coefficients[0], x)
    for coefficient in coefficients[1:]:
        value = op.add(op.multiply(value, x), like(coefficient, x)).output(0)
    return value


def _plus(x: Any, number: float) -> Any:
    return op.add(x, like(number, x)).output(0)


def _times(x: Any, number: float) -> Any:
    return op.multiply(x, like(number, x)).output(0)


def _over(number: float, x: Any) -> Any:
    return op.divide(like(number, x), x).output(0)


def _minus(x: Any, y: Any) -> Any:
    return op.subtract(x, y).output(0)


def _erfinv(x: Tensor) -> Any:
    x = as_float(x)
    w = op.negative(op.log(op.multiply(_minus(like(1, x), x), _plus(x, 1)))).output(0)
    centre = _polynomial(_ERFINV_CENTRE, _plus(w, -2.5))
    tail = _polynomial(_ERFINV_TAIL, _plus(op.sqrt(op.maximum(w, like(5, x))).output(0), -3))
    result = op.multiply(op.select(op.less(w, like(5, x)), centre, tail), x)
    size, end = absolute(x), like(1, x)
    outside = op.select(op.greater(size, end), like(math.nan, x), _times(x, math.inf))
    return op.select(op.less(size, end), result, outside)


def _bessel(order: int, is_scaled: bool, x: Tensor) -> Any:
    """Compute the modified Bessel function of the first kind, scaled by exp(-|x|) or not."""
    x = as_float(x)
    size = absolute(x)
    is_small = op.less(size, like(_BESSEL_SPLIT, x))
    ratio = _times(op.minimum(size, like(_BESSEL_SPLIT, x)).output(0), 1 / _BESSEL_SPLIT)
    centre = _polynomial(_BESSEL_CENTRE[order], op.multiply(ratio, ratio).output(0))
    if order:
        centre = op.multiply(centre, size).output(0)
    far = op.maximum(size, like(_BESSEL_SPLIT, x)).output(0)
    tail = op.divide(_polynomial(_BESSEL_TAIL[order], _over(_BESSEL_SPLIT, far)), op.sqrt(far))
    if is_scaled:
        centre = op.multiply(centre, op.exp(op.negative(size))).output(0)
    else:
        half = op.exp(_times(far, 0.5))  # exp(x) alone overflows before the result does
        tail = op.multiply(op.multiply(tail, half), half)
    result = op.select(is_small, centre, tail)
    return op.multiply(result, op.sign(x)) if order else result


def _log_gamma(x: Tensor) -> Any:
    """Compute log|gamma(x)|, infinite at the poles (series of Lanczos)."""
    x = as_float(x)
    is_low = op.less(x, like(0.5, x))
    y = _plus(op.select(is_low, _minus(like(1, x), x), x).output(0), -1)  # gamma(y + 1)
    series = like(1.000000000190015, x)
    for number, coefficient in enumerate(_GAMMA, 1):
        series = op.add(series, _over(coefficient, _plus(y, number))).output(0)
    t = _plus(y, 5.5)
    log_series = op.log(_times(series, math.sqrt(2 * math.pi)))
    value = op.add(_minus(op.multiply(_plus(y, 0.5), op.log(t)).output(0), t), log_series)
    is_huge = op.greater(y, like(1e30, x))  # avoid infinity minus infinity
    value = op.select(is_huge, op.multiply(y, _plus(op.log(t).output(0), -1)), value).output(0)
    reflected = _minus(op.log(_over(math.pi, _sin_pi(x))).output(0), value)
    return op.select(is_low, reflected, value)


def _sin_pi(x: Any) -> Any:
    """Compute |sin(pi x)| from the fraction of `x`, so that it is 0 at integers."""
    return op.sin(_times(_minus(x, op.floor(x).output(0)), math.pi)).output(0)


def _digamma(x: Tensor) -> Any:
    """Compute the derivative of log(gamma(x)): recurrence to large arguments, then the series."""
    x = as_float(x)
    is_low = op.less_equal(x, like(0, x))
    y = op.select(is_low, _minus(like(1, x), x), x).output(0)
    steps = like(0, x)
    for _ in range(_DIGAMMA_SHIFT):
        steps = op.add(steps, _over(1, y)).output(0)
        y = _plus(y, 1)
    inverse = _over(1, y)
    series = _polynomial(_DIGAMMA, op.multiply(inverse, inverse).output(0))
    value = op.add(_minus(op.log(y).output(0), _times(inverse, 0.5)), series).output(0)
    value = _minus(value, steps)
    fraction = _minus(x, op.floor(x).output(0))
    reflected = _minus(value, _over(math.pi, op.tan(_times(fraction, math.pi)).output(0)))
    is_pole = op.logical_and(is_low, op.equal(fraction, like(0, x)))
    at_pole = op.select(op.equal(x, like(0, x)), like(-math.inf, x), like(math.nan, x))
    return op.select(is_pole, at_pole, op.select(is_low, reflected, value))


def _hypot(x: Value, y: Value) -> Any:
    """Compute sqrt(x^2 + y^2) without overflow of the squares."""
    a, b = (absolute(as_float(value)) for value in common(x, y))
    highest, lowest = op.maximum(a, b).output(0), op.minimum(a, b).output(0)
    is_zero = op.equal(highest, like(0, a))
    ratio = op.divide(lowest, op.select(is_zero, like(1, a), highest)).output(0)
    result = op.multiply(highest, op.sqrt(_plus(op.multiply(ratio, ratio).output(0), 1)))
    return op.select(op.equal(highest, like(math.inf, a)), highest, result)


OPERATORS: dict[str, Operator] = {
    "BesselI0": partial(_bessel, 0, False),
    "BesselI0e": partial(_bessel, 0, True),
    "BesselI1": partial(_bessel, 1, False),
    "BesselI1e": partial(_bessel, 1, True),
    "Digamma": _digamma,
    "Erfinv": _erfinv,
    "Hypot": _hypot,
    "Lgamma": _log_gamma,
}
