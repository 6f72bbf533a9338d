"""Runs Autobahn's cases for WebSocket servers against pubsubd.

The cases come with kosoku, which drives them, and expect a server that echoes each message. A bridge
between a case and its connection makes pubsubd such a server. Each case subscribes to a topic of its
own. Its messages become publishes, and what is delivered becomes the echo. The bridge adds the rest
of a publish to the first and the last fragment of a message. It changes nothing else: masks,
fragments, pieces of frames and bad UTF-8 arrive as the case sends them.

The exit status is 1 if a case does not end as BEHAVIOURS and CODES say.
"""

import argparse
import asyncio
import collections
import fnmatch
import json
import os
import re
import subprocess
import sys
import tempfile
import time

import kosoku
from kosoku import _caseindex

# 10.1.1 counts the bytes of its fragments, which the bridge changes. The messages of 9.1.6 and 9.2.6
# have 16 MiB, which is above the limit of message.bytes.
LEFT_OUT = "10.1.1 9.1.6 9.2.6"

# Cases with binary messages.
BINARY = "1.2.* 3.5 3.6 9.2.* 9.4.* 9.6.* 9.8.* 12.2.* 12.3.* 12.5.*"

# Cases that take long. The others have time-outs of a second, so they run before.
LONG = "9.* 12.* 13.*"

# How cases behave that need not be OK.
BEHAVIOURS = {
    # The server may read the bad frame before it has delivered the message before it.
    "NON-STRICT": "3.2 3.3 3.4 4.1.3 4.1.4 4.1.5 4.2.3 4.2.4 4.2.5 5.15"
    # It checks the UTF-8 of whole messages.
    " 6.4.*",
    "INFORMATIONAL": "7.1.6 7.13.*",
    # It declines a window of less than 15 bits.
    "UNIMPLEMENTED": "13.3.* 13.5.*",
}

# The code of the server's close frame, if it is not 1000.
CODES = {
    None: "7.3.1",
    1001: "7.7.2",
    1002: "2.5 3.* 4.* 5.1 5.2 5.9 5.10 5.11 5.12 5.13 5.14 5.15 5.16 5.17 5.18 7.3.2 7.3.6 7.7.3 7.9.* 7.13.*",
    1003: "7.7.4",
    1007: "6.3.* 6.4.* 6.6.1 6.6.3 6.6.4 6.6.6 6.6.8 6.6.10 6.8.* 6.10.* 6.11.5 6.12.* 6.13.* 6.14.* 6.15.* 6.16.*"
    " 6.17.* 6.18.* 6.19.* 6.20.* 6.21.* 7.5.1 7.7.5",
    1008: "7.7.6",
    1009: "7.7.7",
    1010: "7.7.8",
    1011: "7.7.9",
    3000: "7.7.10",
    3999: "7.7.11",
    4000: "7.7.12",
    4999: "7.7.13",
}

SERVE = ["serve", "--listen-public=127.0.0.1:0", "--listen-admin=127.0.0.1:0", "--message-bytes=8MiB", "--history-bytes=64MiB"]


def matches(case, patterns):
    return any(fnmatch.fnmatch(case, pattern) for pattern in patterns.split())


def listed(case, table, otherwise):
    """The key of the table whose patterns match."""
    return next((key for key, patterns in table.items() if matches(case, patterns)), otherwise)


def head(major, n):
    """The head of a CBOR item (RFC 8949, section 3)."""
    for size, info in ((0, n), (1, 24), (2, 25), (4, 26)):
        if n < (24 if size == 0 else 256**size):
            return bytes([major << 5 | info]) + (n.to_bytes(size, "big") if size else b"")
    raise ValueError(n)


def text(s):
    """A text string in CBOR."""
    return head(3, len(s)) + s.encode()


def item(b, at):
    """Reads an integer, a string or null in CBOR. Returns it, and where the next item begins."""
    major, info, at = b[at] >> 5, b[at] & 31, at + 1
    if info >= 24 and major != 7:
        size = 1 << info - 24
        info, at = int.from_bytes(b[at : at + size], "big"), at + size
    return (b[at : at + info], at + info) if major in (2, 3) else (info, at)


def escaped(part):
    """A part of a JSON string. It need not be UTF-8, or end with a whole character."""
    try:
        return json.encoder.encode_basestring(part.decode())[1:-1].encode()
    except UnicodeDecodeError:
        return re.sub(rb'["\\\x00-\x1f]', lambda m: b"\\u%04x" % m[0][0], part)


