"""A service of a fleet: allocates under a few functions, says so, and waits for the end of its
input."""

import email
import http.client
import json
import sys


def load_config():
    return json.loads(json.dumps({str(i): [i] * 8 for i in range(2000)}))


def fill_cache(pages):
    for _ in range(400):
        pages.append(bytearray(20_000))
    return pages


def build_index(index):
    for number in range(20_000):
        index[number] = str(number) * 4
    return index


def keep_session(sessions):
    for user in range(3000):
        sessions.append({"user": user, "seen": [user]})
    return sessions


held = [load_config(), fill_cache([]), build_index({}), keep_session([]), email, http.client]
print("ready", flush=True)
sys.stdin.read()
