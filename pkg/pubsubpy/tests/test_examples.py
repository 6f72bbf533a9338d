"""The scripts of deploy/examples/python and the program of pkg/README.md, run as programs."""

from __future__ import annotations

import asyncio
import re
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from conftest import Start, proxied

from pubsubpy import Client

FOLDER = Path(__file__).parents[3] / "deploy" / "examples" / "python"


async def script(name: str, *arguments: str) -> Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-u", str(FOLDER / name), *arguments, stdout=PIPE)


async def test_the_progress_of_a_job_is_shown_once_over_cuts(daemon: Start) -> None:
    async with daemon() as server, proxied(server) as proxy:
        follow = await script("follow.py", "jobs.a", proxy.url)
        worker = await script("worker.py", "jobs.a", proxy.url)
        assert follow.stdout
        shown = []
        async for line in follow.stdout:
            shown.append(int(line.decode().partition("]")[2].split()[0]))
            if len(shown) in (4, 12):
                proxy.cut()
        assert shown == [*range(0, 101, 5)]
        assert await follow.wait() == 0
        assert await worker.wait() == 0


async def test_the_program_of_the_concepts_prints_messages(daemon: Start, tmp_path: Path) -> None:
    concepts = (FOLDER.parents[2] / "pkg" / "README.md").read_text()
    [code] = re.findall(r"^```python\n(.*?)^```", concepts, re.DOTALL | re.MULTILINE)
    assert code.count("\n") <= 12
    async with daemon() as server, Client(server.url) as client:
        program = tmp_path / "program.py"
        program.write_text(code.replace("http://127.0.0.1:8080", server.url))
        await client.publish("chat.42", {"text": "hi"})
        process = await asyncio.create_subprocess_exec(sys.executable, "-u", str(program), stdout=PIPE)
        assert process.stdout
        assert await process.stdout.readline() == b"{'text': 'hi'}\n"
        process.kill()
        await process.wait()
