"""How models are opened: one thread a call, no spinning, so that a pool of callers shares the cores fairly."""

from pathlib import Path

import onnxruntime as ort


def open_session(path: Path, threads: int = 1) -> ort.InferenceSession:
    """A session that may be run from several threads at once."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
