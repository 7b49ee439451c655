"""What asks a run to stop: Ctrl-C, SIGTERM, and a terminal that goes (SIGHUP), unless that is ignored."""

import signal

import pytest

from tcnn.training.runs.callbacks import SIGNALS, stop_on_signal


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGHUP, 75), (signal.SIGINT, 130)], ids=str)
def test_each_asks_for_a_stop(number: signal.Signals, code: int) -> None:
    assert number in SIGNALS
    before = signal.signal(number, signal.default_int_handler)  # a hangup may be ignored where the tests run
    try:
        with stop_on_signal() as stop:
            assert not stop
            signal.raise_signal(number)
            assert stop
        assert stop.stopped("saved").exit_code == code
        assert signal.getsignal(number) == signal.default_int_handler
    finally:
        signal.signal(number, before)


def test_under_nohup_a_hangup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signal() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop
    finally:
        signal.signal(signal.SIGHUP, before)
