"""Headwater through its C ABI: sessions of one layer on numpy or torch memory."""

import ctypes as c

F32, F16, BF16 = 0, 1, 2


class Shape(c.Structure):
    _fields_ = [("n_layer", c.c_int64), ("n_head", c.c_int64), ("n_head_kv", c.c_int64), ("d_head", c.c_int64),
                ("d_value", c.c_int64), ("capacity", c.c_int64), ("kv_type", c.c_int32), ("reserved", c.c_int32)]


class Options(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("batch", c.c_int64), ("chunk", c.c_int64), ("local", c.c_int64),
                ("heavy", c.c_int64), ("clamp", c.c_int32), ("dense", c.c_int32), ("scale", c.c_double),
                ("softcap", c.c_double), ("sinks", c.c_void_p), ("alibi", c.c_void_p), ("score_type", c.c_int32),
                ("schedule", c.c_int32), ("threads", c.c_int32), ("reserved", c.c_int32)]


class Rows(c.Structure):
    _fields_ = [("data", c.c_void_p), ("row_stride", c.c_int64), ("head_stride", c.c_int64), ("type", c.c_int32),
                ("reserved", c.c_int32)]


class Chunk(c.Structure):
    _fields_ = [("begin", c.c_int64), ("end", c.c_int64), ("mode", c.c_int32), ("reserved", c.c_int32)]


class Record(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("layer", c.c_int64), ("chunk", Chunk), ("memory_count", c.c_int64),
                ("memory_stride", c.c_int64), ("memory", c.POINTER(c.c_int32)), ("colsum_inter", c.c_void_p),
                ("row_stride", c.c_int64), ("colsum_intra", c.c_void_p), ("lse", c.c_void_p)]


OBSERVER = c.CFUNCTYPE(None, c.c_void_p, c.POINTER(Record))


class Library:
    def __init__(self, path):
        self.abi = c.CDLL(str(path))
        self.abi.headwater_last_error.restype = c.c_char_p
        self.abi.headwater_version.restype = c.c_char_p
        self.abi.headwater_close.restype = None
        for name in ("name", "isa", "unavailable_because"):
            getattr(self.abi, f"headwater_engine_{name}").restype = c.c_char_p

    def check(self, status):
        if status != 0:
            raise RuntimeError(f"headwater: {self.abi.headwater_last_error().decode()}")

    def engines(self):
        """{name: instruction set} of those that run here."""
        found = {}
        for index in range(self.abi.headwater_engine_count()):
            if not self.abi.headwater_engine_unavailable_because(index):
                found[self.abi.headwater_engine_name(index).decode()] = self.abi.headwater_engine_isa(index).decode()
        return found


class Session:
    """One layer of `tokens` tokens. Rows are addresses of contiguous [tokens, heads, d] in one type."""

    def __init__(self, library, engine, tokens, heads, heads_kv, width, kind, threads, dense):
        self.library, self.tokens, self.heads, self.heads_kv = library, tokens, heads, heads_kv
        self.width, self.kind, self.handle = width, kind, c.c_void_p()
        shape = Shape(1, heads, heads_kv, width, width, tokens, kind, 0)
        options = Options()
        library.check(library.abi.headwater_options_init(c.byref(options), c.c_size_t(c.sizeof(Options))))
        options.threads, options.dense = threads, int(dense)
        library.check(library.abi.headwater_open(engine.encode(), c.byref(shape), c.byref(options), c.byref(self.handle)))

    def close(self):
        self.library.abi.headwater_close(self.handle)
        self.handle = c.c_void_p()

    def rows(self, address, heads):
        return Rows(address, heads * self.width, self.width, self.kind, 0)

    def prefill(self, q, k, v, out):
        abi, check = self.library.abi, self.library.check
        views = [self.rows(address, heads)
                 for address, heads in ((q, self.heads), (k, self.heads_kv), (v, self.heads_kv), (out, self.heads))]
        check(abi.headwater_reset(self.handle))
        check(abi.headwater_begin_prefill(self.handle, c.c_int64(self.tokens), c.c_int64(0)))
        check(abi.headwater_attend(self.handle, c.c_int64(0), *(c.byref(view) for view in views)))
        check(abi.headwater_end(self.handle))

    def observed_prefill(self, *addresses):
        """Runs it once; returns [(begin, end, dense?, sets [heads][count])] of its chunks."""
        chunks = []

        def observe(_, pointer):
            record = pointer.contents
            sets = [[record.memory[h * record.memory_stride + i] for i in range(record.memory_count)]
                    for h in range(self.heads)]
            chunks.append((record.chunk.begin, record.chunk.end, record.chunk.mode != 0, sets))

        callback = OBSERVER(observe)
        self.library.check(self.library.abi.headwater_set_observer(self.handle, callback, None))
        try:
            self.prefill(*addresses)
        finally:
            self.library.check(self.library.abi.headwater_set_observer(self.handle, OBSERVER(), None))
        return chunks
