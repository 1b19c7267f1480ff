"""Learnt voices on the disk: whole or not there, their owner's alone, damaged ones left out, deleted ones gone."""

import asyncio
import errno
import json
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from server.settings import Settings
from server.voices import OwnVoice, TooManyVoices, VoicesFailed, VoiceStore, VoiceWatch, is_own
from server.voices.place import open_voices
from tests.support.voices import voice_fields


@pytest.fixture
def store(tmp_path: Path) -> VoiceStore:
    return VoiceStore(tmp_path / "state" / "voices", per_principal=3)


def add(store: VoiceStore, **fields: Any) -> OwnVoice:
    return store.add(**voice_fields(**fields))


def file_of(store: VoiceStore, voice: OwnVoice) -> Path:
    assert store.path is not None
    return store.path / f"{voice.id}.safetensors"


def test_what_was_added_is_there_for_its_owner_alone(store: VoiceStore) -> None:
    voice = add(store)
    assert is_own(voice.id)
    again = VoiceStore(store.path)  # another process
    assert again.read(voice.id) == b"\x00\xffdata"
    assert again.find(voice.id, "ann") == voice
    assert (again.of("ann", "tone"), again.of("ann", "other"), again.of("bob", "tone")) == ([voice], [], [])
    assert again.may_use("ann", voice.id)
    assert not again.may_use("bob", voice.id)
    assert not again.remove(voice.id, "bob")
    assert again.ids() == {voice.id}


def test_nobody_else_on_the_machine_can_read_it(store: VoiceStore) -> None:
    file = file_of(store, add(store))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_the_file_is_a_safetensors_file_with_text_and_consent(store: VoiceStore) -> None:
    whole = file_of(store, add(store, name="")).read_bytes()
    length = int.from_bytes(whole[:8], "little")
    head = json.loads(whole[8 : 8 + length])
    assert length % 8 == 0
    assert head["voice"] == {"dtype": "U8", "shape": [6], "data_offsets": [0, 6]}
    metadata = head["__metadata__"]
    assert all(isinstance(value, str) for value in metadata.values())
    assert (metadata["text"], metadata["consent"], metadata["owner"]) == ("你好", "true", "ann")
    assert metadata["name"] == metadata["id"]
    assert whole[8 + length :] == b"\x00\xffdata"


def test_the_safetensors_package_reads_it(store: VoiceStore) -> None:
    numpy_reader = pytest.importorskip("safetensors.numpy")
    found = numpy_reader.load_file(file_of(store, add(store)))
    assert found["voice"].tobytes() == b"\x00\xffdata"


def test_what_is_deleted_is_gone(store: VoiceStore) -> None:
    voice, other = add(store), add(store)
    assert store.remove(voice.id, "ann")
    assert not store.remove(voice.id, "ann")
    assert store.read(voice.id) is None
    assert not store.may_use("ann", voice.id)
    assert store.path is not None
    assert {path.name for path in store.path.iterdir()} == {"lock", f"{other.id}.safetensors"}


@pytest.mark.parametrize("voice", ["", "tone-low", "own-", "../own-0123456789abcdef", "own-0123456789ABCDEF", "own-\n"])
def test_other_ids_never_reach_the_disk(store: VoiceStore, voice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*_: object, **__: object) -> int:
        raise AssertionError("the disk was touched")

    monkeypatch.setattr(os, "open", touched)
    assert store.read(voice) is None
    assert store.find(voice, "ann") is None
    assert not store.remove(voice, "ann")


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def _lengthen(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"x")


def _flip(file: Path) -> None:
    whole = bytearray(file.read_bytes())
    whole[-1] ^= 1
    file.write_bytes(whole)


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _huge_head(file: Path) -> None:
    file.write_bytes(b"\xff" * 64)


def _no_json(file: Path) -> None:
    file.write_bytes((8).to_bytes(8, "little") + b"{" * 8)


def _other_format(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"cosystream-voice-1", b"cosystream-voice-2"))


def _other_type(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b'"owner":"ann"', b'"owner":12345'))


def _link(file: Path) -> None:
    target = file.with_name("target")
    file.rename(target)
    file.symlink_to(target)


def _pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(
    "damage",
    [_cut, _lengthen, _flip, _empty, _huge_head, _no_json, _other_format, _other_type, _link, _pipe, _folder],
    ids=lambda damage: damage.__name__,
)
def test_a_damaged_file_is_left_out_with_one_warning(store: VoiceStore, damage: Any) -> None:
    voice, whole = add(store), add(store)
    damage(file_of(store, voice))
    listed: list[OwnVoice] = []
    with capture_logs() as logs:
        for _ in range(3):
            assert store.read(voice.id) is None
            listed = store.of("ann", "tone")
    assert whole in listed
    assert (voice in listed) == (damage is _flip)  # only whoever reads all of it can see that
    (line,) = logs
    assert (line["log_level"], line["file"]) == ("warning", f"{voice.id}.safetensors")


