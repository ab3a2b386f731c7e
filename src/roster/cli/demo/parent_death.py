"""Start a command that cannot outlive its parent: `python -m roster.cli.demo.parent_death PARENT_PID COMMAND…`.

Linux only (prctl); elsewhere the command simply runs, and only an orderly end of the parent ends it.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for SIGKILL at the parent's death, then become the command; the setting survives exec."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the kernel was asked
            sys.exit(1)
    os.execv(command[0], command)  # noqa: S606  no shell is wanted


if __name__ == "__main__":
    main()
