"""A link whose acks come as a test says."""

from dataclasses import replace

from server.link import Link, Load, Mode, Switch

FRAME = 982  # bytes: 20 ms of PCM at 24 kHz and a header
IDLE = Load(None, waiting=False, lead_s=2.0, playing=True)


class Line:
    """A link whose acks come as told: 100 ms apart, each for the audio that was written `rtt` before."""

    def __init__(
        self, *, rtt: float = 0.04, paced: bool = True, pinned: Mode | None = None, resumed: bool = False
    ) -> None:
        self.now = 100.0
        self.rtt = rtt
        self.link = Link(self.now, pinned=pinned, paced=paced)
        if resumed:
            self.link.resumed(self.now)
        self.load = Load(None, waiting=True, lead_s=3.9, playing=True)  # waits for the lead
        self.level_ms = 3_500
        self.stalls = 0
        self.visible = True
        self.switches: list[Switch] = []

    def send(self, frames: int = 5) -> None:
        for _ in range(frames):
            self.link.sent(self.now, FRAME)
        self.load = replace(self.load, oldest_unacked_at=self.now)
        self.decide()

    def ack(self, frames: int = 5) -> None:
        self.link.acked(
            self.now,
            sent_at=self.load.oldest_unacked_at,
            size=frames * FRAME,
            buffered_ms=self.level_ms,
            stalls=self.stalls,
            visible=self.visible,
        )
        self.load = replace(self.load, oldest_unacked_at=None)
        self.decide()

    def decide(self) -> Switch | None:
        switch = self.link.decide(self.now, self.load)
        if switch is not None:
            assert self.link.mode == switch.mode
            self.switches.append(switch)
        return switch

    def flow(self, seconds: float, delays: tuple[float, ...] = (0.0,)) -> None:
        """Audio flows; the acks are late by `delays` in turn."""
        for turn in range(round(seconds / 0.1)):
            delay = self.rtt + delays[turn % len(delays)]
            self.send()
            self.now += delay
            self.ack()
            self.now += max(0.0, 0.1 - delay)

    def flow_until(self, mode: Mode) -> float:
        begin = self.now
        while self.link.mode != mode:
            self.flow(0.1)
            assert self.now < begin + 100
        return self.now - begin

    def outage(self) -> None:
        """Audio stays unacked until it is noticed, and is acked then."""
        self.send()
        while self.link.mode == "stream":
            at = self.link.next_check(self.now, self.load)
            assert at is not None
            assert at > self.now
            self.now = at
            self.decide()
        self.ack()
