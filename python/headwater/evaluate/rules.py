"""The rules that are compared, at one chunk and one size of memory set (docs/spec.md: S, and M = L + H)."""

KEY_BLOCK, QUERY_BLOCK, POOL, BATCH = 8, 32, 4, 4096  # defaults of docs/spec.md
NEWEST = 32  # L of rule blocks, as `headwater generate` has it
NAMES = ("dense", "h2o", "window", "blocks")


class Rule:
    """name, and the options of a session by keyword."""

    def __init__(self, name, chunk, memory):
        """Errors: ValueError."""
        if name not in NAMES:
            raise ValueError(f"rule {name!r} is not known; allowed: {', '.join(NAMES)}")
        if chunk < QUERY_BLOCK or chunk % KEY_BLOCK != 0:
            raise ValueError(f"the chunk is {chunk}; allowed: a multiple of {KEY_BLOCK}, {QUERY_BLOCK} or more")
        if not 2 * KEY_BLOCK <= memory < chunk or memory % KEY_BLOCK != 0:
            raise ValueError(f"the memory is {memory}; allowed: a multiple of {KEY_BLOCK}, {2 * KEY_BLOCK} or more and below "
                             f"the chunk, {chunk}")
        self.name = name
        if name == "dense":
            self.options = {"dense": True}
        elif name == "h2o":
            self.options = {"select": "h2o", "local": memory // 2, "heavy": memory - memory // 2}
        elif name == "window":  # key blocks of one key, so that Local begins where it should (SEL-2); nothing is chosen
            self.options = {"select": "blocks", "local": memory, "heavy": 0, "key_block": 1, "query_block": chunk,
                            "pool": chunk, "refine": 1}
        else:
            local = min(NEWEST, memory // 2 // KEY_BLOCK * KEY_BLOCK)
            self.options = {"select": "blocks", "local": local, "heavy": memory - local}
        self.options["chunk"] = chunk


def block_ends(tokens, chunk):
    """Positions of a sparse prefill of `tokens` tokens that are the last of a query block, those of the first chunk left out.

    Rule `blocks` looks ahead inside a query block (SEL-10): the loss of the token after it is the one that it cannot have seen.
    """
    ends, batch = [], max(BATCH, chunk)
    for first in range(0, tokens, batch):  # PLAN-1
        last = min(first + batch, tokens)
        for begin in range(first, last, chunk):
            end = min(begin + chunk, last)
            if begin > 0:
                ends += [at - 1 for at in (*range(begin + QUERY_BLOCK, end, QUERY_BLOCK), end)]
    return ends
