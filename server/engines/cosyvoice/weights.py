"""Weights into modules: read without executing anything, checked byte by byte and key by key, and folded."""

import errno
import pickle
import warnings
import zipfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from server.engines.cosyvoice.sections import ModelError, one_line

__all__ = ["ModelError", "check_shapes", "fold_weight_norm", "load_checked", "load_state", "uninitialised"]

_PART: Final = 1 << 20  # bytes read at a time
_SHOWN: Final = 3  # keys that a message names
_NORMED: Final = (  # how a weight that is kept as (length, direction) is called: newer and older torch
    (".parametrizations.weight.original0", ".parametrizations.weight.original1"),
    (".weight_g", ".weight_v"),
)
_TRAINING: Final = ("epoch", "step")  # what a training run keeps beside its weights


def load_state(path: Path, *, sums: bool = True) -> dict[str, Tensor]:
    """The tensors of a checkpoint, on the CPU and mapped from the file where it allows that. Raises ModelError, also
    where a byte is not as it was written, if the file tells (see `_check_records`); without `sums` the contents of
    tensors are not read.
    """
    try:
        found = _read(path, sums=sums)
    except FileNotFoundError:
        raise ModelError(f"{path}: is missing") from None
    except OSError as problem:
        if problem.errno == errno.EINVAL:  # the archive's reader looks for its end before the file's beginning
            raise ModelError(f"{path}: is no checkpoint of torch, or truncated") from None
        raise ModelError(f"{path}: cannot be read: {problem.strerror or one_line(problem)}") from None
    except pickle.UnpicklingError as problem:
        if "Unsupported global" in str(problem) or "Unsupported class" in str(problem):
            raise ModelError(f"{path}: must hold tensors alone, but also holds objects, which are not loaded") from None
        raise ModelError(f"{path}: is no checkpoint of torch, or damaged") from None
    except (RuntimeError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError, UnicodeError):
        # What torch raises for bytes that it did not write; its texts tell a user nothing.
        raise ModelError(f"{path}: is no checkpoint of torch, or truncated") from None
    if isinstance(found, Mapping):
        state = {key: value for key, value in found.items() if key not in _TRAINING}
        if state and all(isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items()):
            for key, value in state.items():
                if value.layout != torch.strided or value.is_quantized or value.device.type != "cpu":
                    raise ModelError(f"{path}: {key}: must be a plain tensor, is {_unusual(value)}")
            return state
    raise ModelError(f"{path}: must be a dictionary of tensors by name, is {_kind(found)}")


def _read(path: Path, *, sums: bool) -> Any:
    with path.open("rb") as file:
        zipped = file.read(2) == b"PK"
    if not zipped and path.stat().st_size < 2:
        raise EOFError
    with warnings.catch_warnings(action="ignore"):  # about files that torch did not write, which are refused anyway
        # Files of torch before 1.6 are no archives, and cannot be mapped.
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    if zipped:
        _check_records(path, sums=sums)
    return found


