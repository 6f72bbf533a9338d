"""Asks a daemon what its OpenAPI documents permit, and what they forbid, by schemathesis.

run.py PUBSUBD starts the binary on free ports of the loopback interface, and asks both listeners.
Each further argument goes to schemathesis. The exit code is 1 if an answer was not as documented.
"""

import json
import os
import pathlib
import secrets
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
DOCUMENTS = HERE.parents[2] / "pkg/wire/openapi"

# All rights on all topics.
ALL = "subscribe,publish,history,presence,delete,manage:>"

# Polls end soon, and topics of lobby have presence.
SETTINGS = {
    "listen": {"public": "127.0.0.1:0", "admin": "127.0.0.1:0"},
    "log": {"level": "error"},
    "poll": {"timeout": "20ms", "max_output_delay": "10ms"},
    "topics": {"lobby": {"pattern": "lobby.>", "presence": True}},
}


def serve(binary, folder, key):
    """Starts a daemon with the operators' key, and returns it and its addresses when it is ready."""
    addresses = folder / "addresses"
    (folder / "key").write_text(key)
    settings = SETTINGS | {
        "addresses_file": str(addresses), "admin": {"key_file": str(folder / "key")},
        "auth": {"keys": [str(folder / "signing.pub")], "revocations": str(folder / "revocations")},
    }
    (folder / "settings.yaml").write_text(json.dumps(settings))
    daemon = subprocess.Popen([binary, "serve", "--config", folder / "settings.yaml"])
    late = time.monotonic() + 30
    while not addresses.exists():
        if daemon.poll() is not None or time.monotonic() > late:
            daemon.kill()
            sys.exit("the daemon did not start")
        time.sleep(0.01)
    return daemon, json.loads(addresses.read_text())


def issue(binary, folder):
    """Makes a key that signs tokens, and returns a token with all rights."""
    subprocess.run([binary, "token", "keygen", "--out", folder / "signing"], check=True, stdout=subprocess.DEVNULL)
    return subprocess.run(
        [binary, "token", "issue", "--key", folder / "signing", "--subject", "schemathesis", "--ttl", "24h", "--allow", ALL],
        check=True, capture_output=True, text=True,
    ).stdout.strip()


def ask(document, address, bearer, folder, environment, arguments):
    """Runs schemathesis for one document, and returns its exit code."""
    print(f"{document} at {address}:", flush=True)
    return subprocess.run(
        [pathlib.Path(sys.executable).with_name("schemathesis"), "--no-color", "--config-file", HERE / "schemathesis.toml",
         "run", DOCUMENTS / document, "--url", f"http://{address}", "-H", f"Authorization: Bearer {bearer}", *arguments],
        cwd=folder, check=False, env=os.environ | environment,
    ).returncode


def main():
    with tempfile.TemporaryDirectory() as name:
        folder, binary, key = pathlib.Path(name), pathlib.Path(sys.argv[1]).resolve(), secrets.token_hex(24)
        token = issue(binary, folder)
        daemon, at = serve(binary, folder, key)
        environment = {"PUBSUBD": f"http://{at['public']}", "PUBSUBD_TOKEN": token, "PYTHONPATH": str(HERE), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            codes = [
                ask("openapi.yaml", at["public"], token, folder, environment, sys.argv[2:]),
                ask("openapi-admin.yaml", at["admin"], key, folder, environment, sys.argv[2:]),
            ]
        finally:
            daemon.terminate()
            ended = daemon.wait()
    sys.exit(1 if any(codes) or ended != 0 else 0)


if __name__ == "__main__":
    main()
