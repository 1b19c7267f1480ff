"""How a run begins: with a session, new or an earlier run's, and with what a state says of the file."""

import argparse
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from client.cli.caption_file import CaptionMark, is_special, kept_captions, partial_captions
from client.cli.ledger import Place
from client.cli.outputs import PLAY_LEAD_MS
from client.cli.plan import Plan
from client.cli.state import ARGUMENTS, Source, State, read_state, remove_state, state_name, write_state
from client.connection import connect
from client.errors import UsageError
from client.saved import SavedSession, Sent
from client.shell import Session
from client.sinks import FileSink, kept_audio, partial_name
from client.utterance import Utterance

ANEW: Final = "begin anew, without --resume-from"


@asynccontextmanager
async def open_session(
    args: argparse.Namespace,
    plan: Plan,
    saved: SavedSession | None,
    notice: Callable[[str], None],
    *,
    restart: bool,
) -> AsyncIterator[tuple[Session, Utterance | None, Sent | None]]:
    """A new session; or the saved one, its utterance and what the server has of that. `restart` as of `connect`."""
    connection = connect(
        args.url,
        voice=args.voice,
        language=args.language,
        speed=args.speed,
        pitch=args.pitch,
        volume=args.volume,
        format=plan.format,
        sample_rate=args.sample_rate,
        bitrate=args.bitrate,
        mode=plan.mode,
        max_lead_ms=PLAY_LEAD_MS if plan.play else None,
        api_key=args.api_key,
        tls_ca=args.tls_ca,
        decode=plan.container != "ogg",
        busy_wait_s=args.busy_wait,
        resume=not args.no_resume,
        on_notice=notice,
        restart=restart,
        confirm=plan.keeps_state,
    )
    if saved is None:
        async with connection as session:
            yield session, None, None
        return

    def note(renewed: SavedSession) -> None:
        assert plan.state is not None
        assert plan.output is not None
        write_state(state_name(plan.output), replace(plan.state, session=renewed), sync=False)

    session, utterance, sent = await connection.come_back(saved, note)
    try:
        yield session, utterance, sent
    finally:
        await session.close()


def usable(args: argparse.Namespace, plan: Plan) -> tuple[Place, CaptionMark | None, SavedSession | None]:
    """What of the file and the state is of use: where the text goes on, captions too, and the session, if it may live.

    Raises OutputFailed, UsageError.
    """
    state = plan.state
    assert state is not None
    assert plan.output is not None
    kept = kept_audio(plan.output, state.container)
    held = -1 if kept is None else kept.samples
    if max(0, held) < state.synced.samples:
        raise UsageError(f"{_what_is_wrong(plan.output, partial_name(plan.output))}: put it back, or {ANEW}")
    captions = plan.captions if plan.captions is not None and not is_special(plan.captions) else None
    written = kept_captions(captions) if captions is not None else None
    lost = written is None and held >= state.whole.samples and not _has(written, state.caption_mark)  # by no power cut
    if captions is not None and (lost or not _has(written, state.synced_mark)):
        raise UsageError(f"{_what_is_wrong(captions, partial_captions(captions))}: put it back, or {ANEW}")
    if held < state.whole.samples or (captions is not None and not _has(written, state.caption_mark)):
        return state.synced, state.synced_mark, None  # the machine lost power: what was synced is there
    lives = held >= state.samples and state.url == args.url
    return state.whole, state.caption_mark, state.session if lives else None


def _has(written: int | None, mark: CaptionMark | None) -> bool:
    """Whether a file of captions with so many bytes (None: there is none) can be gone on with from there."""
    return mark is None or (written or 0) >= mark.bytes


def _what_is_wrong(path: Path, partial: Path) -> str:
    """Why nothing goes on with this file: Ctrl-C leaves the name that the user gave, a kill the other one."""
    for candidate in (partial, path):
        if candidate.is_file():
            return f"{candidate} is shorter than its state says"
    return f"{path} is missing (and there is no {partial.name})"


def lost_file(plan: Plan) -> Path | None:
    """Which file of a run that ended is not there any more, so that it cannot be gone on with."""
    files: list[tuple[Path, Path]] = []
    if plan.output is not None:
        files.append((partial_name(plan.output), plan.output))
    if plan.captions is not None and not is_special(plan.captions):
        files.append((partial_captions(plan.captions), plan.captions))
    return next((partial for partial, whole in files if not partial.exists() and not whole.exists()), None)


def check_unchanged(plan: Plan) -> None:
    """The file is ours now: nobody went on with it between our reading its state and that. Raises UsageError."""
    assert plan.output is not None
    path = state_name(plan.output)
    if read_state(path) != plan.state:
        raise UsageError(f"another run has gone on from {path} meanwhile: run this again")


def first_state(args: argparse.Namespace, plan: Plan, source: Source, encoding: str | None, session: Session) -> State:
    """What is known when the session is open."""
    if plan.state is not None:
        return replace(plan.state, url=args.url, session=None)
    arguments: dict[str, Any] = {name: getattr(args, name) for name in ARGUMENTS}
    arguments["voice"] = session.config.get("voice") or arguments["voice"]  # the server's default may change
    arguments["format"] = plan.format
    captions = str(plan.captions.absolute()) if plan.captions is not None else None
    return State(source, args.url, plan.container, arguments, encoding=encoding, captions=captions)


async def give_name(plan: Plan, state: State) -> FileSink:
    """The run before this one had all of it, and was ended before it could say so. Raises OutputFailed."""
    assert plan.output is not None
    file = FileSink(plan.output, state.container, at_sample=state.samples or None)
    if file.partial.exists():
        await file.begin(state.arguments["sample_rate"], 0)
        await file.finish(0)
    remove_state(state_name(plan.output))
    return file