def _check_records(path: Path, *, sums: bool) -> None:
    """That each tensor's bytes have the CRC-32 that was written with them: 0.3 to 0.7 s of a processor a GB, and the
    reading, after which the file is in memory for whoever copies the weights. Files without such sums are taken as they
    are: torch.serialization.set_crc32_options(False) leaves all of them zero. Raises ModelError.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
            if any(each.compress_type != zipfile.ZIP_STORED for each in records):
                raise ModelError(f"{path}: must hold its tensors as torch wrote them, but was compressed again")
            if sum(each.file_size for each in records) > path.stat().st_size:
                raise zipfile.BadZipFile
            if not sums or not any(each.CRC for each in records):
                return
            for each in records:
                _check_record(archive, each, path)
    except (zipfile.BadZipFile, NotImplementedError, EOFError):
        raise ModelError(f"{path}: is damaged: what it holds is not where its directory says") from None


def _check_record(archive: zipfile.ZipFile, record: zipfile.ZipInfo, path: Path) -> None:
    with archive.open(record) as stream:  # it knows the sum, and compares at the end
        try:
            while stream.read(_PART):
                pass
        except zipfile.BadZipFile:
            name = record.filename.partition("/")[2][:80]
            raise ModelError(
                f"{path}: is damaged: its record {name} is not what was written (CRC-32); get the file again"
            ) from None


def _unusual(value: Tensor) -> str:
    if value.is_quantized:
        return f"quantised ({value.dtype})"
    return f"on {value.device}" if value.layout == torch.strided else f"sparse ({value.layout})"


def _kind(found: object) -> str:
    if isinstance(found, Mapping):
        strange = next((key for key, value in found.items() if not isinstance(value, Tensor)), None)
        return "an empty one" if not found else f"one that has {str(strange)[:50]!r}, which is none"
    return f"a {type(found).__name__}"


def fold_weight_norm(state: Mapping[str, Tensor], file: str = "checkpoint") -> dict[str, Tensor]:
    """Each weight that is kept as a length and a direction per output (dimension 0) as one plain `X.weight`; the rest
    as it is. Raises ModelError where a part lacks its other one.
    """
    folded = dict(state)
    for length_end, direction_end in _NORMED:
        for ends, other in ((length_end, direction_end), (direction_end, length_end)):
            for key in [each for each in folded if each.endswith(ends)]:
                if key[: -len(ends)] + other not in folded:
                    raise ModelError(f"{file}: has {key} without {key[: -len(ends)] + other}")
        for key in [each for each in folded if each.endswith(length_end)]:
            stem = key[: -len(length_end)]
            length, direction = folded.pop(key), folded.pop(stem + direction_end)
            if length.shape != (direction.shape[0], *(1,) * (direction.dim() - 1)):
                raise ModelError(f"{file}: {key}: {list(length.shape)} does not fit {list(direction.shape)}")
            folded[stem + ".weight"] = _scaled(length, direction)
    return folded


def _scaled(length: Tensor, direction: Tensor) -> Tensor:
    # The very function that torch's weight norm calls: the vocoder multiplies the smallest rounding.
    scaled: Tensor = torch._weight_norm(direction.float(), length.float(), 0)
    return scaled.to(direction.dtype)


def check_shapes(
    module: nn.Module, shapes: Mapping[str, torch.Size], file: str, ignored: Callable[[str], bool] | None = None
) -> None:
    """That exactly the module's tensors are there, less the ones that may be `ignored`. Raises ModelError that names
    the file, how many keys are wrong and the first of them.
    """
    wanted = {key: value.shape for key, value in module.state_dict().items()}
    missing = [key for key in wanted if key not in shapes]
    surplus = [key for key in shapes if key not in wanted and not (ignored and ignored(key))]
    different = [
        f"{key} {list(shapes[key])} for {list(shape)}"
        for key, shape in wanted.items()
        if key in shapes and shapes[key] != shape
    ]
    problems = [
        f"{len(keys)} {what} ({_first(keys)})"
        for keys, what in ((missing, "missing"), (surplus, "unknown"), (different, "of another shape"))
        if keys
    ]
    if problems:
        raise ModelError(f"{file}: does not fit the model of {len(wanted)} tensors: {'; '.join(problems)}")


def load_checked(
    module: nn.Module,
    state: Mapping[str, Tensor],
    file: str,
    ignored: Callable[[str], bool] | None = None,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Put copies of the tensors into the module, as parameters of `dtype` on `device` (buffers keep the type that the
    module gave them). The module may have been made under `uninitialised()`. Raises ModelError as `check_shapes`, and
    where a tensor holds numbers that are none.
    """
    check_shapes(module, {key: value.shape for key, value in state.items()}, file, ignored)
    own = module.state_dict()
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    ready: dict[str, Tensor] = {}
    for key, here in own.items():
        value = state[key]
        if value.is_floating_point() != here.is_floating_point():
            raise ModelError(f"{file}: {key}: must be {here.dtype}, is {value.dtype}")
        if value.is_floating_point() and not bool(torch.isfinite(value.sum(dtype=torch.float64))):
            raise ModelError(f"{file}: {key}: holds numbers that are not finite; the file may be damaged")
        wanted = dtype if key in parameters and here.is_floating_point() else here.dtype
        # A copy: whoever replaces or shortens the file later must not disturb the running server.
        ready[key] = value.to(device=device, dtype=wanted, copy=True)
    module.load_state_dict(ready, strict=True, assign=True)
    module.requires_grad_(False)
    module.eval()
    if device is not None:
        module.to(device=device)  # buffers that no checkpoint holds


class uninitialised(TorchFunctionMode):  # noqa: N801  # used as a function: `with uninitialised():`
    """Modules that are made within get no random first values: a checkpoint is loaded over them at once."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Skips what `torch.nn.init` offers."""
        named = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return named["tensor"] if "tensor" in named else args[0]
        return func(*args, **named)


def _first(keys: Collection[str]) -> str:
    names = list(keys)[:_SHOWN]
    return ", ".join(names) + (", ..." if len(keys) > _SHOWN else "")
