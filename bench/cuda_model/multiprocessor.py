"""A multiprocessor in time: warpgroups that walk through their programs and share its pipes, its tensor cores, its barriers
and its copies. Steps of a few cycles; no randomness.

A program is a list of steps:

    ("work", {"issue": .., "mufu": ..})   cycles on pipes of a sub-processor; as fast as its busiest pipe lets it
    ("product", cycles)                   enters the tensor cores' queue; does not wait
    ("products", n)                       waits until at most n groups are on their way
    ("commit",)                           closes a group of products
    ("full", ring), ("free", ring)        waits for the next stage of a ring; gives the oldest one back
    ("ask", bytes), ("asked",)            loads on their way together, by the path of copies; waits for the last
    ("arrive", name), ("await", name)     one token to name; takes one from it
    ("meet", name)                        waits for all warpgroups
"""

import limits

STEP = 4  # cycles


class Ring:
    """Stages filled in order by copies; `loader` says who may copy when."""

    def __init__(self, stages, bytes_each, order=0):
        self.stages, self.bytes, self.order = stages, bytes_each, order
        self.started = 0
        self.arrivals = []  # time of each fill
        self.freed = []     # per consumer, stages given back


class Agent:
    def __init__(self, index, program):
        self.index, self.program = index, program
        self.at = 0
        self.left = None     # of the work in hand, as a share
        self.groups = []     # finish times of committed groups; None while unknown
        self.open = []       # products of the open group
        self.taken = {}      # ring -> stages waited for
        self.marks = []      # time of each pass of ("mark",)
        self.asked_until = 0.0


class Multiprocessor:
    def __init__(self, programs, rings):
        self.time = 0.0
        self.agents = [Agent(i, p) for i, p in enumerate(programs)]
        self.rings = rings
        for ring in rings.values():
            ring.freed = [0] * len(programs)
        self.queue = []          # products: [cycles left, finished]
        self.tokens = {}
        self.meetings = {}
        self.copy_free = 0.0     # when the copy path is free
        self.busy = {}

    def run(self, limit=10**7):
        while any(a.at < len(a.program) for a in self.agents):
            self.start_copies()
            working = [a for a in self.agents if self.advance(a)]
            self.share(working)
            self.multiply()
            self.time += STEP
            if self.time > limit:
                raise RuntimeError("the model's warpgroups wait for each other")
        return self.time

    def start_copies(self):
        for ring in self.rings.values():
            while ring.started < ring.stages + min(ring.freed):
                begin = max(self.time, self.copy_free)
                if begin > self.time:
                    break
                self.copy_free = begin + ring.bytes / limits.L2_BYTES_PER_CYCLE
                ring.arrivals.append(self.copy_free + limits.COPY_LATENCY)
                ring.started += 1
                break  # the next ring's turn

    def advance(self, agent):
        """Steps that take no time; true where the agent then has work in hand."""
        while agent.at < len(agent.program):
            step = agent.program[agent.at]
            kind = step[0]
            if kind == "work":
                if agent.left is None:
                    agent.left = 1.0
                return True
            if not getattr(self, "do_" + kind)(agent, *step[1:]):
                return False
            agent.at += 1
        return False

    def do_product(self, agent, cycles):
        entry = [float(cycles), None]
        self.queue.append(entry)
        agent.open.append(entry)
        return True

    def do_commit(self, agent):
        agent.groups.append(agent.open)
        agent.open = []
        return True

    def do_products(self, agent, pending):
        due = agent.groups[:len(agent.groups) - pending] if pending else agent.groups
        return all(finished is not None and finished <= self.time for group in due for _, finished in group)

    def do_full(self, agent, name):
        ring = self.rings[name]
        wanted = agent.taken.get(name, 0)
        if wanted >= len(ring.arrivals) or ring.arrivals[wanted] > self.time:
            return False
        agent.taken[name] = wanted + 1
        return True

    def do_ask(self, agent, count):
        self.copy_free = max(self.time, self.copy_free) + count / limits.L2_BYTES_PER_CYCLE
        agent.asked_until = self.copy_free + limits.COPY_LATENCY
        return True

    def do_asked(self, agent):
        return agent.asked_until <= self.time

    def do_free(self, agent, name):
        self.rings[name].freed[agent.index] += 1
        return True

    def do_arrive(self, _, name):
        self.tokens.setdefault(name, []).append(self.time + limits.BARRIER_LATENCY)
        return True

    def do_await(self, _, name):
        if not self.tokens.get(name) or self.tokens[name][0] > self.time:
            return False
        self.tokens[name].pop(0)
        return True

    def do_meet(self, agent, name):
        times = self.meetings.setdefault(name, [[] for _ in self.agents])
        mine = times[agent.index]
        if not hasattr(agent, "meeting"):
            mine.append(self.time)
            agent.meeting = len(mine) - 1
        if any(len(t) <= agent.meeting for t in times):
            return False
        if max(t[agent.meeting] for t in times) + limits.BARRIER_LATENCY > self.time:
            return False
        del agent.meeting
        return True

    def do_mark(self, agent):
        agent.marks.append(self.time)
        return True

    def share(self, working):
        """Lets every agent progress by the same share of its own speed that the busiest pipe allows."""
        if not working:
            return
        wish = {}
        for agent in working:
            work = agent.program[agent.at][1]
            wish[agent] = min(agent.left, STEP / max(work.values()))
        demand = {}
        for agent, share in wish.items():
            for pipe, cycles in agent.program[agent.at][1].items():
                demand[pipe] = demand.get(pipe, 0.0) + share * cycles
        factor = min(1.0, *(STEP / cycles for cycles in demand.values() if cycles > 0))
        for pipe, cycles in demand.items():
            self.busy[pipe] = self.busy.get(pipe, 0.0) + factor * cycles
        for agent, share in wish.items():
            agent.left -= factor * share
            if agent.left < 1e-9:
                agent.left = None
                agent.at += 1

    def multiply(self):
        room = float(STEP)
        while self.queue and room > 0:
            entry = self.queue[0]
            done = min(room, entry[0])
            entry[0] -= done
            room -= done
            self.busy["tensor"] = self.busy.get("tensor", 0.0) + done
            if entry[0] <= 0:
                entry[1] = self.time + STEP - room + limits.PRODUCT_LATENCY
                self.queue.pop(0)
