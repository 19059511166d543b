"""Some machines of one job: network namespaces on a bridge, inside of namespaces that end with this process.

A node has a host name (node0, node1, ...), an address (10.77.0.10, .11, ...), its own /etc/hosts, which knows the loopback only, and no
name server. Processes are in one pid namespace whose first process is the test: nothing outlives it. Clocks are shared."""
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

NETWORK = "10.77.0."
FIRST_HOST = 10
ALL_NAMESPACES = ["--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]


class Skipped(Exception):
    """What a test needs is not there."""


def case(nodes, alone=False):
    """Decorates a test: it is called with a Lab of so many nodes. `alone`: it takes all cores."""
    def mark(function):
        function.is_case, function.nodes, function.alone = True, nodes, alone
        return function
    return mark


def address_of(number):
    return f"{NETWORK}{FIRST_HOST + number}"


def outer_command():
    """What runs a command in namespaces of its own, or None where that is not allowed."""
    for unshare in (["unshare", *ALL_NAMESPACES], ["unshare", "--user", "--map-root-user", *ALL_NAMESPACES]):
        probe = [*unshare, "sh", "-c", "ip link add probe type veth peer name eborp && ip link add bridge type bridge && unshare --net --uts --mount true"]
        try:
            if subprocess.run(probe, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=10).returncode == 0:
                return unshare
        except OSError:
            return None
    return None


def end_with_our_parent():
    """It holds the other end of our stdin; as the first process of the pid namespace we take everybody with us."""
    def watch():
        while os.read(0, 1):
            pass
        os._exit(1)
    threading.Thread(target=watch, daemon=True).start()


def until(condition, limit, what="a condition"):
    """Waits for it; the value that is true."""
    end = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= end:
            raise AssertionError(f"not within {limit} s: {what}")
        time.sleep(0.003)


def run(command, **options):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=20, **options)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: {done.stdout}")
    return done.stdout


class Node:
    """A process that holds the namespaces, and the ways into them."""

    def __init__(self, number, directory):
        self.number, self.name, self.address = number, f"node{number}", address_of(number)
        self.hosts = pathlib.Path(f"{directory}/hosts.{number}")
        self.hosts.write_text("127.0.0.1 localhost\n")
        self.name_servers = pathlib.Path(f"{directory}/resolv.{number}")
        self.name_servers.write_text("")  # none
        script = (f"hostname {self.name} && mount --bind {self.hosts} /etc/hosts && mount --bind {self.name_servers} /etc/resolv.conf && "
                  "ip link set lo up && echo ready && exec sleep 3600")
        self.holder = subprocess.Popen(["unshare", "--net", "--uts", "--mount", "sh", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        if self.holder.stdout.readline() != b"ready\n":
            raise AssertionError(f"{self.name} could not be set up")
        run(["ip", "link", "add", f"veth{number}", "type", "veth", "peer", "name", "eth0", "netns", str(self.holder.pid)])
        run(["ip", "link", "set", f"veth{number}", "master", "bridge", "up"])
        self.run("sh", "-c", f"ip addr add {self.address}/24 dev eth0 && ip link set eth0 up")

    def inside(self, *command):
        """The command line that runs a command here; nsenter becomes the command."""
        return ["nsenter", "--target", str(self.holder.pid), "--net", "--uts", "--mount", "--wdns=" + os.getcwd(), *command]

    def run(self, *command):
        return run(self.inside(*command))

    def cut_off(self):
        """No packet passes any more, and nobody is told: no FIN, no RST."""
        run(["ip", "link", "set", f"veth{self.number}", "down"])

    def heal(self):
        run(["ip", "link", "set", f"veth{self.number}", "up"])


class Lab:
    def __init__(self, nodes):
        self.directory, self.jobs = tempfile.mkdtemp(prefix="nodes-"), []
        run(["sh", "-c", f"ip link set lo up && ip link add bridge type bridge && ip addr add {NETWORK}1/24 dev bridge && ip link set bridge up"])
        self.nodes = [Node(number, self.directory) for number in range(nodes)]

    def path(self, name):
        return f"{self.directory}/{name}"

    def directory_for(self, name):
        os.makedirs(self.path(name), exist_ok=True)
        return self.path(name)


def note(text):
    print(f"    {text}", file=sys.stderr, flush=True)
