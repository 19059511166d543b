"""Speaks to the store of a round (c10d wire protocol), on a node: store_client.py HOST PORT WAIT_FILE DONE_FILE [VARIABLE=...]

Writes a key and reads it back, tells so on stdout, waits for WAIT_FILE, tries to write and to read again over the same connection
and over a new one, and tells what came of it."""
import os
import socket
import struct
import sys
import time

HOST, PORT, WAIT_FILE = sys.argv[1], int(sys.argv[2]), sys.argv[3]


def text(data):
    return struct.pack("<Q", len(data)) + data


def set_and_look(connection, key):
    """What one SET and one CHECK of the key came to."""
    try:
        connection.sendall(b"\x01" + text(key) + text(b"v") + b"\x05" + struct.pack("<Q", 1) + text(key))
        answer = connection.recv(1)
        return {b"\0": "written", b"\1": "not there", b"": "closed"}[answer]
    except OSError:
        return "closed"


def connected(host, port):
    connection = socket.create_connection((host, port), 3)
    connection.sendall(b"\x00\xce\xf7\x85\x3c")
    return connection


stale = connected(HOST, PORT)
print("first", set_and_look(stale, b"/stale"), flush=True)
while not os.path.exists(WAIT_FILE):
    time.sleep(0.01)
print("again", set_and_look(stale, b"/later"), flush=True)
try:
    print("anew", set_and_look(connected(HOST, PORT), b"/later"), flush=True)
except OSError as error:
    print("anew", type(error).__name__, flush=True)
next_host, next_port = open(WAIT_FILE).read().split()
look = connected(next_host, int(next_port))
for key in (b"/stale", b"/later"):
    look.sendall(b"\x05" + struct.pack("<Q", 1) + text(key))
    print("next round", {b"\0": "there", b"\1": "not there"}.get(look.recv(1), "closed"), flush=True)
