"""Write the Chinese acoustic model as two ONNX graphs: symbols to mel, and the postnet that refines the mel.

The network is FastSpeech2 (Ren et al. 2020) as built by TensorFlowTTS; layer sizes are read from the weights. Dropout,
which the .tflite file left switched on, is the identity here, so the output is deterministic.

Large products use the file's own int8 weights. In the first graph activations are quantised with the range of the whole
clause. In the postnet they come out of tanh, so their range is fixed and known: quantising with 1/127 makes each frame
independent of the others, and the postnet may be run on any stretch of a clause with the same result.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from server.engines.embedded.onnx_graph import OnnxGraph, WeightType, floats, integers
from server.engines.embedded.tflite_reader import Constant, TfliteError, TfliteFile

MEL_BANDS = 80
POSTNET_CONTEXT = 10  # frames each side that influence a frame: five convolutions of five taps
HEADS = 2
HEAD_WIDTH = 16
SYMBOLS = 219  # rows of the embedding table
LAYER_NORM_EPSILON = 1e-5
_INTEGER_MIN_ROWS = 128  # smaller products gain nothing from int8

Array = npt.NDArray[Any]


class _Weights:
    """Weights by the names the TensorFlow layers had."""

    def __init__(self, file: TfliteFile) -> None:
        self._file = file
        self._biases: dict[str, Constant] = {}
        for operator in file.operators:
            if operator.name in ("CONV_2D", "FULLY_CONNECTED") and operator.inputs[1] in file.constants:
                bias = file.bias_after(operator, steps=4)
                if bias is not None:
                    self._biases[file.constants[operator.inputs[1]].name] = bias

    def vector(self, name: str) -> Array:
        return self._file.named(name).real()

    def bias(self, weight: Constant) -> Array:
        """The bias added after a weight's product (the file shares equal biases, so names do not lead to them)."""
        try:
            return self._biases[weight.name].real()
        except KeyError:
            raise TfliteError(f"no bias follows {weight.name!r}") from None

    def dense(self, name: str) -> tuple[Array, float | None, Array]:
        """Stored weights `[inputs, outputs]`, their scale, and the bias `[outputs]`."""
        weight = self._file.named(f"{name}/Tensordot/MatMul", 2)
        return weight.stored.T, weight.scale, self.bias(weight)

    def convolution(self, name: str) -> tuple[Array, float | None, Array, int]:
        """Stored weights as a matrix `[taps * inputs, outputs]`, their scale, the bias, and the number of taps."""
        weight = self._file.named(f"{name}/conv1d", 4)
        outputs, _, taps, inputs = weight.stored.shape
        matrix = weight.stored[:, 0].transpose(1, 2, 0).reshape(taps * inputs, outputs)
        return matrix, weight.scale, self.bias(weight), taps

    def embedding(self, name: str, rows: int) -> Array:
        for constant in self._file.constants.values():
            if constant.name.endswith(name) and constant.stored.shape[0] == rows:
                return constant.real()
        raise TfliteError(f"no table named {name!r} with {rows} rows")

    def positions(self) -> Array:
        return self._file.named("position_embeddings/Gather/resource", 2).real()


