"""Reading .tflite files and writing ONNX graphs, on small models made by hand."""

from pathlib import Path

import flatbuffers
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
import tflite
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from server.engines.base import EngineError
from server.engines.embedded.hibari_graph import UnexpectedModelError, write_english_graph
from server.engines.embedded.model import Model
from server.engines.embedded.onnx_graph import WEIGHT_TYPES, OnnxGraph, WeightType, floats
from server.engines.embedded.tflite_reader import TfliteError, TfliteFile

_WEIGHT = np.array([[1, -2, 3], [4, 5, -6]], np.int8)
_BIAS = np.array([0.5, -1.5], np.float32)


def _tflite_model(weight: npt.NDArray[np.int8] = _WEIGHT, scales: tuple[float, ...] = (0.25,)) -> bytes:
    """A graph of two operators: FULLY_CONNECTED with an int8 weight, then ADD of a float bias."""
    b = flatbuffers.Builder(1024)

    def ints(values: list[int]) -> int:
        return int(b.CreateNumpyVector(np.array(values, np.int32)))

    def offsets(values: list[int]) -> int:
        b.StartVector(4, len(values), 4)
        for value in reversed(values):
            b.PrependUOffsetTRelative(value)
        return int(b.EndVector())

    def buffer(data: bytes) -> int:
        vector = b.CreateByteVector(data) if data else None
        tflite.BufferStart(b)
        if vector is not None:
            tflite.BufferAddData(b, vector)
        return int(tflite.BufferEnd(b))

    def tensor(name: str, shape: list[int], kind: int, buffer_number: int, scales: tuple[float, ...] = ()) -> int:
        label, dims = b.CreateString(name), ints(shape)
        quantization = None
        if scales:
            scale, zero = b.CreateNumpyVector(np.array(scales, np.float32)), b.CreateNumpyVector(np.zeros(1, np.int64))
            tflite.QuantizationParametersStart(b)
            tflite.QuantizationParametersAddScale(b, scale)
            tflite.QuantizationParametersAddZeroPoint(b, zero)
            quantization = tflite.QuantizationParametersEnd(b)
        tflite.TensorStart(b)
        tflite.TensorAddName(b, label)
        tflite.TensorAddShape(b, dims)
        tflite.TensorAddType(b, kind)
        tflite.TensorAddBuffer(b, buffer_number)
        if quantization is not None:
            tflite.TensorAddQuantization(b, quantization)
        return int(tflite.TensorEnd(b))

    def operator(code: int, inputs: list[int], outputs: list[int]) -> int:
        read, written = ints(inputs), ints(outputs)
        tflite.OperatorStart(b)
        tflite.OperatorAddOpcodeIndex(b, code)
        tflite.OperatorAddInputs(b, read)
        tflite.OperatorAddOutputs(b, written)
        return int(tflite.OperatorEnd(b))

    def opcode(builtin: int) -> int:
        tflite.OperatorCodeStart(b)
        tflite.OperatorCodeAddDeprecatedBuiltinCode(b, builtin)
        return int(tflite.OperatorCodeEnd(b))

    buffers = offsets([buffer(b""), buffer(weight.tobytes()), buffer(_BIAS.tobytes())])
    tensors = offsets(
        [
            tensor("input", [1, 3], tflite.TensorType.FLOAT32, 0),
            tensor("net/dense/MatMul", [2, 3], tflite.TensorType.INT8, 1, scales),
            tensor("product", [1, 2], tflite.TensorType.FLOAT32, 0),
            tensor("net/dense/bias", [2], tflite.TensorType.FLOAT32, 2),
            tensor("output", [1, 2], tflite.TensorType.FLOAT32, 0),
        ]
    )
    operators = offsets([operator(0, [0, 1], [2]), operator(1, [2, 3], [4])])
    tflite.SubGraphStart(b)
    tflite.SubGraphAddTensors(b, tensors)
    tflite.SubGraphAddOperators(b, operators)
    graphs = offsets([tflite.SubGraphEnd(b)])
    codes = offsets([opcode(tflite.BuiltinOperator.FULLY_CONNECTED), opcode(tflite.BuiltinOperator.ADD)])
    tflite.ModelStart(b)
    tflite.ModelAddVersion(b, 3)
    tflite.ModelAddOperatorCodes(b, codes)
    tflite.ModelAddSubgraphs(b, graphs)
    tflite.ModelAddBuffers(b, buffers)
    b.Finish(tflite.ModelEnd(b), b"TFL3")
    return bytes(b.Output())


def test_constants_operators_and_biases_are_read() -> None:
    file = TfliteFile(_tflite_model())
    assert [(o.name, o.inputs, o.outputs) for o in file.operators] == [
        ("FULLY_CONNECTED", (0, 1), (2,)),
        ("ADD", (2, 3), (4,)),
    ]
    weight = file.named("dense/MatMul", 2)
    assert np.array_equal(weight.stored, _WEIGHT)
    assert np.array_equal(weight.real(), _WEIGHT * np.float32(0.25))
    bias = file.bias_after(file.operators[0], steps=1)
    assert bias is not None
    assert np.array_equal(bias.real(), _BIAS)


