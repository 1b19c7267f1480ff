"""What the status page is told: one process's part, several parts as one, and that as the page shows it. Pure.

A part is plain JSON, so that processes can give it to each other. Nothing in it is a text, a principal, a token or a
whole session id.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from server.observe import latencies

MOST_LISTED: Final = 200  # sessions that the page shows, worst first

Part = dict[str, Any]

_COUNTS: Final = ("sessions", "away", "speaking", "capacity", "max_sessions")
_OF_ENGINES: Final = ("workers", "waiting", "waiting_first")
_GREATEST: Final = ("late_ms", "step_ms", "jobs")


def part(
    *,
    server: Mapping[str, Any],
    process: Mapping[str, Any],
    load: Mapping[str, float],
    totals: Mapping[str, float],
    slots: latencies.Slots,
    sessions: Sequence[Mapping[str, Any]],
) -> Part:
    """One process. `server`: `ready`, `reason`, `engine`, `version`, `uptime_s`; `process`: `name` and its figures;
    `load`: see `_COUNTS`, `_OF_ENGINES`, `_GREATEST`; `sessions`: rows, worst first, each with the list `trouble` that
    they are sorted by.
    """
    return {
        "server": dict(server),
        "processes": [dict(process)],
        "load": dict(load),
        "totals": dict(totals),
        "first_audio": latencies.to_json(slots),
        "sessions": list(sessions[:MOST_LISTED]),
    }


def merge(parts: Sequence[Part], *, shared_engines: bool = False) -> Part:
    """Several processes of one server as one. `shared_engines`: what each tells of the engines it tells of the same."""
    first = parts[0]
    summed = (*_COUNTS, *(() if shared_engines else _OF_ENGINES))
    greatest = (*_GREATEST, *(_OF_ENGINES if shared_engines else ()))
    loads = [each["load"] for each in parts]
    totals: dict[str, float] = {}
    for each in parts:
        for name, value in each["totals"].items():
            totals[name] = totals.get(name, 0) + value
    not_ready = [each["server"] for each in parts if not each["server"]["ready"]]
    processes = [process for each in parts for process in each["processes"]]
    rows = sorted((row for each in parts for row in each["sessions"]), key=lambda row: row["trouble"])
    return {
        "server": {
            **(not_ready[0] if not_ready else first["server"]),
            "uptime_s": max(each["server"]["uptime_s"] for each in parts),
        },
        "processes": sorted(processes, key=lambda each: (len(each["name"]), each["name"])),  # g2 before g10
        "load": {
            **{name: sum(load[name] for load in loads) for name in summed},
            **{name: max(load[name] for load in loads) for name in greatest},
        },
        "totals": totals,
        "first_audio": latencies.to_json(latencies.merged(latencies.from_json(each["first_audio"]) for each in parts)),
        "sessions": rows[:MOST_LISTED],
    }


def shown(whole: Part, now: float) -> Part:
    """For the page. `now`: seconds since the epoch."""
    slots = latencies.from_json(whole["first_audio"])
    return {
        **whole,
        "first_audio": {
            "slot_s": latencies.SLOT_S,
            "slots": latencies.SLOTS,
            "points": latencies.chart(slots, int(now // latencies.SLOT_S)),
        },
        "sessions": [{name: value for name, value in row.items() if name != "trouble"} for row in whole["sessions"]],
    }
