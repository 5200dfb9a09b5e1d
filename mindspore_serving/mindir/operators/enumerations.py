"""MindSpore's enumerations: files hold a name of them, or its number.

An operator says which names it computes; any other value is refused by its name.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mindspore_serving.mindir.tensors import UnsupportedTensor
from mindspore_serving.mindir.values import Value


@dataclass(frozen=True, slots=True)
class Enumeration:
    """Names by number, in lower case; `synonyms` are other texts that files have for them."""

    names: Mapping[int, str]
    synonyms: Mapping[str, str]

    def name(self, argument: str, value: Value, *accepted: str) -> str:
        """Return the name of `value`.  Raises Unsupported if it is not among `accepted`."""
        name = self._name(value)
        if name in accepted:
            return name
        name = repr(value) if name in (None, value) else f"{value!r} ({name})"
        raise UnsupportedTensor(f"{argument} {name}, accepted: {', '.join(accepted)}")

    def _name(self, value: Value) -> str | None:
        if isinstance(value, str):
            text = value.lower()
            return self.synonyms.get(text, text)
        return self.names.get(value) if isinstance(value, int) else None


def _numbered(names: str, **synonyms: str) -> Enumeration:
    """Make the enumeration of names in the order of their numbers, from 0."""
    return Enumeration(dict(enumerate(names.split())), synonyms)


APPROXIMATE = _numbered("none tanh")
COORDINATES = _numbered("asymmetric align_corners half_pixel crop_and_resize")
GRID_PADDING = _numbered("zeros border reflection")
INDEXING = _numbered("ij xy")
INTERPOLATION = _numbered("bilinear nearest bicubic")
LAYOUT = _numbered("bsh bnsd sbh bsnd tnd th nsd sh bnsd_bsnd pa_bsnd")
PAD_MODE = _numbered("pad same valid full", calculated="pad")
PADDING_MODE = _numbered("constant reflect symmetric edge")
REDUCE = _numbered("none add multiply update", sum="add", mul="multiply")
REDUCTION = _numbered("sum mean none update")
ROI_END_MODE = _numbered("legacy shifted")
ROUNDING = _numbered("round trunc floor ceil")
FORMAT = _numbered(
    "nchw nhwc nhwc4 hwkc hwck kchw ckhw khwc chwk hw hw4 nc nc4 nc4hw4 ncdhw nwc ncw ndhwc nc8hw8 "
    "fractal_nz nd nc1hwc0 fractal_z nc1c0hwpad nhwc1c0 fsr_nchw fractal_deconv c1hwnc0 "
    "fractal_deconv_transpose fractal_deconv_sp_stride_trans nc1hwc0_c04 fractal_z_c04 chwn "
    "fractal_deconv_sp_stride8_trans hwcn nc1khkwhwc0 bn_weight filter_hwck lookup_lookups "
    "lookup_keys lookup_value lookup_output lookup_hits c1hwncoc0 md fractal_zz dhwcn ndc1hwc0 "
    "fractal_z_3d cn dhwnc fractal_z_3d_transpose fractal_zn_lstm fractal_z_g nd_rnn_bias "
    "fractal_zn_rnn nyuv nyuv_a ncl"
)


def check_channels_first(*formats: Value, accepted: tuple[str, ...] = ("nchw",)) -> None:
    """Raise Unsupported for a layout other than (batch, channels, ...), the default (None)."""
    for data_format in formats:
        if data_format is not None:
            FORMAT.name("data_format", data_format, *accepted)
