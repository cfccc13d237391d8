"""The command line in processes forked from one that has imported it, since the imports of each cost a second."""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from typing import Any

_NUMBER = struct.Struct("i")


class Command(subprocess.Popen[Any]):
    """A process of ``token-trie`` with these arguments, or of Python with ``-c`` and code; used as any other."""

    def _execute_child(self, args: Any, *given: Any) -> None:
        executable, preexec_fn, _, pass_fds, cwd, env, _, _, _, *pipes = given[:15]
        assert (executable, preexec_fn, *pass_fds) == (None, None), "not for forked processes"
        self._told, theirs = socket.socketpair()
        inputs = [inherited if end == -1 else end for inherited, end in enumerate((pipes[0], pipes[3], pipes[5]))]
        environment = dict(os.environ if env is None else env)
        request = json.dumps([[str(arg) for arg in args], os.fspath(cwd or os.getcwd()), environment])
        with theirs:
            socket.send_fds(_importer(), [request.encode()], [*inputs, theirs.fileno()])
        (self.pid,) = _NUMBER.unpack(self._told.recv(_NUMBER.size))
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _internal_poll(self, **ignored: Any) -> int | None:
        try:
            return self._wait(0)
        except subprocess.TimeoutExpired:
            return None

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            (self.returncode,) = _NUMBER.unpack(self._told.recv(_NUMBER.size))
            self._told.close()
        return self.returncode


def run(
    *args: object,
    input: str | None = None,  # noqa: A002
    timeout: float = 900,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a command with an input, by default an empty one, and return what it wrote."""
    pipe = subprocess.PIPE
    with Command(args, stdin=pipe, stdout=pipe, stderr=pipe, text=True, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(args, process.returncode, out, err)


@functools.cache
def _importer() -> socket.socket:
    """Start the process to fork from, which ends with this one; return the socket that it reads."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    width = {"COLUMNS": "120"}  # which is read at import
    process = subprocess.Popen([sys.executable, __file__], stdin=theirs, env=os.environ | width)
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _reap(*_: Any) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _until_forked(channel: socket.socket) -> None:
    """Fork a process for each request; return in these, with the arguments, folder and pipes of the request."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, _reap)
    gc.freeze()
    while True:
        request, fds, _, _ = socket.recv_fds(channel, 1 << 20, 4)
        if not request:
            os._exit(0)
        if os.fork():
            for fd in fds:
                os.close(fd)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with socket.socket(fileno=fds.pop()) as told:
            if pid := os.fork():
                for fd in (*range(3), *fds):
                    os.close(fd)
                told.sendall(_NUMBER.pack(pid))
                told.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
                os._exit(0)
        break
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin, sys.stdout = (open(number, mode, closefd=False) for number, mode in enumerate("rw"))  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    # A shell's background job, as a test run may be, ignores the interrupt unless told otherwise.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    args, folder, environment = json.loads(request)
    sys.argv = ["token-trie", *args]
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)


if __name__ == "__main__":
    from token_trie_command import main, spin_briefly

    spin_briefly()
    import token_trie.serve.app  # noqa: F401
    import uvicorn  # noqa: F401
    from token_trie.cli import command_line, options

    command_line()
    _until_forked(socket.socket(fileno=os.dup(0)))
    if model := os.environ.get("TOKEN_TRIE_TEST_MODEL"):
        options.demo_model = lambda: model
    if sys.argv[1:2] == ["-c"]:
        _, _, code, *sys.argv[1:] = sys.argv
        exec(compile(code, "<string>", "exec", dont_inherit=True), {"__name__": "__main__"})
    else:
        main()
