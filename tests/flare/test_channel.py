"""Messages between two processes come whole, whatever comes between their pieces."""

import signal
import threading
import time

from fedbilevel.flare.channel import HEADER, pair


def test_a_signal_in_the_middle_of_a_message_does_not_cut_it():
    message = bytes(range(256)) * 400
    here, there = pair()
    signals = []

    def send() -> None:
        raw = HEADER.pack(len(message)) + message
        with here, open(here.fileno(), "wb", closefd=False, buffering=0) as end:
            end.write(raw[:50_000])
            time.sleep(0.5)
            end.write(raw[50_000:])

    before = signal.signal(signal.SIGALRM, lambda *_: signals.append(1))
    sender = threading.Thread(target=send)
    try:
        sender.start()
        # While the receiver has the first piece and waits for the second.
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with there:
            assert there.receive() == message
    finally:
        signal.signal(signal.SIGALRM, before)
        sender.join()
    assert signals
