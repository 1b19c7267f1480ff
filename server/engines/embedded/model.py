"""How models are opened and run: one thread a call, no spinning, so that a pool of callers shares the cores fairly."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from server.engines.base import EngineError

_FAILURES: tuple[type[Exception], ...] = (
    ort_errors.Fail,
    ort_errors.InvalidArgument,
    ort_errors.InvalidGraph,
    ort_errors.InvalidProtobuf,
    ort_errors.NoSuchFile,
    ort_errors.NotImplemented,
    ort_errors.RuntimeException,
)
"""What onnxruntime raises; its exceptions share no base of their own."""


class Model:
    """An ONNX model that several threads may run at once. Raises `EngineError`, in one line, when it cannot."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        """Load `path`, to be run with so many threads a call."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._name = path.name
        try:
            self.session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except _FAILURES as error:
            raise EngineError(f"model {path} cannot be loaded: {_first_line(error)}") from error

    def run(self, inputs: Mapping[str, npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """All outputs, in the model's order."""
        try:
            outputs: list[npt.NDArray[Any]] = self.session.run(None, inputs)
        except _FAILURES as error:
            raise EngineError(f"model {self._name} failed: {_first_line(error)}") from error
        return outputs


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