class Bridge:
    """The connection that a case sees instead of its own."""

    def __init__(self, connection, case):
        name = type(case).__name__.removeprefix("Case").replace("_", ".")
        binary = matches(name, BINARY)
        self.__dict__.update(
            connection=connection,
            case=case,
            topic="case." + name,
            binary=binary,
            coding="latin-1" if binary else "utf-8",  # of a string that stands for bytes
            begin=case.onOpen,
            hear=case.onMessage,
            begun=False,
        )
        case.onOpen, case.onMessage = self.subscribe, self.receive

    def __getattr__(self, name):
        return getattr(self.connection, name)

    def __setattr__(self, name, value):
        setattr(self.connection, name, value)

    def before(self, length):
        """What precedes a payload in its publish."""
        if not self.binary:
            return b'{"publish":{"topic":"%s","type":"text/plain","text":"' % self.topic.encode()
        words = [text(word) for word in ("publish", "topic", self.topic, "type", "image/png", "bytes")]
        return b"\xa1" + words[0] + b"\xa3" + b"".join(words[1:]) + head(2, length)

    def after(self):
        return b"" if self.binary else b'"}}'

    def inner(self, payload):
        """A payload, or a part of one, as it is in a publish."""
        if isinstance(payload, int):  # Python 2 cut a byte out of a string
            payload = bytes([payload])
        payload = payload.encode(self.coding) if isinstance(payload, str) else payload or b""
        return payload if self.binary else escaped(payload)

    def sendFrame(self, opcode, payload=None, fin=True, payload_len=None, **more):
        if opcode <= 2:
            if payload_len is not None:
                payload = (payload * (payload_len // max(1, len(payload)) + 1))[:payload_len]
            payload = self.inner(payload)
            if opcode:
                payload = self.before(len(payload)) + payload
            if fin:
                payload += self.after()
        self.connection.sendFrame(opcode, payload, fin, **more)

    def sendMessage(self, payload=None, isBinary=False, **more):
        payload = self.inner(payload)
        self.connection.sendMessage(self.before(len(payload)) + payload + self.after(), isBinary, **more)

    def beginMessageFrame(self, length):
        self.connection.beginMessageFrame(len(self.before(length)) + length + len(self.after()))
        self.connection.sendMessageFrameData(self.before(length))

    def endMessage(self):
        self.connection.sendMessageFrameData(self.after())
        self.connection.endMessage()

    def subscribe(self):
        command = b'{"subscribe":["%s"],"ref":1}' % self.topic.encode()
        if self.binary:
            command = b"\xa2" + text("subscribe") + b"\x81" + text(self.topic) + text("ref") + b"\x01"
        self.connection.sendFrame(2 if self.binary else 1, command)

    def receive(self, message, binary):
        frame = message.encode(self.coding) if isinstance(message, str) else bytes(message)
        echo = self.echo(frame)
        if echo is not None:
            self.hear(echo if hasattr(self.case, "TESTDATA") else echo.decode(self.coding), binary)
        elif not self.begun and frame.startswith((b'{"reply"', b"\x82\x04")):
            self.__dict__["begun"] = True
            self.begin()

    def echo(self, frame):
        """The payload of a message frame, or None for any other frame."""
        if not self.binary:
            return json.loads(frame)["text"].encode() if frame.startswith(b'{"position"') else None
        if frame[1] != 0:
            return None
        at = 1
        for _ in range(7):
            payload, at = item(frame, at)
        return payload


def bridge_cases(messages):
    """Puts a bridge into every case, and bounds how many messages it sends. Returns the names of all cases."""
    _caseindex.initialize_shims()
    from case import Case
    from kosoku.cases import CASES

    construct = Case.__init__

    def bridged(self, connection):
        if hasattr(self, "COUNT"):
            self.COUNT = min(self.COUNT, messages)
        construct(self, Bridge(connection, self))

    Case.__init__ = bridged
    return list(CASES)


async def drive(address, cases, concurrency):
    """Runs the short cases before the long ones, and those of each kind of message together."""
    results = []
    for long in (False, True):
        for binary in (False, True):
            some = [c for c in cases if matches(c, LONG) == long and matches(c, BINARY) == binary]
            url = f"ws://{address}/v1/ws?format={'cbor' if binary else 'json'}"
            try:
                results += await kosoku.run_fuzzingclient(url, some, concurrency=concurrency) if some else []
            except kosoku.FailureError as failure:  # that is for judge
                results += failure.results
    return results


def judge(results):
    """Prints how the cases ended, and returns how many ended in another way than they should."""
    wrong = 0
    for r in results:
        behaviour, code = listed(r.case_id, BEHAVIOURS, "OK"), listed(r.case_id, CODES, 1000)
        fits = r.behavior.value in ("OK", behaviour) and r.behavior_close.value in ("OK", "INFORMATIONAL")
        if not fits or r.remote_close_code != code:
            wrong += 1
            print(f"{r.case_id}: {r.behavior.value}, close {r.behavior_close.value} with {r.remote_close_code}")
            print(f"  expected {behaviour}, {code}: {r.result} {r.result_close}")
    print(*(f"{n} {what}" for what, n in collections.Counter(r.behavior.value for r in results).items()), sep=", ")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--messages", type=int, default=20, help="the most messages of a case (%(default)s)")
    parser.add_argument("--cases", default="*", help="cases to run, such as '7.9.* 9.1.1' (all)")
    parser.add_argument("--concurrency", type=int, default=8, help="cases at a time (%(default)s)")
    parser.add_argument("pubsubd", help="the binary")
    args = parser.parse_args()
    began = time.monotonic()
    cases = [c for c in bridge_cases(args.messages) if matches(c, args.cases) and not matches(c, LEFT_OUT)]
    with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "log"), "w+") as log:
        addresses = os.path.join(folder, "addresses")
        daemon = subprocess.Popen([args.pubsubd, *SERVE, "--addresses-file=" + addresses], stdout=log, stderr=log)
        try:
            while not os.path.exists(addresses) and daemon.poll() is None:
                time.sleep(0.01)
            with open(addresses) as file:
                public = json.load(file)["public"]
            results = asyncio.run(drive(public, cases, args.concurrency))
        finally:
            daemon.terminate()
            daemon.wait()
            log.seek(0)
            said = log.read()
    wrong = judge(results) + abs(len(cases) - len(results))
    print(f"{len(results)} of {len(cases)} cases, {wrong} wrong, {time.monotonic() - began:.0f} s")
    if wrong:
        print(said)
    sys.stdout.flush()
    os._exit(wrong > 0)  # kosoku leaves threads that do not end


main()
