"""Shows the progress of a job until it is done: python follow.py TOPIC [SERVER]"""

import asyncio
import sys

from pubsubpy import Client, Gap, State


def show(state: State) -> None:
    if state.name == "waiting":
        print(f"Offline, next attempt in {state.wait:.1f} s", file=sys.stderr)


async def main(topic: str, server: str = "http://127.0.0.1:8080") -> None:
    async with Client(server, on_state=show) as client:
        async for item in client.subscribe(topic, from_="oldest"):
            if isinstance(item, Gap):
                print(f"Some progress may be missing here ({item.reason}).")
                continue
            done = item.data["done"]
            print(f"[{'#' * (done // 5):20}] {done:3} %  {item.data['step']}")
            if done == 100:
                return


asyncio.run(main(*sys.argv[1:]))
