"""Messages between two processes arrive whole, even if a signal interrupts them."""

import os
import signal
import threading
import time

from fedbilevel.federation.worker.channel import HEADER, pair
from tests.waiting import HANG


def test_a_signal_in_the_middle_of_a_message_does_not_cut_it():
    message = bytes(range(256)) * 400
    first, second = pair()
    signals = []
    came = threading.Event()

    def send() -> None:
        raw = HEADER.pack(len(message)) + message
        with first, open(first.fileno(), "wb", closefd=False, buffering=0) as end:
            end.write(raw[:50_000])
            # The receiver nearly always has the first piece by then; the second
            # piece is sent after the signal.
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGALRM)
            came.wait(HANG)
            end.write(raw[50_000:])

    def note(*_: object) -> None:
        signals.append(1)
        came.set()

    before = signal.signal(signal.SIGALRM, note)
    sender = threading.Thread(target=send)
    try:
        sender.start()
        with second:
            assert second.receive() == message
    finally:
        signal.signal(signal.SIGALRM, before)
        sender.join()
    assert signals
