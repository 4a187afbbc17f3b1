"""A small program of one kind of work: program.py NAME ROUNDS."""

import asyncio
import json
import pickle
import re
import sys

RECORDS = [{"name": "record %d" % i, "values": list(range(i % 20)), "of": {"id": i}}
           for i in range(2000)]


def run_json():
    return json.loads(json.dumps(RECORDS))


def run_pickle():
    return pickle.loads(pickle.dumps(RECORDS))


TEXT = " ".join("key%d=value-%d;" % (i, i * 7) for i in range(3000))


def run_re():
    pairs = re.findall(r"(\w+)=([\w-]+);", TEXT)
    return pairs, re.sub(r"value-(\d+)", lambda found: found[1], TEXT)


def run_asyncio():
    async def request(queue, number):
        await queue.put({"number": number, "body": "x" * (number % 300)})
        await asyncio.sleep(0)
        return (await queue.get())["number"]

    async def serve():
        queue = asyncio.Queue()
        return await asyncio.gather(*(request(queue, number) for number in range(2000)))

    return asyncio.run(serve())


if __name__ == "__main__":
    work = globals()["run_" + sys.argv[1]]
    for _ in range(int(sys.argv[2])):
        # The result of the round before is freed after the next one is there.
        kept = work()
