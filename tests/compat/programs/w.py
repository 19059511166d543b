"""The worker of most scenarios. It writes down what it was started with and how it ended, and does what its arguments say.

An argument that starts with '+' is an action, '+CONDITION:ACTION' an action for some workers only; all others are plain arguments.
A condition is a comma-separated list of a letter and a number, with '!' (not) or '>' between them if wanted: r rank, l local rank,
a TORCHELASTIC_RESTART_COUNT, n node, i incarnation (how often this place was started before). '+r1,i0:exit=3': rank 1 exits with 3 the
first time. Actions run in order, signal handlers ('on=') first. Records of one start: PROBE_RECORD/worker.NODE.PLACE.INCARNATION.PID, JSON lines."""
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time

RECORD, NODE = os.environ["PROBE_RECORD"], os.environ.get("PROBE_NODE", "0")
SIGNALS = ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2")
BLOCKING = ("sleep", "exit", "kill", "sync", "starts", "await", "stdin")


def place_on_node():
    """The local rank, also where LOCAL_RANK is always 0 (--virtual-local-rank): the error file's directory has it."""
    directory = os.path.basename(os.path.dirname(os.environ.get("TORCHELASTIC_ERROR_FILE", "")))
    return int(directory if directory.isdigit() else os.environ.get("LOCAL_RANK", "0"))


def take_incarnation(place):
    number = 0
    while True:
        try:
            os.close(os.open(f"{RECORD}/incarnation.{NODE}.{place}.{number}", os.O_CREAT | os.O_EXCL))
            return number
        except FileExistsError:
            number += 1


PLACE = place_on_node()
INCARNATION = take_incarnation(PLACE)
journal = os.open(f"{RECORD}/worker.{NODE}.{PLACE}.{INCARNATION}.{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
reactions = {}


def note(**facts):
    os.write(journal, (json.dumps(facts) + "\n").encode())


def leave(code):
    note(end=f"exit {code}")
    os._exit(code)


def say(descriptor, text):
    os.write(descriptor, f"@W r{os.environ.get('RANK')} {text}\n".encode("utf-8", "surrogateescape"))


def until(condition, what, limit=60):
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            note(stuck=what)
            leave(99)
        time.sleep(0.01)


def touch(name):
    open(f"{RECORD}/{name}", "w").close()


def exists(name):
    return os.path.exists(f"{RECORD}/{name}")


def records(pattern):
    return [name for name in os.listdir(RECORD) if re.fullmatch(pattern, name)]


def announce_start():
    touch(f"up.{NODE}.{PLACE}.{INCARNATION}")


def die(name):
    """By the signal, so that the launcher sees it."""
    number = getattr(signal, "SIG" + name)
    if name != "KILL":
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    time.sleep(5)


def on_signal(number, frame):
    name = signal.Signals(number).name[3:]
    note(signal=name)
    for step in reactions.get(name, reactions.get("*", "die")).split(","):
        what, _, value = step.partition("=")
        if what == "ignore":
            return
        elif what == "sleep":
            time.sleep(float(value))
        elif what == "out":
            say(1, value)
        elif what == "errfile":
            write_error_file(value)
        elif what == "exit":
            leave(int(value))
        elif what == "die":
            note(end=f"signal {name}")
            die(name)


def write_error_file(value):
    """rec:TIME:TEXT as @record writes it, str:TIME:TEXT the short form, bad: no JSON."""
    kind, when, text = (value + "::").split(":")[:3]
    if kind == "rec":
        extra = {"py_callstack": "Traceback: " + text, "timestamp": when or "0"}
        body = json.dumps({"message": {"message": text, "extraInfo": extra}})
    elif kind == "str":
        body = json.dumps({"message": text, "timestamp": int(when)} if when else {"message": text})
    else:
        body = "{not json"
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        file.write(body)


def ask_store(key, set_first):
    """One CHECK, with a SET before it if wanted, on the store that the launcher serves (c10d wire protocol)."""
    def text(data):
        return struct.pack("<Q", len(data)) + data

    name = text(b"/" + key.encode())
    request = b"\x00\xce\xf7\x85\x3c" + (b"\x01" + name + text(b"v") if set_first else b"") + b"\x05" + struct.pack("<Q", 1) + name
    with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 5) as store:
        store.sendall(request)
        return {b"\0": "present", b"\1": "absent"}.get(store.recv(1), "no answer")


