"""Run a command of ``virgo`` that does not end by itself: ``python stopping.py HOW COMMAND...``.

``HOW`` is ``sleep``, or ``compiled`` for code that does not return to Python when a signal comes.
The command says ``ready`` and gets stuck where it would begin its work; ``none`` lets it work.
"""

from __future__ import annotations

import hashlib
import sys
import time
from typing import Any


def main(how: str, *command: str) -> int:
    from virgo import cli

    if how != "none":
        parser = cli.parser

        def stuck(_: Any) -> int:
            print("ready", flush=True)
            if how == "sleep":
                time.sleep(600)
            hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
            return 0

        def patched(words: Any = ()) -> Any:
            top = parser(words)
            parse = top.parse_args

            def parse_args(words: Any) -> Any:
                args = parse(words)
                args.run = stuck
                return args

            top.parse_args = parse_args  # type: ignore[method-assign]
            return top

        cli.parser = patched
    sys.argv = ["virgo", *command]
    return cli.main()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
