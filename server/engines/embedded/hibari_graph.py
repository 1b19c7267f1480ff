"""Write the English model with its inner durations as an output, so that word times are exact."""

from pathlib import Path

import onnx
from onnx import TensorProto, helper

DURATIONS = "durations"


class UnexpectedModelError(ValueError):
    """The installed model is not built the way this code knows."""


def write_graph_with_durations(source: Path, destination: Path) -> None:
    """Add the output `durations` `[L]`: how many decoder steps of 25 ms each phoneme id takes.

    The tensor is found by structure, not by name: the integer cast that both the running sum over phonemes and the
    total number of steps are computed from.
    """
    model = onnx.load(str(source))
    summed = {node.input[0] for node in model.graph.node if node.op_type == "CumSum"}
    totalled = {node.input[0] for node in model.graph.node if node.op_type == "ReduceSum"}
    casts = {node.output[0] for node in model.graph.node if node.op_type == "Cast"}
    found = summed & totalled & casts
    if len(found) != 1:
        raise UnexpectedModelError(f"{source.name}: {len(found)} tensors look like phoneme durations, one was expected")
    copy = helper.make_node("Identity", [found.pop()], [DURATIONS], name="expose_durations")
    model.graph.node.append(copy)
    model.graph.output.append(helper.make_tensor_value_info(DURATIONS, TensorProto.INT64, ["L"]))
    onnx.checker.check_model(model)
    destination.write_bytes(model.SerializeToString())
