"""Text written at 30 characters a second, as a language model does: how soon it is heard, and whether it ever runs dry.

Playing begins with the first frame that arrives; a frame that comes later than its turn is a gap. Where the cut of the
late segment was certain less than 100 ms before the sound ran out, the segmenter was waiting for text (for more than it
needed, if much was there that was not spoken); otherwise the engine or the way to the client was too slow.
"""

import asyncio
import sys
from dataclasses import dataclass

from bench._common import Report, arguments, percentile, run, server_process
from bench._session import Heard, Session, deciding_positions, open_session
from protocol import client_messages as c
from protocol import server_messages as s

CHARACTERS_PER_SECOND = 30
RATE = 24_000
MARGIN_S = 0.1  # what the server may take from the deciding character to sound
TEXTS = (
    (
        "你好！很高兴为你介绍这座城市。它坐落在两条大河的交汇处，已经有两千多年的历史，"
        "城里保留着许多古老的街道和桥梁。春天的时候，河边的樱花全部开放，吸引了成千上万的游客。"
    ),
    (
        "这个问题其实可以分成三个部分来看。第一，我们需要知道数据从哪里来；第二，要确认它们是否完整；第三，"
        "再决定用什么方法分析。如果其中任何一步出了错，最后的结论就不可靠。"
    ),
    (
        "当然可以。做番茄炒蛋需要3个鸡蛋和2个番茄，再准备一点盐和糖。先把鸡蛋打散，用中火炒到八成熟，"
        "盛出来备用，然后把番茄切块下锅，炒出汁以后再倒入鸡蛋，翻炒均匀就可以出锅了。"
    ),
    (
        "2023年，全国新建铁路约3600公里，比上一年增长了12.4%。其中高速铁路占了七成以上，"
        "旅客平均出行时间缩短了近一个小时，很多人第一次坐着火车回到了家乡。"
    ),
    (
        "从前有一座山，山上有一座庙，庙里住着一个老和尚和一个小和尚。每天早上，小和尚都要下山去挑水，路很长，"
        "水桶又重，可是他从来没有抱怨过，因为他喜欢听林子里的鸟叫。"
    ),
    (
        "Sure! The city lies where two great rivers meet, and its history goes back more than two thousand "
        "years. In spring, the cherry trees along the banks are in full bloom, and visitors come from all over "
        "the country to see them."
    ),
    (
        "There are three parts to this question. First, we need to know where the data comes from. Second, we "
        "should check that it is complete. Third, we can decide how to analyze it. If any of these steps goes "
        "wrong, the result can't be trusted."
    ),
    (
        "To make this soup, you need 2 onions, 3 carrots, and about 500 grams of potatoes. Chop everything into "
        "small pieces, fry the onions until they are golden, and then add the rest together with a liter of "
        "water."
    ),
    (
        "In 2023, about 3,600 kilometers of new railway were opened, which is 12.4% more than the year before. "
        "Travel times fell by almost an hour on average, and many people took the train home for the first time."
    ),
    (
        "Once upon a time, there was a temple on a mountain. An old monk and a young monk lived there. Every "
        "morning, the young monk walked down to the river to fetch water; the path was long, but he never "
        "complained."
    ),
    (
        "Yes. I think that is a good idea, because it gives everyone enough time to prepare for the meeting and to "
        "read the documents before we talk about them."
    ),
    (
        "Great question! Plants are green because they contain a pigment called chlorophyll, which absorbs red and "
        "blue light and reflects green light back to our eyes."
    ),
)
WARM_UP = ("我们开始吧。", "Let us begin.")


@dataclass(frozen=True, slots=True)
class Gap:
    """The sound ran out `at_s` after its beginning, for `length_s`.

    `decided_s`: how long before that the cut of the late segment was certain; negative: after it. `unspoken`:
    characters that had been written by then and belonged to no segment.
    """

    at_s: float
    length_s: float
    decided_s: float
    unspoken: int

    @property
    def is_late(self) -> bool:
        """The text was ready, its sound was not."""
        return self.decided_s >= MARGIN_S


async def speak_live(session: Session, text: str) -> tuple[Heard, list[float]]:
    """What was heard, and when each character was sent."""
    hearing = asyncio.ensure_future(session.hear())
    loop = asyncio.get_running_loop()
    await session.start()
    begun = loop.time()
    sent = []
    for number, character in enumerate(text):
        await asyncio.sleep(max(0.0, begun + number / CHARACTERS_PER_SECOND - loop.time()))
        sent.append(await session.send(c.Text, text=character))
    await session.send(c.End)
    return await hearing, sent


def gaps(text: str, heard: Heard, sent: list[float]) -> list[Gap]:
    """Where a player that starts with the first frame would run dry, and waits."""
    begins = [event for event in heard.events if isinstance(event, s.SegmentBegin)]
    decided = {end: sent[position - 1] for end, position in deciding_positions(text)}
    found = []
    start = heard.first_audio
    waited = 0.0
    for arrived, frame in heard.frames:
        due = start + waited + frame.first_sample / RATE
        if frame.count and arrived > due:
            segment = max((b for b in begins if b.first_sample <= frame.first_sample), key=lambda b: b.segment)
            written = sum(moment <= due for moment in sent)
            found.append(Gap(due - start, arrived - due, due - decided[segment.end], written - segment.start))
            waited += arrived - due
    return found


async def measure(url: str, report: Report) -> None:
    """Each text once."""
    first: list[float] = []
    from_start: list[float] = []
    found: list[tuple[str, Gap]] = []
    audio_s = 0.0
    async with open_session(url) as session:
        for text in WARM_UP:
            await speak_live(session, text)
        for text in TEXTS:
            heard, sent = await speak_live(session, text)
            first.append(1000 * (heard.first_audio - sent[deciding_positions(text)[0][1] - 1]))
            from_start.append(1000 * (heard.first_audio - sent[0]))
            found += [(text, gap) for gap in gaps(text, heard, sent)]
            audio_s += heard.frames[-1][1].end_sample / RATE
    late = sum(gap.is_late for _, gap in found)
    report.add("first audio after the first clause was complete, p50", percentile(first, 0.5), "ms", 100)
    report.add("  slowest", max(first), "ms")
    report.spread("first audio after the first character", from_start, "ms")
    report.add("gaps: text was ready, its sound late", late, "", 0)
    report.add("gaps: the segmenter waited for more text", len(found) - late, "", 0)
    report.add("longest gap", max((1000 * gap.length_s for _, gap in found), default=0.0), "ms")
    report.note(f"{len(TEXTS)} texts, {audio_s:.0f} s of audio, {CHARACTERS_PER_SECOND} characters a second")
    for text, gap in found:
        cause = "sound late" if gap.is_late else f"{gap.unspoken} characters written and not cut"
        report.note(f"gap of {1000 * gap.length_s:.0f} ms at {gap.at_s:.2f} s, {cause}: {text[:30]}...")


def main() -> int:
    """The exit status is 1 when a figure misses what is asked."""
    chosen = arguments(__doc__)
    report = Report("live_text")
    with server_process("--engine", "embedded") as server:
        run(measure(server.url, report))
    return report.finish(chosen.json)


if __name__ == "__main__":
    sys.exit(main())
