"""A window of a sparse layer in time: the launches of its graph (adr/0018), each as soon as what it waits for is done, block by
block on multiprocessors that have room for one block of a kernel of sm_90a at a time.

A launch that is ready takes multiprocessors as they come free; nothing is taken from a block that runs. Launches of the
chain that the next chunk's memory set waits for have the higher priority.
"""

import heapq


class Launch:
    def __init__(self, stage, blocks, waits_for=(), urgent=False):
        """`blocks`: microseconds of each block, in the order in which they are handed out."""
        self.stage, self.blocks, self.waits_for, self.urgent = stage, list(blocks), list(waits_for), urgent


def window(chunks, together, first, stages, gathered_sets):
    """Launches of a window of `chunks` chunks: a stream for the intra passes of `together` chunks at a time, one for the
    chain, one for the outputs. `first`: the window begins with the session's first chunk, which has no memory set.
    `stages`: stage -> blocks."""
    beside, chain, behind, outputs, launches = [], [], [], {}, []

    def put(stream, stage, waits_for=(), urgent=False):
        launch = Launch(stage, stages[stage], [*stream[-1:], *waits_for], urgent)
        stream.append(launch)
        launches.append(launch)
        return launch

    sums = []
    for _ in range(0, chunks, together):
        put(beside, "intra forward")
        sums += [put(beside, "column sums")] * together
    for chunk in range(1 if first else 0, chunks):
        put(chain, "selection", sums[chunk - 1:chunk] if chunk else (), urgent=True)
        before = [outputs[chunk - gathered_sets]] if chunk - gathered_sets in outputs else []
        gather = put(chain, "gather", before, urgent=True)
        put(chain, "score", urgent=True)
        outputs[chunk] = put(behind, "inter output", [gather, sums[chunk]])
    return launches


def finish(launches, multiprocessors, latency):
    """Microseconds until the last block is done; `latency` from the end of what a launch waits for to its first block."""
    ready_at, left, done = {}, {}, {}
    waiting = list(launches)
    running = []  # (end, number, launch)
    free, now, number = multiprocessors, 0.0, 0
    next_block = {id(launch): 0 for launch in launches}
    for launch in launches:
        left[id(launch)] = len(launch.blocks)
    while waiting or running:
        for launch in waiting:
            if id(launch) not in ready_at and all(id(other) in done for other in launch.waits_for):
                begun = max([done[id(other)] for other in launch.waits_for], default=0.0)
                ready_at[id(launch)] = begun + (latency if launch.waits_for else 0.0)
        ready = sorted((launch for launch in waiting if ready_at.get(id(launch), now + 1) <= now),
                       key=lambda launch: (not launch.urgent, ready_at[id(launch)]))
        for launch in ready:
            while free and next_block[id(launch)] < len(launch.blocks):
                number += 1
                heapq.heappush(running, (now + launch.blocks[next_block[id(launch)]], number, launch))
                next_block[id(launch)] += 1
                free -= 1
            if next_block[id(launch)] == len(launch.blocks):
                waiting.remove(launch)
        coming = [at for launch in waiting if (at := ready_at.get(id(launch))) is not None and at > now]
        times = coming + ([running[0][0]] if running else [])
        if not times:
            raise RuntimeError("launches wait for each other")
        now = min(times)
        while running and running[0][0] <= now:
            _, _, launch = heapq.heappop(running)
            free += 1
            left[id(launch)] -= 1
            if left[id(launch)] == 0:
                done[id(launch)] = now
    return now