def start_child(seconds):
    """A child that runs for a while and writes down a SIGTERM."""
    mine = f"{NODE}.{PLACE}.{INCARNATION}"
    script = (f"trap 'echo TERM >> {RECORD}/child.{mine}; exit' TERM; touch {RECORD}/childup.{mine}; "
              f"i=0; while [ $i -lt {int(float(seconds) * 10)} ]; do sleep 0.1; i=$((i+1)); done")
    subprocess.Popen(["/bin/sh", "-c", script])
    until(lambda: exists(f"childup.{mine}"), "child")


def wait_for_neighbours():
    """A barrier of this node's workers."""
    touch(f"sync.{NODE}.{PLACE}.{INCARNATION}")
    pattern = rf"sync\.{NODE}\.\d+\.{INCARNATION}"
    until(lambda: len(records(pattern)) >= int(os.environ["LOCAL_WORLD_SIZE"]), "sync")


def end_by(name):
    note(end=f"kill {name}")
    die(name)


def repeat(value):
    text, count = value.rsplit("*", 1)
    os.write(1, b"@W " + text.encode() * int(count) + b"\n")


def set_reaction(value):
    name, _, steps = value.partition(":")
    reactions[name] = steps


ACTIONS = {
    "out": lambda value: say(1, value),
    "err": lambda value: say(2, value),
    "raw": lambda value: os.write(1, value.encode().decode("unicode_escape").encode("latin-1")),
    "rep": repeat,
    "sleep": lambda value: time.sleep(float(value)),
    "exit": lambda value: leave(int(value)),
    "kill": end_by,
    "on": set_reaction,
    "sync": lambda value: wait_for_neighbours(),
    "starts": lambda value: until(lambda: len(records(r"up\..*")) >= int(value), "starts"),
    "await": lambda value: until(lambda: exists(value), f"await={value}"),
    "touch": touch,
    "errfile": write_error_file,
    "storeset": lambda value: say(1, f"store {value} {ask_store(value, True)}"),
    "storecheck": lambda value: say(1, f"store {value} {ask_store(value, False)}"),
    "stdin": lambda value: say(1, "stdin " + repr(sys.stdin.read())),
    "stdinfd": lambda value: say(1, f"stdin is /dev/null: {os.path.realpath('/proc/self/fd/0') == '/dev/null'}"),
    "child": start_child,
}


def applies(condition):
    mine = {"r": int(os.environ.get("RANK", 0)), "l": PLACE, "a": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)), "i": INCARNATION, "n": int(NODE)}
    for item in condition.split(","):
        letter, relation, number = re.fullmatch(r"([rlain])([!>]?)(\d+)", item).groups()
        value, wanted = mine[letter], int(number)
        if not {"": value == wanted, "!": value != wanted, ">": value > wanted}[relation]:
            return False
    return True


def actions_for_me():
    for argument in sys.argv[1:]:
        if not argument.startswith("+"):
            continue
        conditional = re.match(r"\+((?:[rlain][!>]?\d+)(?:,[rlain][!>]?\d+)*):(.*)", argument, re.S)
        if conditional and not applies(conditional[1]):
            continue
        what, _, value = (conditional[2] if conditional else argument[1:]).partition("=")
        yield what, value


def main():
    with open("/proc/self/cmdline", "rb") as file:
        command = file.read().decode("utf-8", "surrogateescape").split("\0")[:-1]
    note(environment=dict(os.environ), argv=sys.argv[1:], command=command, directory=os.getcwd(), incarnation=INCARNATION, place=PLACE, node=NODE)
    for name in SIGNALS:
        signal.signal(getattr(signal, "SIG" + name), on_signal)
    actions = list(actions_for_me())
    for what, value in actions:
        if what == "on":
            set_reaction(value)
    for what, value in actions:
        if what in BLOCKING:
            announce_start()  # what comes before the first wait or end is done
        if what not in ACTIONS:
            say(2, "bad action " + what)
            leave(98)
        ACTIONS[what](value)
    announce_start()
    leave(0)


main()