def test_a_file_under_another_name_is_no_voice(store: VoiceStore) -> None:
    voice = add(store)
    file = file_of(store, voice)
    stolen = "own-0123456789abcdef"
    file.with_name(f"{stolen}.safetensors").write_bytes(file.read_bytes())
    assert store.find(stolen, "ann") is None
    assert [each.id for each in store.of("ann", "tone")] == [voice.id]


@pytest.mark.parametrize("call", ["fsync", "link"])
def test_a_full_disk_leaves_nothing_behind(store: VoiceStore, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = add(store)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(VoicesFailed, match="No space left") as failed:
        add(store)
    assert failed.value.full
    monkeypatch.undo()
    assert store.ids() == {before.id}
    assert store.path is not None
    assert not list(store.path.glob(".new-*"))


def test_the_bound_holds_for_many_at_once_and_for_each_alone(store: VoiceStore) -> None:
    results: list[bool] = []

    def try_one() -> None:
        try:
            add(VoiceStore(store.path, per_principal=3))
            results.append(True)
        except TooManyVoices:
            results.append(False)

    threads = [threading.Thread(target=try_one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(results) == 3
    with pytest.raises(TooManyVoices):
        store.check_room("ann")
    add(store, owner="bob")


def test_what_dead_writers_left_goes_and_what_is_being_written_stays(store: VoiceStore) -> None:
    store.open()
    assert store.path is not None
    old, young = store.path / ".new-old", store.path / ".new-young"
    old.touch()
    young.touch()
    os.utime(old, (time.time() - 7_200,) * 2)
    add(store)
    assert (old.exists(), young.exists()) == (False, True)


def test_without_a_folder_there_are_none() -> None:
    store = VoiceStore(None)
    store.open()
    assert (store.ids(), store.read("own-0123456789abcdef"), store.of("ann", "tone")) == (frozenset(), None, [])
    with pytest.raises(VoicesFailed):
        add(store)


def test_too_much_to_keep_is_refused(store: VoiceStore) -> None:
    for fields in ({"data": b""}, {"data": bytes(16 * 1024 * 1024 + 1)}, {"text": "你" * 30_000}):
        with pytest.raises(ValueError, match="a voice takes from 1"):
            add(store, **fields)
    assert not store.ids()


# ---- which folder ----


def test_the_folder_is_in_the_users_state_directory(tmp_path: Path) -> None:
    store = open_voices(Settings(), {"XDG_STATE_HOME": str(tmp_path)})
    assert store.path == tmp_path / "cosystream" / "voices"
    assert not store.path.exists()  # before the first voice


def test_off_and_no_text_at_rest(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    assert open_voices(Settings(voices="off"), environ).path is None
    assert open_voices(Settings(no_text_at_rest=True), environ).path is None


def test_a_folder_that_cannot_be_made_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(VoicesFailed, match=r"^voices: .*file/v cannot be written: Not a directory$"):
        open_voices(Settings(voices=str(tmp_path / "file" / "v")))


# ---- who keeps something hears of it ----


async def test_a_voice_that_another_process_deletes_is_told_once(store: VoiceStore) -> None:
    kept, gone = add(store), add(store)
    told: list[str] = []
    watch = VoiceWatch(store, told.append, every_s=0.01)
    try:
        late = add(store)
        await asyncio.sleep(0.05)
        assert told == []
        other = VoiceStore(store.path)
        other.remove(gone.id, "ann")
        other.remove(late.id, "ann")
        async with asyncio.timeout(5):
            while len(told) < 2:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert sorted(told) == sorted([gone.id, late.id])
    finally:
        watch.close()
    store.remove(kept.id, "ann")
    await asyncio.sleep(0.05)
    assert len(told) == 2  # it looks no more


async def test_a_voice_that_came_and_went_between_two_looks_is_told_where_it_was_used(store: VoiceStore) -> None:
    told: list[str] = []
    watch = VoiceWatch(store, told.append, every_s=60)
    used, unused = add(store), add(store)
    assert store.read(used.id)
    other = VoiceStore(store.path)
    other.remove(used.id, "ann")
    other.remove(unused.id, "ann")
    watch.look()
    watch.close()
    assert used.id in told


async def test_what_one_listener_does_wrong_does_not_keep_the_next_voice(store: VoiceStore) -> None:
    voices = [add(store), add(store)]
    told: list[str] = []

    def fails(voice: str) -> None:
        told.append(voice)
        raise RuntimeError("on purpose")

    watch = VoiceWatch(store, fails, every_s=60)
    for voice in voices:
        store.remove(voice.id, "ann")
    watch.look()
    watch.close()
    assert sorted(told) == sorted(voice.id for voice in voices)