class _Layers:
    """The network's building blocks; values are `[1, T, C]` throughout."""

    def __init__(self, graph: OnnxGraph, weights: _Weights, weight_type: WeightType) -> None:
        self.graph = graph
        self.weights = weights
        self._weight_type = weight_type

    def product(self, x: str, matrix: Array, scale: float | None, taps: int = 1) -> str:
        g = self.graph
        if scale is None or matrix.shape[0] < _INTEGER_MIN_ROWS:
            real = g.constant(matrix.astype(np.float32) * np.float32(1.0 if scale is None else scale))
            return g.op("MatMul", g.windows(x, taps) if taps > 1 else x, real)
        quantised, step, zero = g.ops("DynamicQuantizeLinear", x, outputs=3)
        rows = g.windows(quantised, taps, zero) if taps > 1 else quantised
        step = g.op("Mul", step, g.constant(scale, np.float32))
        return g.integer_matmul(rows, zero, step, matrix, self._weight_type)

    def dense(self, x: str, name: str) -> str:
        matrix, scale, bias = self.weights.dense(name)
        return self.graph.op("Add", self.product(x, matrix, scale), self.graph.constant(bias))

    def convolution(self, x: str, name: str) -> str:
        matrix, scale, bias, taps = self.weights.convolution(name)
        return self.graph.op("Add", self.product(x, matrix, scale, taps), self.graph.constant(bias))

    def layer_norm(self, x: str, name: str) -> str:
        gain = self.graph.constant(self.weights.vector(f"{name}/batchnorm/mul/ReadVariableOp/resource"))
        shift = self.graph.constant(self.weights.vector(f"{name}/batchnorm/ReadVariableOp/resource"))
        return self.graph.op("LayerNormalization", x, gain, shift, axis=-1, epsilon=LAYER_NORM_EPSILON)

    def attention(self, x: str, name: str) -> str:
        """Self-attention of two heads; query, key and value come from one product."""
        g = self.graph
        parts = [self.weights.dense(f"{name}/self/{part}") for part in ("query", "key", "value")]
        real = [matrix.astype(np.float32) * np.float32(scale or 1.0) for matrix, scale, _ in parts]
        biases = [bias for _, _, bias in parts]
        shrink = np.float32(1 / np.sqrt(HEAD_WIDTH))
        real[0], biases[0] = real[0] * shrink, biases[0] * shrink
        joint = g.op("MatMul", x, g.constant(np.concatenate(real, axis=1)))
        joint = g.op("Add", joint, g.constant(np.concatenate(biases)))
        joint = g.op("Reshape", joint, g.ints(0, 0, 3 * HEADS, HEAD_WIDTH))
        joint = g.op("Transpose", joint, perm=[0, 2, 1, 3])
        query, key, value = g.ops("Split", joint, g.ints(HEADS, HEADS, HEADS), outputs=3, axis=1)
        scores = g.op("MatMul", query, g.op("Transpose", key, perm=[0, 1, 3, 2]))
        mixed = g.op("MatMul", g.op("Softmax", scores, axis=-1), value)
        mixed = g.op("Transpose", mixed, perm=[0, 2, 1, 3])
        mixed = g.op("Reshape", mixed, g.ints(0, 0, HEADS * HEAD_WIDTH))
        return self.dense(mixed, f"{name}/output/dense")

    def block(self, x: str, name: str) -> str:
        """One feed-forward transformer block."""
        g = self.graph
        attended = g.op("Add", self.attention(x, f"{name}/attention"), x)
        x = self.layer_norm(attended, f"{name}/attention/output/LayerNorm")
        y = self.convolution(x, f"{name}/intermediate/conv1d_1")
        y = g.op("Mul", y, g.op("Tanh", g.op("Softplus", y)))  # mish
        y = self.convolution(y, f"{name}/intermediate/conv1d_2")
        return self.layer_norm(g.op("Add", y, x), f"{name}/output/LayerNorm")

    def predictor(self, x: str, name: str, layers: str, last: str) -> str:
        """Duration, pitch or energy per symbol: `[1, L, 1]`."""
        for number in range(2):
            x = self.graph.op("Relu", self.convolution(x, f"{name}/{layers}/conv_._{number}"))
            x = self.layer_norm(x, f"{name}/{layers}/LayerNorm_._{number}")
        return self.dense(x, f"{name}/{last}")


