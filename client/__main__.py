"""`python -m client`: `stream`, `say`, `voices`."""

import io
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence

from client.cli.arguments import parse
from client.cli.exit_codes import ExitCode, code_of
from client.cli.telling import told
from client.errors import ClientError, OutputFailed

STOPPING = (signal.SIGINT, signal.SIGTERM)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code (see `client.cli.exit_codes`)."""
    _open_missing_streams()
    args = parse(argv)
    try:
        if args.command == "voices":
            return _voices(args)
        from client.cli.plan import make_plan
        from client.cli.progress import Progress
        from client.cli.runner import run
        from client.cli.speak import Speaking
        from client.cli.text_reader import text_of_argument

        if args.command == "say":
            args.text = [text_of_argument(" ".join(args.text))]
        args.instruct = text_of_argument(args.instruct)
        plan = make_plan(args)
        progress = Progress(shown=args.progress or sys.stderr.isatty(), quiet=args.quiet)
        speaking = Speaking(args, plan, progress)

        async def speak() -> int:
            code = await speaking.run()
            signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)  # all is done and told: the code is to be that
            return int(code)

        return run(speak)
    except ClientError as error:
        print(f"error: {told(error)}", file=sys.stderr)
        return int(code_of(error))
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)


def _open_missing_streams() -> None:
    """A shell may start us without standard streams (`>&-`): what is opened first would then take their place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
    sys.stdin = sys.stdin or open(0)  # noqa: SIM115  # for as long as the process lives
    sys.stdout = sys.stdout or open(1, "w")  # noqa: SIM115  # as above
    sys.stderr = sys.stderr or open(2, "w")  # noqa: SIM115  # as above


def _voices(args: Namespace) -> int:
    from client.cli.voices import run_voices

    answer = run_voices(args)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show every name still shows the rest
    try:
        print(answer, end="", flush=True)
    except BrokenPipeError:  # `| head`: nobody reads on, which is no failure
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        raise OutputFailed(f"standard output cannot be written: {error.strerror}") from None
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
