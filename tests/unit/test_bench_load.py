"""What the load test computes: a wrong formula would report wrong figures for good."""

import math

import pytest

from bench._load_client import Load
from bench._load_measure import heard, histogram_percentile, total, underruns
from bench._load_player import PREROLL_S, Player
from bench._load_talker import Spoken
from bench._load_texts import CHARACTERS_PER_SECOND, CHINESE, ENGLISH, SHORT, at_once, conversation, long_text, written
from bench._session import deciding_positions

RATE = 1_000


def test_a_player_starts_with_the_preroll_and_plays_in_real_time() -> None:
    player = Player(RATE)
    player.arrived(10.0, 100)
    assert player.played(10.05) == 0, "the pre-roll is not there"
    player.arrived(10.1, 500)
    assert player.played(10.1) == 0
    assert player.played(10.3) == pytest.approx(200, abs=1)
    assert player.ends() == pytest.approx(10.6)
    assert player.underruns == []


def test_a_player_that_runs_dry_waits_for_the_preroll_again() -> None:
    player = Player(RATE)
    player.arrived(0.0, 200)
    player.arrived(0.5, 250)
    assert player.played(0.6) == 200, "50 samples are less than the pre-roll"
    player.arrived(0.7, 400)
    (hole,) = player.underruns
    assert hole.moment == pytest.approx(0.2)
    assert hole.sample == 200
    assert hole.length_s == pytest.approx(0.5)
    assert player.played(0.8) == pytest.approx(300, abs=1)


def test_the_end_is_no_underrun() -> None:
    player = Player(RATE)
    player.arrived(0.0, 200)
    player.completed(0.3)
    assert player.underruns == []
    assert player.played(1.0) == 200


def test_what_is_shorter_than_the_preroll_plays_when_it_is_complete() -> None:
    assert PREROLL_S * RATE > 50
    player = Player(RATE)
    player.arrived(0.0, 50)
    player.completed(1.0)
    assert player.played(1.02) == pytest.approx(20, abs=1)


def test_a_hole_that_is_still_open_ends_when_the_listener_leaves() -> None:
    player = Player(RATE)
    player.arrived(0.0, 200)
    player.stop(2.2)
    assert [hole.length_s for hole in player.underruns] == [pytest.approx(2.0)]


@pytest.mark.parametrize("text", [CHINESE[0], ENGLISH[0], SHORT[0]])
def test_a_script_says_which_token_made_a_cut_certain(text: str) -> None:
    script = written(text, seed=3)
    assert "".join(script.tokens) == text
    assert list(script.at) == sorted(script.at)
    assert script.at[-1] < len(text) / CHARACTERS_PER_SECOND + 0.5
    for (end, token), (wanted, position) in zip(script.cuts, deciding_positions(text), strict=True):
        assert end == wanted
        before = sum(map(len, script.tokens[:token]))
        assert before < position <= before + len(script.tokens[token])


def test_half_of_the_conversation_is_chinese() -> None:
    scripts = conversation()
    assert [script.text.isascii() for script in scripts] == [False, True] * (len(scripts) // 2)


def test_a_long_text_comes_in_messages() -> None:
    script = at_once(long_text(9_500), piece=4_000)
    assert [len(token) for token in script.tokens] == [4_000, 4_000, 1_500]
    assert script.cuts[-1] == (9_500, 2)


def test_percentile_of_what_a_histogram_counted_meanwhile() -> None:
    def series(*counts: int) -> dict[str, float]:
        return {
            f'lag_bucket{{le="{bound}"}}': count for bound, count in zip(("0.01", "0.02", "+Inf"), counts, strict=True)
        }

    assert histogram_percentile(series(5, 5, 5), series(15, 15, 15), "lag", 0.5) == pytest.approx(0.005)
    assert histogram_percentile(series(0, 0, 0), series(10, 20, 20), "lag", 0.75) == pytest.approx(0.015)
    assert histogram_percentile(series(0, 0, 0), series(0, 0, 5), "lag", 0.99) == math.inf
    assert math.isnan(histogram_percentile(series(5, 5, 5), series(5, 5, 5), "lag", 0.5))
    assert math.isnan(histogram_percentile({}, {}, "lag", 0.5))


def test_a_metric_is_summed_over_its_labels() -> None:
    assert total({'a{x="1"}': 1.0, 'a{x="2"}': 2.0, "ab": 4.0}, "a") == 3
    assert math.isnan(total({}, "a"))


def test_who_was_never_heard_counts_with_the_time_it_was_waited_for() -> None:
    load = Load(
        spoken=[
            Spoken(0, at_s=1.0, first_ms=20.0, holes=[0.5]),
            Spoken(0, at_s=5.0, first_ms=40.0, holes=[0.25], waits=[1.0]),
            Spoken(0, at_s=6.0, waited_ms=900.0),
            Spoken(0, at_s=6.5, waited_ms=12.0),
        ]
    )
    assert heard([load]) == [20.0, 40.0, 900.0]
    assert heard([load], after_s=2.0) == [40.0, 900.0]
    assert underruns([load], after_s=2.0) == [0.25]