def write_acoustic_graph(file: TfliteFile, path: Path, weight_type: WeightType) -> None:
    """Inputs: `ids` `[1, L]`, `duration_scale` `[1]` (2.0 = half the speed), `pitch_scale` and `pitch_shift` `[1]` (on
    the normalised pitch). Outputs: `mel_before` `[1, T, 80]` and `durations` `[L]` in frames, whose sum is T.
    """
    weights = _Weights(file)
    g = OnnxGraph("fastspeech2")
    net = _Layers(g, weights, weight_type)
    positions = weights.positions()
    table = g.constant(positions)
    one = g.constant(1, np.int64)
    zero = g.constant(0, np.int64)

    def positioned(x: str, count: str) -> str:
        index = g.op("Range", one, g.op("Add", count, one), one)
        index = g.op("Min", index, g.constant(len(positions) - 1, np.int64))  # past the table: no error, same position
        return g.op("Add", x, g.op("Gather", table, index))

    length = g.op("Gather", g.op("Shape", "ids"), one)
    x = positioned(g.op("Gather", g.constant(weights.embedding("embeddings/Gather/resource", SYMBOLS)), "ids"), length)
    for number in range(3):
        x = net.block(x, f"encoder/layer_._{number}")

    log_duration = g.op("Squeeze", net.predictor(x, "duration_predictor", "sequential_8", "dense_7"), g.ints(0, 2))
    frames = g.op("Relu", g.op("Sub", g.op("Exp", log_duration), g.constant(1, np.float32)))
    frames = g.op("Round", g.op("Mul", frames, "duration_scale"))
    durations = g.op("Cast", frames, to=TensorProto.INT64, out="durations")
    pitch = net.predictor(x, "f0_predictor", "sequential_6", "dense_5")
    pitch = g.op("Add", g.op("Mul", pitch, "pitch_scale"), "pitch_shift")
    energy = net.predictor(x, "energy_predictor", "sequential_7", "dense_6")
    variance = g.op("Add", net.convolution(pitch, "f0_embeddings"), net.convolution(energy, "energy_embeddings"))
    x = g.op("Add", x, variance)

    ends = g.op("CumSum", durations, zero)
    total = g.op("ReduceSum", durations, g.ints(0), keepdims=0)
    frame = g.op("Range", zero, total, one)
    passed = g.op("GreaterOrEqual", g.op("Unsqueeze", frame, g.ints(1)), g.op("Unsqueeze", ends, g.ints(0)))
    symbol = g.op("ReduceSum", g.op("Cast", passed, to=TensorProto.INT64), g.ints(1), keepdims=0)
    x = positioned(g.op("Gather", x, symbol, axis=1), total)
    for number in range(3):
        x = net.block(x, f"decoder/layer_._{number}")
    matrix, scale, bias = weights.dense("mel_before")
    g.op("Add", net.product(x, matrix, scale), g.constant(bias), out="mel_before")

    scalars = [floats(name, 1) for name in ("duration_scale", "pitch_scale", "pitch_shift")]
    results = [floats("mel_before", 1, "T", MEL_BANDS), integers("durations", "L")]
    g.save(path, [integers("ids", 1, "L"), *scalars], results)


def write_postnet_graph(file: TfliteFile, path: Path, weight_type: WeightType) -> None:
    """`mel_before` `[1, T, 80]` -> `mel` `[1, T, 80]`; a frame depends on `POSTNET_CONTEXT` frames each side."""
    weights = _Weights(file)
    g = OnnxGraph("fastspeech2_postnet")
    step = 1 / 127
    zero = g.constant(128, np.uint8)
    x = "mel_before"
    for number in range(5):
        matrix, scale, bias, taps = weights.convolution(f"postnet/conv_._{number}")
        name = f"postnet/batch_norm_._{number}/batchnorm"
        gain, shift = weights.vector(f"{name}/mul"), weights.vector(f"{name}/sub")
        if scale is None:
            raise TfliteError("the postnet's weights were expected as int8")
        if number == 0:  # its input is the mel, whose range is open: stay in floats
            rows = g.windows(x, taps)
            x = g.op("MatMul", rows, g.constant(matrix.astype(np.float32) * np.float32(scale) * gain))
        else:
            quantised = g.op("QuantizeLinear", x, g.constant(step, np.float32), zero)
            rows = g.windows(quantised, taps, zero)
            x = g.integer_matmul(rows, zero, g.constant(np.float32(scale * step) * gain), matrix, weight_type)
        x = g.op("Add", x, g.constant((bias * gain + shift).astype(np.float32)))
        if number < 4:
            x = g.op("Tanh", x)
    g.op("Add", x, "mel_before", out="mel")
    g.save(path, [floats("mel_before", 1, "T", MEL_BANDS)], [floats("mel", 1, "T", MEL_BANDS)])
