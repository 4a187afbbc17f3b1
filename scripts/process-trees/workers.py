"""Starts four processes, by fork or spawn: workers.py METHOD. Each holds memory of its own."""

import multiprocessing
import sys

WORKERS = 4


def work(ready):
    # An object of 1024 bytes, with the 33 of its head.
    mine = [bytes(991) for _ in range(8000)]  # holds 8192000
    ready.wait()
    return mine


if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    data = [bytes(1 << 20) for _ in range(50)]  # holds 52428800
    ready = context.Barrier(WORKERS)
    workers = [context.Process(target=work, args=(ready,)) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    sys.exit(any(worker.exitcode for worker in workers))
