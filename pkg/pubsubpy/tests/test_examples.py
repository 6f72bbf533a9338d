"""The scripts of deploy/examples/python, run as programs."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from conftest import Start, proxied

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
