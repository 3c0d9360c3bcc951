"""A session of several layers through the C ABI (include/headwater/headwater.h), by ctypes: the program attends one layer.

Structures are those of HEADWATER_ABI_VERSION 1. What the observer sees becomes the tensors of `headwater attend`, layer
by layer.
"""

import argparse
import ctypes
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_void_p

import numpy as np

F32, SPARSE, SCORE_TYPES, RULES = 0, 0, {"bf16": 0, "f32": 1}, {"h2o": 0, "blocks": 1}


def structure(name, **fields):
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


Shape = structure("Shape", n_layer=c_int64, n_head=c_int64, n_head_kv=c_int64, d_head=c_int64, d_value=c_int64,
                  capacity=c_int64, kv_type=c_int32, reserved=c_int32)
Options = structure("Options", struct_size=c_size_t, batch=c_int64, chunk=c_int64, local=c_int64, heavy=c_int64,
                    clamp=c_int32, dense=c_int32, scale=c_double, softcap=c_double, sinks=c_void_p, alibi=c_void_p,
                    score_type=c_int32, schedule=c_int32, threads=c_int32, reserved=c_int32, row_memory=c_int32,
                    reserved2=c_int32, stream=c_void_p, device_plus_1=c_int32, reserved3=c_int32, select=c_int32,
                    reserved4=c_int32, key_block=c_int64, query_block=c_int64, pool=c_int64, refine=c_int64, pinned=c_int64,
                    dense_below=c_int64, dense_layers=POINTER(c_int64), dense_layer_count=c_int64)
View = structure("View", data=c_void_p, row_stride=c_int64, head_stride=c_int64, type=c_int32, reserved=c_int32)
Record = structure("Record", struct_size=c_size_t, layer=c_int64, begin=c_int64, end=c_int64, mode=c_int32,
                   reserved=c_int32, memory_count=c_int64, memory_stride=c_int64, memory=POINTER(c_int32),
                   colsum_inter=POINTER(c_float), row_stride=c_int64, colsum_intra=POINTER(c_float), lse=POINTER(c_float),
                   query_blocks=c_int64, candidate_blocks=c_int64, block_votes=POINTER(c_float), voted_tokens=c_int64,
                   token_votes=POINTER(c_float))
Observer = ctypes.CFUNCTYPE(None, c_void_p, POINTER(Record))


class Refused(Exception):
    """One line of the library."""


def parsed(flags):
    """The flags of a vector, as generate.py writes them."""
    parser = argparse.ArgumentParser()
    for names in (("-b", "batch"), ("-ub", "chunk"), ("--h2o-local", "local"), ("--h2o-heavy", "heavy"),
                  ("--key-block", "key_block"), ("--query-block", "query_block"), ("--pool", "pool"),
                  ("--refine", "refine"), ("--pinned", "pinned"), ("--dense-below", "dense_below")):
        parser.add_argument(names[0], dest=names[1], type=int)
    parser.add_argument("--score-type", choices=SCORE_TYPES, default="bf16")
    parser.add_argument("--select", choices=RULES, default="h2o")
    parser.add_argument("--dense-layers", type=lambda text: [int(layer) for layer in text.split(",")], default=[])
    parser.add_argument("--steps")
    return parser.parse_args(flags.split())


def array(pointer, *shape):
    return np.ctypeslib.as_array(pointer, shape).copy()


