#!/usr/bin/env python3
"""store_tool_test.py DTRUN_STORE: dtrun-store as a black box: serve, set, get, add, list, watch, and what it says when something is wrong."""
import signal
import subprocess
import sys

TOOL = sys.argv[1]


def tool(*arguments, timeout=20):
    done = subprocess.run([TOOL, *arguments], capture_output=True, text=True, timeout=timeout)
    return done.returncode, done.stdout, done.stderr


def expect(what, got, wanted):
    if got != wanted:
        sys.exit(f"FAILED {what}: got {got!r}, expected {wanted!r}")


server = subprocess.Popen([TOOL, "serve", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
try:
    line = server.stdout.readline()
    if not line.startswith("listening 127.0.0.1:"):
        sys.exit(f"FAILED serve: it printed {line!r}")
    endpoint = line.split()[1]
    at = ["--endpoint", endpoint]
    expect("set", tool("set", *at, "k", "value"), (0, "", ""))
    expect("get", tool("get", *at, "k"), (0, "value", ""))
    expect("add", tool("add", *at, "n", "41"), (0, "41\n", ""))
    expect("add of one", tool("add", *at, "n"), (0, "42\n", ""))
    expect("list", sorted(tool("list", *at)[1].split()), ['"k"', '"n"'])
    expect("watch of one key", tool("watch", *at, "n", "--changes", "1"), (0, '"n" = "42"\n', ""))
    watching = subprocess.Popen([TOOL, "watch", *at, "--interval", "0.05", "--changes", "3"], stdout=subprocess.PIPE, text=True)
    seen = [watching.stdout.readline(), watching.stdout.readline()]
    expect("watch of all", seen, ['"k" = "value"\n', '"n" = "42"\n'])
    tool("set", *at, "k", "\x1b[31m")
    expect("a change, escaped", watching.communicate(timeout=20)[0], '"k" = "\\x1b[31m"\n')
    code, out, err = tool("get", *at, "--timeout", "0.2", "missing")
    expect("get of a missing key", (code, out, "timed out" in err and '"missing"' in err), (1, "", True))
    expect("a second server on the port", tool("serve", "--port", endpoint.split(":")[1])[0], 1)
    expect("an address of another machine", tool("serve", "--host", "203.0.113.7", "--port", "0")[0], 2)
    expect("no command", tool()[0], 2)
    expect("an unknown option", tool("get", "--nope", "k")[0], 2)
    expect("an unknown command names those there are", tool("lst")[2].splitlines()[0].endswith("serve, get, set, add, list, watch"), True)
    code, out, err = tool("serve", "--port", "99999")
    expect("a port out of range", (code, "99999" in err and "65535" in err), (2, True))
    expect("help", tool("--help")[0], 0)
    expect("version", tool("--version")[1].startswith("dtrun-store "), True)
    with open("/dev/full", "w") as full:
        done = subprocess.run([TOOL, "get", *at, "n"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=20)
    expect("an answer that cannot be written", (done.returncode, "could not be written" in done.stderr), (1, True))
finally:
    server.send_signal(signal.SIGTERM)
    server.wait(10)
expect("the server's end", (server.returncode, server.stderr.read()), (0, ""))
code, out, err = tool("get", "--endpoint", endpoint, "--timeout", "0.3", "k")
expect("no server", (code, "refused" in err and endpoint in err), (1, True))
print("dtrun-store: all commands agree")
