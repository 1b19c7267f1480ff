"""A small builder for ONNX graphs: constants, operators, and saving with a checked model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
WeightType = Literal["s8", "u8"]
"""How int8 weights are stored. Both give the same sums; `fingerprint` says why there are two."""

WEIGHT_TYPES: tuple[WeightType, ...] = ("s8", "u8")

OPSET = 17
IR_VERSION = 9


class OnnxGraph:
    """Nodes are appended in execution order; every method returns the name of the value it makes."""

    def __init__(self, name: str) -> None:
        """An empty graph called `name`."""
        self.name = name
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def constant(self, value: Any, dtype: npt.DTypeLike | None = None) -> str:
        """A stored array."""
        name = f"const_{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.array(value, dtype=dtype, order="C"), name))
        return name

    def ints(self, *values: int) -> str:
        """A stored list of int64, as shapes, axes and paddings are given."""
        return self.constant(values, np.int64)

    def op(self, kind: str, *inputs: str, out: str | None = None, **attributes: Any) -> str:
        """An operator with one output, called `out` if that is given."""
        return self.ops(kind, *inputs, outputs=[out] if out else 1, **attributes)[0]

    def ops(self, kind: str, *inputs: str, outputs: int | Sequence[str], **attributes: Any) -> list[str]:
        """An operator with several outputs: how many, or their names."""
        number = len(self._nodes)
        names = [f"{kind}_{number}_{i}" for i in range(outputs)] if isinstance(outputs, int) else list(outputs)
        self._nodes.append(helper.make_node(kind, list(inputs), names, name=f"node_{number}_{kind}", **attributes))
        return names

    def windows(self, x: str, taps: int, pad_value: str | None = None) -> str:
        """`[1, T, C]` -> `[1, T, taps * C]`: each row beside its neighbours, rows outside being `pad_value` (or 0)."""
        half = taps // 2
        pads = [x, self.ints(0, half, 0, 0, half, 0), *([pad_value] if pad_value else [])]
        padded = self.op("Pad", *pads)
        shifted = []
        for tap in range(taps):
            end = tap - (taps - 1)
            ends = self.ints(end if end else np.iinfo(np.int64).max)
            shifted.append(self.op("Slice", padded, self.ints(tap), ends, self.ints(1)))
        return self.op("Concat", *shifted, axis=2)

    def integer_matmul(self, x: str, x_zero: str, scale: str, weights: Array, weight_type: WeightType) -> str:
        """uint8 `x` times int8 `weights` `[K, N]`, as float32 after multiplying by `scale`."""
        if weight_type == "u8":
            stored = self.constant(weights.astype(np.int16) + 128, np.uint8)
            product = self.op("MatMulInteger", x, stored, x_zero, self.constant(128, np.uint8))
        else:
            product = self.op("MatMulInteger", x, self.constant(weights, np.int8), x_zero)
        return self.op("Mul", self.op("Cast", product, to=TensorProto.FLOAT), scale)

    def save(self, path: Path, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]) -> None:
        """Check the graph and write it. Raises `onnx.checker.ValidationError`, and OSError where it cannot write."""
        graph = helper.make_graph(self._nodes, self.name, inputs, outputs, self._constants)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="cosystream"
        )
        onnx.checker.check_model(model)
        path.write_bytes(model.SerializeToString())


def floats(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    """A float32 input or output; a dimension that varies has a name."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))


def integers(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    """An int64 input or output; a dimension that varies has a name."""
    return helper.make_tensor_value_info(name, TensorProto.INT64, list(shape))
