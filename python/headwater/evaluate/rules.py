"""The rules that are compared, at one chunk and one size of memory set (docs/spec.md: S, and M = L + H)."""

from .._options import RULES_WITH

KEY_BLOCK, QUERY_BLOCK, POOL, BATCH = 8, 32, 4, 4096  # defaults of docs/spec.md
NEWEST = 32  # L of rules blocks and sketches, as `headwater generate` has it
PINNED = 8   # first tokens of every set by default, with them and with windows
NAMES = ("dense", "h2o", "window", "blocks", "sketches")
DEFAULTS = ("dense", "h2o", "window", "sketches")  # compared where nothing is said


class Rule:
    """name, and the options of a session by keyword.

    pinned: first tokens that every set keeps, out of `memory`; None: 8, in whole key blocks, and 0 with h2o. sizes: by
    keyword, read by the rules that have them; None: the library's own.
    """

    def __init__(self, name, chunk, memory, *, pinned=None, **sizes):
        """Errors: ValueError."""
        sizes = {size: value for size, value in sizes.items() if value is not None}
        key_block, query_block = sizes.get("key_block", KEY_BLOCK), sizes.get("query_block", QUERY_BLOCK)
        pool = sizes.get("pool", POOL)
        if name not in NAMES:
            raise ValueError(f"rule {name!r} is not known; allowed: {', '.join(NAMES)}")
        if chunk < query_block or chunk % key_block != 0:
            raise ValueError(f"the chunk is {chunk}; allowed: a multiple of {key_block}, {query_block} or more")
        if not 2 * key_block <= memory < chunk or memory % key_block != 0:
            raise ValueError(f"the memory is {memory}; allowed: a multiple of {key_block}, {2 * key_block} or more and below "
                             f"the chunk, {chunk}")
        if query_block % pool != 0:
            raise ValueError(f"the pool is {pool}; allowed: what divides the query block, {query_block}")
        local = min(NEWEST, memory // 2 // key_block * key_block)  # of rules blocks and sketches, which have the most to choose
        most = memory // 2
        if pinned is None:
            pinned = 0 if name == "h2o" else min(-(-PINNED // key_block), most // key_block) * key_block
        if pinned % key_block != 0 or pinned > most:
            raise ValueError(f"pinned is {pinned}; allowed: 0 .. {most}, half of the memory, a multiple of {key_block}")
        self.name = name
        if name == "dense":
            self.options = {"dense": True}
        elif name == "h2o":
            self.options = {"select": "h2o", "local": memory // 2, "heavy": memory - memory // 2}
        elif name == "window":  # key blocks of one key, so that Local begins where it should (SEL-2); nothing is chosen
            self.options = {"select": "blocks", "local": memory - pinned, "heavy": pinned, "key_block": 1,
                            "query_block": chunk, "pool": chunk, "refine": 1}
        else:
            self.options = {"select": name, "local": local, "heavy": memory - local,
                            **{size: value for size, value in sizes.items() if name in RULES_WITH[size]}}
        if name != "dense":
            self.options["pinned"] = pinned
        self.options["chunk"] = chunk


def block_ends(tokens, chunk, query_block=QUERY_BLOCK):
    """Positions of a sparse prefill of `tokens` tokens that are the last of a query block, those of the first chunk left out.

    Rules `blocks` and `sketches` look ahead inside a query block (SEL-10): the loss of the token after it is the one that they
    cannot have seen.
    """
    ends, batch = [], max(BATCH, chunk)
    for first in range(0, tokens, batch):  # PLAN-1
        last = min(first + batch, tokens)
        for begin in range(first, last, chunk):
            end = min(begin + chunk, last)
            if begin > 0:
                ends += [at - 1 for at in (*range(begin + query_block, end, query_block), end)]
    return ends