class Layer:
    """What the observer saw of one layer; `width` is M."""

    def __init__(self, heads, kv_heads, n, width):
        self.heads, self.kv_heads, self.width = heads, kv_heads, width
        self.chunk_start, self.memory, self.colsum_inter, self.query_blocks = [], [], [], []
        self.lse, self.colsum_intra = np.zeros((n, heads)), np.zeros((heads, n), dtype=np.float32)
        self.block_sets, self.block_votes, self.token_votes = [], [], []

    def see(self, seen, query_block):
        rows = slice(seen.begin, seen.end)
        length = seen.end - seen.begin
        self.chunk_start.append(seen.begin)
        self.lse[rows] = array(seen.lse, self.heads, seen.row_stride)[:, :length].T
        if seen.query_blocks == 0:
            memory = np.full((self.heads, self.width), -1)
            inter = np.zeros((self.heads, self.width), dtype=np.float32)
            if seen.memory_stride > 0:  # 0: some engines, of a dense chunk
                memory = array(seen.memory, self.heads, seen.memory_stride)
            if seen.mode == SPARSE:
                inter = array(seen.colsum_inter, self.heads, seen.memory_stride)
                self.colsum_intra[:, rows] = array(seen.colsum_intra, self.heads, seen.row_stride)[:, :length]
            self.memory.append(memory)
            self.colsum_inter.append(inter)
            return
        for index in range(seen.query_blocks):
            first = seen.begin + index * query_block
            self.query_blocks.append((first, min(first + query_block, seen.end)))
        sets = self.kv_heads, seen.query_blocks
        self.block_sets += list(array(seen.memory, *sets, seen.memory_stride).transpose(1, 0, 2))
        for to, votes, count in ((self.block_votes, seen.block_votes, seen.candidate_blocks),
                                 (self.token_votes, seen.token_votes, seen.voted_tokens)):
            whole = array(votes, *sets, count) if count else np.zeros((*sets, 0), dtype=np.float32)
            to += list(whole.transpose(1, 0, 2))

    def tensors(self, out, scores, rule):
        result = {"out": out, "lse": self.lse, "scores": scores, "colsum_intra": self.colsum_intra,
                  "chunk_start": np.array(self.chunk_start + [len(out)])}
        if rule == "h2o":
            return {**result, "memory": np.stack(self.memory), "colsum_inter": np.stack(self.colsum_inter)}
        for name in ("block_votes", "token_votes"):
            every = getattr(self, name)
            most = max((votes.shape[1] for votes in every), default=0)
            whole = np.full((len(every), self.kv_heads if every else 0, most), np.nan)
            for votes, to in zip(every, whole):
                to[:, : votes.shape[1]] = votes
            result[name] = whole
        if self.query_blocks:
            result |= {"query_blocks": np.array(self.query_blocks), "block_sets": np.stack(self.block_sets)}
        return result


class Library:
    def __init__(self, path):
        self.calls = ctypes.CDLL(path)
        self.calls.headwater_last_error.restype = c_char_p

    def call(self, name, *arguments):
        if getattr(self.calls, f"headwater_{name}")(*arguments) != 0:
            raise Refused(self.calls.headwater_last_error().decode())

    def run(self, values, flags, engine):
        """One result for each layer of a vector of F32 rows [layers, n, heads, width]."""
        asked = parsed(flags)
        layers, n, heads, d = values["q"].shape
        kv_heads, dv = values["v"].shape[2:]
        shape = Shape(layers, heads, kv_heads, d, dv, n, F32, 0)
        options = Options()
        self.call("options_init", byref(options), c_size_t(ctypes.sizeof(options)))
        for name, _ in Options._fields_:
            if isinstance(getattr(asked, name, None), int):
                setattr(options, name, getattr(asked, name))
        options.score_type, options.select = SCORE_TYPES[asked.score_type], RULES[asked.select]
        options.dense_layers = (c_int64 * len(asked.dense_layers))(*asked.dense_layers)
        options.dense_layer_count = len(asked.dense_layers)
        session = c_void_p()
        self.call("open", engine.encode(), byref(shape), byref(options), byref(session))
        width = asked.local + asked.heavy  # less than the chunk: nothing is clamped
        seen = [Layer(heads, kv_heads, n, width) for _ in range(layers)]
        observer = Observer(lambda _, record: seen[record[0].layer].see(record[0], options.query_block))
        rows = {name: np.ascontiguousarray(values[name], dtype=np.float32) for name in "qkv"}
        rows["out"] = np.zeros((layers, n, heads, dv), dtype=np.float32)
        scores = np.zeros((layers, heads, n), dtype=np.float32)
        try:
            self.call("set_observer", session, observer, None)
            base = 0
            for step in asked.steps.split(","):
                length, _, turn = step[1:].partition(":")
                if step[0] == "p":
                    self.call("begin_prefill", session, c_int64(int(length)), c_int64(int(turn or 0)))
                else:
                    self.call("begin_decode", session, c_int64(int(length)))
                for layer in range(layers):
                    views = [View(part[layer, base:].ctypes.data, part.shape[2] * part.shape[3], part.shape[3], F32, 0)
                             for part in rows.values()]
                    self.call("attend", session, c_int64(layer), *(byref(view) for view in views))
                self.call("end", session)
                base += int(length)
            for layer in range(layers):
                for head in range(heads):
                    into = scores[layer, head].ctypes.data_as(c_void_p)
                    self.call("copy_scores", session, c_int64(layer), c_int64(head), c_int64(0), c_int64(n), into)
        finally:
            self.calls.headwater_close(session)
        return [seen[layer].tensors(rows["out"][layer], scores[layer], asked.select) for layer in range(layers)]
