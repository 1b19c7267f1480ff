"""Read constants and the operator list of a .tflite file through its flatbuffer schema; nothing is executed."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import tflite

Array = npt.NDArray[Any]

_DTYPES: dict[int, type[np.generic]] = {
    tflite.TensorType.FLOAT32: np.float32,
    tflite.TensorType.INT32: np.int32,
    tflite.TensorType.INT64: np.int64,
    tflite.TensorType.INT8: np.int8,
    tflite.TensorType.UINT8: np.uint8,
    tflite.TensorType.BOOL: np.bool_,
}
_OPERATOR_NAMES = {v: k for k, v in vars(tflite.BuiltinOperator).items() if isinstance(v, int)}


class TfliteError(ValueError):
    """The file is not what was expected of it."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A stored tensor. `scale` is set for int8 tensors: real value = stored * scale (zero point 0)."""

    name: str
    stored: Array
    scale: float | None

    def real(self) -> npt.NDArray[np.float32]:
        """The values that are stored, as float32."""
        return self.stored.astype(np.float32) * np.float32(1.0 if self.scale is None else self.scale)


@dataclass(frozen=True, slots=True)
class Operator:
    """One node: builtin name ("CONV_2D"...), and tensor numbers of its inputs and outputs."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class TfliteFile:
    """The first subgraph of a .tflite file, as constants (by tensor number) and operators in execution order."""

    def __init__(self, data: bytes) -> None:
        """Read a whole file's bytes. Raises `TfliteError`."""
        if data[4:8] != b"TFL3":
            raise TfliteError("not a .tflite file (its identifier is missing)")
        self._model = tflite.Model.GetRootAs(data, 0)
        if self._model.SubgraphsLength() < 1:
            raise TfliteError("the .tflite file holds no graph")
        self._graph = self._model.Subgraphs(0)
        self.operators = tuple(self._read_operators())
        self.constants = dict(self._read_constants())

    def _read_operators(self) -> Iterator[Operator]:
        for index in range(self._graph.OperatorsLength()):
            node = self._graph.Operators(index)
            code = self._model.OperatorCodes(node.OpcodeIndex())
            # Files written before schema 3a keep the code in the deprecated byte; the larger of the two is valid.
            number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
            name = _OPERATOR_NAMES.get(number, f"OPERATOR_{number}")
            yield Operator(name, tuple(node.InputsAsNumpy().tolist()), tuple(node.OutputsAsNumpy().tolist()))

    def _read_constants(self) -> Iterator[tuple[int, Constant]]:
        for index in range(self._graph.TensorsLength()):
            tensor = self._graph.Tensors(index)
            buffer = self._model.Buffers(tensor.Buffer())
            dtype = _DTYPES.get(tensor.Type())
            if dtype is None or buffer is None or buffer.DataLength() == 0:
                continue
            shape = tuple(tensor.Shape(i) for i in range(tensor.ShapeLength()))
            raw = buffer.DataAsNumpy().view(np.uint8).tobytes()
            if len(raw) != int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize:
                raise TfliteError(f"tensor {index} has {len(raw)} bytes, not what its shape {shape} needs")
            name = tensor.Name().decode("utf-8") if tensor.Name() else ""
            yield index, Constant(name, np.frombuffer(raw, dtype).reshape(shape), self._scale(tensor, index))

    @staticmethod
    def _scale(tensor: Any, index: int) -> float | None:
        quantization = tensor.Quantization()
        if quantization is None or quantization.ScaleLength() == 0:
            return None
        if quantization.ScaleLength() != 1 or (quantization.ZeroPointLength() and quantization.ZeroPoint(0) != 0):
            raise TfliteError(f"tensor {index} is quantised per channel or with an offset, which is not expected here")
        return float(quantization.Scale(0))

    @cached_property
    def consumers(self) -> dict[int, list[Operator]]:
        """Which operators read a tensor."""
        found: dict[int, list[Operator]] = {}
        for operator in self.operators:
            for tensor in operator.inputs:
                found.setdefault(tensor, []).append(operator)
        return found

    def named(self, name: str, dimensions: int | None = None) -> Constant:
        """The constant whose name ends in `name` (the converter adds "1" to a name it has used already)."""
        for ending in (name, f"{name}1"):
            for constant in self.constants.values():
                if constant.name.endswith(ending) and dimensions in (None, constant.stored.ndim):
                    return constant
        raise TfliteError(f"no tensor named {name!r}")

    def bias_after(self, operator: Operator, steps: int) -> Constant | None:
        """The constant added to an operator's output within `steps` single-consumer operators, if any."""
        tensor = operator.outputs[0]
        for _ in range(steps):
            readers = self.consumers.get(tensor, [])
            if not readers:
                return None
            if readers[0].name == "ADD":
                return next((self.constants[i] for i in readers[0].inputs if i in self.constants), None)
            tensor = readers[0].outputs[0]
        return None
