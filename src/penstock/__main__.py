"""The command line: ``penstock``, and ``python -m penstock``."""

from __future__ import annotations

import gc
import signal


def main() -> None:
    """Run the command line. Ctrl-C while its modules are loaded ends the process without a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    # One that is ignored, as after nohup, stays ignored.
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The imports of a server make 150,000 objects, which stay. By default the collector runs 200 times meanwhile, a tenth of
    # the CPU of a start. Commands are short, and keep this; servers set their own.
    gc.set_threshold(250_000, 20, 20)
    from penstock.app.cli.main import main as run

    signal.signal(signal.SIGINT, handler)
    run()


if __name__ == "__main__":
    main()
