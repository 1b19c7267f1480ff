"""Write the Chinese vocoder as an ONNX graph: mel frames to samples.

The network is multi-band MelGAN (Yang et al. 2020) as built by TensorFlowTTS: four sub-bands at a quarter of the rate,
merged by a pseudo-quadrature mirror filter. Upsampling is 3 * 5 * 5 in the network and 4 in the filter: 300 samples a
frame.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from server.engines.embedded.fastspeech2_graph import MEL_BANDS
from server.engines.embedded.onnx_graph import OnnxGraph, floats
from server.engines.embedded.tflite_reader import TfliteError, TfliteFile

HOP = 300  # samples a mel frame
LEAKY_SLOPE = 0.2
UPSAMPLING = (3, 5, 5)
DILATIONS = (1, 3, 9, 27)
BANDS = 4
FILTER_TAPS = 63

Array = npt.NDArray[Any]
_Layer = tuple[str, Array, Array | None]


def _layers(file: TfliteFile) -> Iterator[_Layer]:
    """Convolutions in execution order, which is the order the network was written in: (operator, weights, bias)."""
    for operator in file.operators:
        if operator.name not in ("CONV_2D", "TRANSPOSE_CONV"):
            continue
        weight = next(
            file.constants[i] for i in operator.inputs if i in file.constants and file.constants[i].stored.ndim == 4
        )
        bias = file.bias_after(operator, steps=8)
        yield operator.name, weight.real(), None if bias is None else bias.real()


class _Vocoder:
    def __init__(self, file: TfliteFile) -> None:
        self._layers = _layers(file)
        self.graph = OnnxGraph("mb_melgan")

    def take(self, kind: str) -> tuple[Array, Array | None]:
        layer = next(self._layers, None)
        if layer is None or layer[0] != kind:
            raise TfliteError(
                f"the vocoder's layers are not in the expected order: {kind} was due, not {layer and layer[0]}"
            )
        return layer[1], layer[2]

    def finished(self) -> bool:
        return next(self._layers, None) is None

    def leaky(self, x: str) -> str:
        return self.graph.op("LeakyRelu", x, alpha=LEAKY_SLOPE)

    def convolution(self, x: str, pad: int = 0, dilation: int = 1) -> str:
        """`[1, C, T]` -> `[1, D, T]`, mirrored at the ends."""
        weights, bias = self.take("CONV_2D")
        outputs, _, taps, _ = weights.shape
        if pad:
            x = self.graph.op("Pad", x, self.graph.ints(0, 0, pad, 0, 0, pad), mode="reflect")
        kernel = self.graph.constant(weights[:, 0].transpose(0, 2, 1))
        offsets = self.graph.constant(bias if bias is not None else np.zeros(outputs, np.float32))
        return self.graph.op("Conv", x, kernel, offsets, kernel_shape=[taps], dilations=[dilation])

    def upsample(self, x: str, stride: int) -> str:
        weights, bias = self.take("TRANSPOSE_CONV")
        if bias is None:
            raise TfliteError("an upsampling layer of the vocoder has no bias")
        taps = weights.shape[1]
        kernel = self.graph.constant(weights[:, :, 0].transpose(2, 0, 1))
        before = (taps - stride) // 2  # TensorFlow's SAME padding puts the odd sample behind
        pads = [before, taps - stride - before]
        return self.graph.op(
            "ConvTranspose", x, kernel, self.graph.constant(bias), kernel_shape=[taps], strides=[stride], pads=pads
        )

    def residual(self, x: str, dilation: int) -> str:
        shortcut = self.convolution(x)
        y = self.convolution(self.leaky(x), pad=dilation, dilation=dilation)
        return self.graph.op("Add", shortcut, self.convolution(self.leaky(y)))

    def synthesis_filter(self) -> Array:
        """The two fixed filter layers (spread four bands over every fourth sample, then sum 63 taps) as one kernel
        `[4, 1, 63]` of a transposed convolution."""
        spread, _ = self.take("TRANSPOSE_CONV")
        taps, _ = self.take("CONV_2D")
        gain = float(spread[np.abs(spread) > 1e-6][0])
        kernel = taps[0, 0]  # [63, 4]
        if kernel.shape != (FILTER_TAPS, BANDS):
            raise TfliteError(f"the vocoder's filter has shape {kernel.shape}, not {(FILTER_TAPS, BANDS)}")
        return np.ascontiguousarray((kernel[::-1].T * gain)[:, None, :], dtype=np.float32)


def write_vocoder_graph(file: TfliteFile, path: Path) -> None:
    """`mel` `[1, T, 80]` -> `audio` `[1, 300 * T]` at 24 kHz."""
    net = _Vocoder(file)
    g = net.graph
    x = net.convolution(g.op("Transpose", "mel", perm=[0, 2, 1]), pad=3)
    for stride in UPSAMPLING:
        x = net.upsample(net.leaky(x), stride)
        for dilation in DILATIONS:
            x = net.residual(x, dilation)
    x = g.op("Tanh", net.convolution(net.leaky(x), pad=3))
    half = FILTER_TAPS // 2
    pads = [half, FILTER_TAPS - BANDS - half]
    kernel = g.constant(net.synthesis_filter())
    x = g.op("ConvTranspose", x, kernel, kernel_shape=[FILTER_TAPS], strides=[BANDS], pads=pads)
    g.op("Squeeze", x, g.ints(1), out="audio")
    if not net.finished():
        raise TfliteError("the vocoder has more layers than expected")
    g.save(path, [floats("mel", 1, "T", MEL_BANDS)], [floats("audio", 1, "S")])