def test_files_that_are_not_as_expected_are_refused() -> None:
    with pytest.raises(TfliteError, match="identifier"):
        TfliteFile(b"\0" * 64)
    with pytest.raises(TfliteError, match="its shape"):
        TfliteFile(_tflite_model(weight=_WEIGHT[:1]))
    with pytest.raises(TfliteError, match="per channel"):
        TfliteFile(_tflite_model(scales=(0.25, 0.5)))
    with pytest.raises(TfliteError, match="no tensor named 'absent'"):
        TfliteFile(_tflite_model()).named("absent")


def _run(path: Path, **inputs: npt.NDArray[np.generic]) -> list[npt.NDArray[np.float32]]:
    outputs: list[npt.NDArray[np.float32]] = ort.InferenceSession(str(path)).run(None, inputs)
    return outputs


@pytest.mark.parametrize("weight_type", WEIGHT_TYPES)
def test_integer_products_of_windows_equal_a_convolution(tmp_path: Path, weight_type: WeightType) -> None:
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (1, 9, 4)).astype(np.float32)
    weights = rng.integers(-127, 128, (3 * 4, 5)).astype(np.int8)
    g = OnnxGraph("test")
    zero = g.constant(128, np.uint8)
    quantised = g.op("QuantizeLinear", "x", g.constant(1 / 127, np.float32), zero)
    scale = g.constant(1 / 127, np.float32)
    y = g.integer_matmul(g.windows(quantised, 3, zero), zero, scale, weights, weight_type)
    g.op("Identity", y, out="y")
    g.save(tmp_path / "g.onnx", [floats("x", 1, "T", 4)], [floats("y", 1, "T", 5)])

    stored = np.pad(np.rint(x[0] * 127), ((1, 1), (0, 0)))
    expected = sum(stored[tap : tap + 9] @ weights[tap * 4 : tap * 4 + 4] for tap in range(3)) / 127
    assert np.allclose(_run(tmp_path / "g.onnx", x=x)[0][0], expected, atol=1e-3)


def _durations_model(path: Path) -> None:
    """The part of the English model that the converter looks for, by the same structure."""
    nodes = [
        helper.make_node("Cast", ["ids"], ["x"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "tenth"], ["raw"]),
        helper.make_node("Div", ["raw", "speed"], ["divided"]),
        helper.make_node("Round", ["divided"], ["rounded"]),
        helper.make_node("Clip", ["rounded", "one"], ["clipped"]),
        helper.make_node("Cast", ["clipped"], ["steps"], to=TensorProto.INT64),
        helper.make_node("CumSum", ["steps", "axis"], ["ends"]),
        helper.make_node("ReduceSum", ["steps"], ["f0"]),
    ]
    constants = [
        numpy_helper.from_array(np.array(0.1, np.float32), "tenth"),
        numpy_helper.from_array(np.array(1, np.float32), "one"),
        numpy_helper.from_array(np.array(0, np.int64), "axis"),
    ]
    inputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["L"]),
        helper.make_tensor_value_info("speed", TensorProto.FLOAT, [1]),
    ]
    outputs = [
        helper.make_tensor_value_info("ends", TensorProto.INT64, ["L"]),
        helper.make_tensor_value_info("f0", TensorProto.INT64, [1]),
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


@pytest.fixture(scope="module")
def english_graph(tmp_path_factory: pytest.TempPathFactory) -> ort.InferenceSession:
    folder = tmp_path_factory.mktemp("graph")
    _durations_model(folder / "source.onnx")
    write_english_graph(folder / "source.onnx", folder / "built.onnx")
    return ort.InferenceSession(str(folder / "built.onnx"))


@settings(max_examples=50)
@given(st.lists(st.integers(10, 90), min_size=1, max_size=60), st.floats(0.5, 2.0))
def test_english_durations_are_an_output_and_follow_the_speed(
    english_graph: ort.InferenceSession, tenths: list[int], speed: float
) -> None:
    inputs = {"ids": np.array(tenths, np.int64), "speed": np.array([speed], np.float32)}
    ends, total, durations = english_graph.run(None, inputs)
    assert np.array_equal(np.cumsum(durations), ends)
    assert durations.sum() == total[0]
    assert durations.min() >= 1
    exact = np.array(tenths) / 10 / np.float32(speed)
    if exact.min() >= 1:  # nothing was lifted to one step: the sum never strays by more than a rounding
        assert abs(durations.sum() - exact.sum()) <= 0.51


def test_a_model_built_otherwise_is_refused(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(tmp_path / "m"))
    with pytest.raises(UnexpectedModelError, match="0 tensors look like phoneme durations"):
        write_english_graph(tmp_path / "m", tmp_path / "out")


def test_a_model_that_cannot_be_loaded_or_run_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    with pytest.raises(EngineError, match=r"broken\.onnx cannot be loaded") as raised:
        Model(tmp_path / "broken.onnx")
    assert "\n" not in str(raised.value)
    _durations_model(tmp_path / "durations.onnx")
    with pytest.raises(EngineError, match=r"durations\.onnx failed") as raised:
        Model(tmp_path / "durations.onnx").run({"ids": np.ones((2, 2), np.int64), "speed": np.ones(1, np.float32)})
    assert "\n" not in str(raised.value)
