"""Works on a job and publishes its progress: python worker.py TOPIC [SERVER]"""

import asyncio
import sys

from pubsubpy import Client

STEPS = ["read the orders", "check the stock", "plan the routes", "print the labels", "write the report"]


async def main(topic: str, server: str = "http://127.0.0.1:8080") -> None:
    async with Client(server) as client:
        for done in range(0, 101, 5):
            step = STEPS[min(done // 20, len(STEPS) - 1)]
            # While the server is away, publish waits. It never publishes twice.
            await client.publish(topic, {"done": done, "step": step})
            await asyncio.sleep(0.2)


asyncio.run(main(*sys.argv[1:]))
