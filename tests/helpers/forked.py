"""Commands of eagle3 in processes of their own that share one start: forks of a process with its imports behind it.

As a program: each line of stdin is `[words, environment, folder, name]` for a fork, which ends as any interpreter
does, or a process id to wait for; the answer is a line with its id, or with its exit code.
"""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

HEAVY = ("eagle3.train.run", "torch._dynamo")  # the second is what an optimiser imports


class Forks:
    """Starts commands; what one tells goes into `name`.out and `name`.err of its folder."""

    def __init__(self) -> None:
        piped = subprocess.PIPE
        # not with its folder on the path, whose modules have names of Python's own
        self.server = subprocess.Popen([sys.executable, "-P", __file__], stdin=piped, stdout=piped, text=True)

    def start(self, words: list[str], env: dict[str, str], folder: Path, name: str) -> int:
        """The id of a new process."""
        return int(self._ask([words, env, str(folder), name]))

    def finish(self, process: int) -> int:
        """The exit code of a process, minus the signal that ended it."""
        return int(self._ask(process))

    def close(self) -> None:
        assert self.server.stdin is not None
        self.server.stdin.close()
        self.server.wait(60)

    def _ask(self, asked: Any) -> str:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps(asked) + "\n")
        self.server.stdin.flush()
        return self.server.stdout.readline()


def serve() -> int:
    """Answer until stdin ends; in a fork, the exit code of its command."""
    for name in HEAVY:
        import_module(name)
    while line := sys.stdin.readline():
        asked = json.loads(line)
        if isinstance(asked, int):
            answer = os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1])
        elif not (answer := os.fork()):
            return command(*asked)
        print(answer, flush=True)
    return 0


def command(words: list[str], env: dict[str, str], folder: str, name: str) -> int:
    """Run in this process, which has just been forked."""
    from eagle3.cli import main

    os.environ.update(env)
    os.chdir(folder)
    for stream, end in ((1, "out"), (2, "err")):
        file = os.open(f"{name}.{end}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, stream)
        os.close(file)
    return main(words)


if __name__ == "__main__":
    sys.exit(serve())
