"""From starting the process to being ready, and to the first sound when the voices are still to be built; memory."""

import sys
import tempfile
import time
from itertools import chain

from bench._common import Report, ServerProcess, arguments, percentile, run, server_process
from bench._session import open_session
from protocol import client_messages as c

READY_S = 5.0
FIRST_SOUND_S = 30.0
MEMORY_MB = 400.0
CHINESE = (
    "早上好，欢迎大家来参加今天的活动。",
    "昨天晚上下了一场大雨，路上到处都是积水。",
    "今年的产量提高了8.5%，比去年多了1200吨。",
    "2024年10月1日，我们全家去了北京。",
    "有问题请打电话13912345678。",
    "请把窗户关上，外面的风太大了！",
    "我用Python写了一个server。",
    "包裹重2.5kg，运费是18元。",
    "长城是世界上最长的城墙，每年吸引很多游客。",
    "他一口气跑了12km，用了1个小时零5分钟。",
)
ENGLISH = (
    "Good morning, everyone, and welcome to the show.",
    "It rained all night, so the streets were still wet.",
    "Sales rose by 7.5% last year, to $1.2 million.",
    "The museum opened on June 12th, 1998.",
    "You can reach us at 555-0199.",
    "Could you close the window, please?",
    "The package weighs 2.5 kg and arrives on May 3rd.",
    "Chapter 3 begins on page 47.",
    "They drove 250 miles in just under 4 hours.",
    "If you turn left at the next corner, you will find the station.",
)


async def speak(server: ServerProcess, *texts: str) -> float:
    """Say texts one after the other; returns when the first sound of the first came (perf_counter)."""
    first = 0.0
    async with open_session(server.url) as session:
        for text in texts:
            await session.start()
            await session.send(c.Text, text=text)
            await session.send(c.End)
            heard = await session.hear()
            first = first or heard.first_audio
    return first


def main() -> int:
    """The exit status is 1 when a figure misses what is asked."""
    chosen = arguments(__doc__, rounds=(4, "how often the server is started"))
    report = Report("cold_start")
    ready = []
    for number in range(chosen.rounds + 1):
        with server_process("--engine", "embedded") as server:
            if number == 0:
                continue  # built voices are asked for: the first start builds what is missing
            ready.append(server.ready - server.started)
            if number < chosen.rounds:
                continue
            report.add("start to /readyz, built voices, p50", percentile(ready, 0.5), "s", READY_S)
            report.add("  slowest", max(ready), "s", READY_S)
            report.add("memory after warm-up", server.memory_mb(), "MB", MEMORY_MB)
            begun = time.perf_counter()
            report.add("  first sentence's first sound", 1000 * (run(speak(server, CHINESE[0])) - begun), "ms")
            run(speak(server, *chain(CHINESE, ENGLISH)))
            report.add(f"memory after {len(CHINESE) + len(ENGLISH)} sentences", server.memory_mb(), "MB", MEMORY_MB)
            run(speak(server, *chain(CHINESE, ENGLISH, CHINESE, ENGLISH)))
            report.add("memory after three times as many", server.memory_mb(), "MB", MEMORY_MB)
            report.add("peak memory", server.memory_mb("VmHWM"), "MB")
    with (
        tempfile.TemporaryDirectory() as folder,
        server_process("--engine", "embedded", environment={"COSYSTREAM_MODEL_DIR": folder}) as server,
    ):
        first = run(speak(server, CHINESE[0]))
        report.add("start to the first sound, voices built at first use", first - server.started, "s", FIRST_SOUND_S)
        report.add("peak memory while building", server.memory_mb("VmHWM"), "MB")
    return report.finish(chosen.json)


if __name__ == "__main__":
    sys.exit(main())
