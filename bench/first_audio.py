"""First audio at the client's socket, from the character or flush that makes the first clause's cut certain.

One session, warm, over loopback; the server has a process of its own. The engine alone renders the first chunk of the
same clauses in this process, in turns with the server, so that the difference is what everything around it costs.
"""

import asyncio
import sys

from bench._common import Report, arguments, run, server_process
from bench._load_engine import first_chunk_ms
from bench._session import Session, deciding_position, open_session
from protocol import client_messages as c
from server.engines import registry
from server.engines.base import Engine, Segment
from server.text.normaliser import normalise
from server.text.segmenter import Segmenter

ENDED_BY_A_MARK = (
    "你好，", "早上好，", "没问题，", "当然可以，", "今天下午，", "据我所知，", "谢谢你的提问，", "这是一个好主意，",
    "让我想一想再说，", "昨天我去了图书馆，", "我们先来看第一点，", "如果明天不下雨的话，", "总共花了25元，",
    "请稍等一下，", "关于你说的那件事，", "北京的秋天非常漂亮，", "他在2019年毕业，", "从科学的角度来看，",
    "这个问题比较复杂，", "别着急！", "真的吗？", "原来是这样。", "Hello,", "Good morning,", "Well,", "Of course,",
    "No problem,", "In my opinion,", "Let me think,", "First of all,", "Yes, I can,", "Thank you!", "Really?",
    "At 9 o'clock,", "For example,", "In the end,", "To be honest,", "As you know,", "On the way,", "Last summer,",
    "Around 20%,", "My friend,", "Good question!", "After lunch,",
)  # fmt: skip
ENDED_BY_A_FLUSH = (
    "好的没问题", "我马上就来", "今天天气真不错", "欢迎光临本店", "正在为您查询", "明天上午十点见", "请问您贵姓",
    "这是您的订单", "Sounds good", "I am on my way", "See you at noon", "Here it is", "Your order", "One moment",
    "Nice to see you", "Not yet",
)  # fmt: skip
WARM_UP = ("我们开始吧，", "Are you ready?")
MAX_CHARACTERS = 15
SETTLE_S = 0.03  # between runs, so that no run meets the work of the one before


async def first_audio_ms(session: Session, text: str, flush: bool) -> float:
    """From sending what decides to having the first audio frame."""
    position = deciding_position(text)
    assert (position is None) == flush, text
    hearing = asyncio.ensure_future(session.hear())
    await session.start()
    if position is None:
        await session.send(c.Text, text=text)
        await asyncio.sleep(SETTLE_S)
        decided = await session.send(c.Flush)
    else:
        await session.send(c.Text, text=text[: position - 1])
        await asyncio.sleep(SETTLE_S)
        decided = await session.send(c.Text, text=text[position - 1 : position])
    await session.send(c.End)
    heard = await hearing
    return 1000 * (heard.first_audio - decided)


def engine_first_chunk_ms(engine: Engine, text: str) -> float:
    """`prepare` and the steps up to the first chunk, on tokens that are ready."""
    segmenter = Segmenter()
    segmenter.feed(text)
    segmenter.flush()
    cut = segmenter.next()
    assert cut is not None
    segment = Segment(0, normalise(cut), cut.boundary, engine.capabilities.voices[0].id)
    return first_chunk_ms(engine, segment)


async def measure(url: str, engine: Engine, report: Report) -> None:
    """All clauses, in turns with the engine alone."""
    served: dict[str, list[float]] = {"mark": [], "flush": [], "zh": [], "en": []}
    alone: list[float] = []
    clauses = [(text, False) for text in ENDED_BY_A_MARK] + [(text, True) for text in ENDED_BY_A_FLUSH]
    async with open_session(url) as session:
        for text in WARM_UP * 2:
            await first_audio_ms(session, text, flush=False)
            engine_first_chunk_ms(engine, text)
        for number, (text, flush) in enumerate(clauses):
            assert len(text) <= MAX_CHARACTERS, text
            if number % 2:
                alone.append(engine_first_chunk_ms(engine, text))
            taken = await first_audio_ms(session, text, flush)
            await asyncio.sleep(SETTLE_S)
            if not number % 2:
                alone.append(engine_first_chunk_ms(engine, text))
            for group in ("flush" if flush else "mark", "en" if text.isascii() else "zh"):
                served[group].append(taken)
    everything = served["mark"] + served["flush"]  # in the order of the clauses
    report.spread(f"first audio at the socket, {len(everything)} clauses", everything, "ms", 60, 120)
    report.spread("the engine's own first chunk", alone, "ms")
    pairs = [with_all - engine_alone for with_all, engine_alone in zip(everything, alone, strict=True)]
    report.spread("difference, clause by clause", pairs, "ms", 6)
    names = {"zh": "Chinese", "en": "English", "mark": "decided by a mark", "flush": "decided by a flush"}
    for group, name in names.items():
        report.spread(f"  {name}", served[group], "ms")


def main() -> int:
    """The exit status is 1 when a figure misses what is asked."""
    chosen = arguments(__doc__)
    report = Report("first_audio")
    engine = registry.create("embedded", {})
    engine.warm_up()
    with server_process("--engine", "embedded") as server:
        run(measure(server.url, engine, report))
    engine.close()
    return report.finish(chosen.json)


if __name__ == "__main__":
    sys.exit(main())
