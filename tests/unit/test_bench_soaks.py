"""What the soaks compute: a wrong formula would call a leak none, or a fault of the server none."""

import pytest

from bench._fuzz import Tally, attack
from bench._fuzz_attack import Attack, read_outcome
from bench._light_socket import masked_frame
from bench.churn import Look, growth_percent
from bench.fuzz import CLAUSES

SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nA: b\r\n\r\n"
UPGRADED = Attack("example", (), upgraded=True)


def frame(opcode: int, payload: bytes) -> bytes:
    """As a server sends it."""
    assert len(payload) < 126
    return bytes((0x80 | opcode, len(payload))) + payload


def test_growth_leaves_the_warm_up_out() -> None:
    looks = [Look(float(at), 50.0 if at < 10 else 100.0 + 0.1 * at) for at in range(110)]
    assert growth_percent(looks, 10.0) == pytest.approx(100 * (109.9 / 101.9 - 1), rel=0.05)
    assert growth_percent([Look(float(at), 70.0) for at in range(100)], 20.0) == 0


@pytest.mark.parametrize(
    ("answer", "kind", "faulty"),
    [
        (SWITCHED + frame(1, b'{"type":"error","code":"bad_json"}') + frame(8, b"\x03\xef"), "closed 1007", False),
        (SWITCHED + frame(1, b'{"type":"error","code":"internal"}') + frame(8, b"\x03\xf3"), "closed 1011", True),
        (SWITCHED + frame(1, b'{"type":"error","code":"internal"}'), "left", True),
        (SWITCHED, "left", False),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}", "HTTP 400", True),  # to a good handshake
        (b"", "left", True),
    ],
)
def test_what_an_answer_says(answer: bytes, kind: str, faulty: bool) -> None:
    outcome = read_outcome(UPGRADED, answer, ended=False)
    assert outcome.kind == kind
    assert bool(outcome.fault) is faulty


def test_an_internal_server_error_is_a_fault() -> None:
    answers = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 500 Internal Server Error\r\n\r\n"
    outcome = read_outcome(Attack("example", ()), answers, ended=True)
    assert outcome.statuses == [200, 500]
    assert outcome.fault


def test_attacks_come_from_their_seed_and_number_alone() -> None:
    assert [attack(1, number) for number in range(200)] == [attack(1, number) for number in range(200)]
    assert len({attack(1, number).name for number in range(400)}) > 25
    assert len(CLAUSES) == len(set(CLAUSES))


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_frames_of_a_client(size: int) -> None:
    data = masked_frame(1, bytes(size))
    assert data[0] == 0x81
    assert len(data) == size + 6 + (0 if size < 126 else 2 if size < 65_536 else 8)


def test_tallies_add_up() -> None:
    tally = Tally()
    for number in range(30):
        tally += Tally(count=2, faults=[f"fault {number}"])
    assert tally.count == 60
    assert tally.faults[0] == "fault 0"
    assert len(tally.faults) == 10
