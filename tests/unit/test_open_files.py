"""The limit of open files is raised to what the settings need, and no further; too low a one is told in a line."""

import resource

import pytest

from server.gateways.shares import share_of
from server.open_files import OWN_FILES, max_connections, needed_files, raise_file_limit
from server.settings import Settings

FEW = Settings(max_sessions=100)
STORED = Settings(max_sessions=100, store="file:/x")
PLACES = 2 * 100 + 64


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """[soft, hard], as the process would have them."""
    now = [50, 1_000_000]

    def setrlimit(_: int, wanted: tuple[int, int]) -> None:
        if wanted[0] > wanted[1] >= 0:
            raise ValueError
        now[:] = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(now))
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    return now


def test_two_connections_for_each_session_a_journal_and_some_of_its_own() -> None:
    assert needed_files(FEW) == PLACES + OWN_FILES
    assert needed_files(STORED) == PLACES + 100 + OWN_FILES
    assert needed_files(STORED) // 2 >= 100  # the store takes half of what may be opened


def test_the_soft_limit_is_raised_as_far_as_needed(limits: list[int]) -> None:
    assert raise_file_limit(FEW) is None
    assert limits == [needed_files(FEW), 1_000_000]
    limits[0] = 5_000
    assert raise_file_limit(FEW) is None
    assert limits == [5_000, 1_000_000]  # never lowered


@pytest.mark.parametrize("hard", [200, 50])
def test_a_hard_limit_that_is_too_low_is_told_with_what_to_do(limits: list[int], hard: int) -> None:
    limits[1] = hard
    warning = raise_file_limit(FEW)
    assert limits == [hard, hard]
    assert warning is not None
    assert f"{hard} files" in warning
    assert f"need {needed_files(FEW)}" in warning
    assert "LimitNOFILE" in warning
    assert "\n" not in warning


def test_unlimited_is_enough(limits: list[int]) -> None:
    limits[:] = [resource.RLIM_INFINITY] * 2
    assert raise_file_limit(FEW) is None
    assert max_connections(FEW) == PLACES
    limits[:] = [50, resource.RLIM_INFINITY]
    assert raise_file_limit(FEW) is None
    assert limits[0] == needed_files(FEW)


def test_a_limit_that_cannot_be_raised_is_a_warning(limits: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert "50 files" in str(raise_file_limit(FEW))


def test_connections_are_no_more_than_there_are_descriptors(limits: list[int]) -> None:
    limits[0] = needed_files(STORED)
    assert max_connections(STORED) == PLACES
    limits[0] = needed_files(STORED) - 10
    assert max_connections(STORED) == PLACES - 10
    limits[0] = 160  # journals may take 80
    assert max_connections(STORED) == max(1, 160 - OWN_FILES - 80) == 1
    assert max_connections(FEW) == 160 - OWN_FILES


def test_one_process_of_several_names_what_the_user_set(limits: list[int]) -> None:
    limits[1] = 50
    warning = str(raise_file_limit(share_of(FEW, 4), FEW.max_sessions))
    assert "its 25 of max_sessions = 100 may need" in warning
