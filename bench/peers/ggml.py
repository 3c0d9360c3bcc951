"""llama.cpp's CPU attention: ggml's flash_attn_ext with the mask that llama.cpp gives it."""

import ctypes as c

import numpy as np

F32, F16 = 0, 1
OVERHEAD = 1 << 22  # graph and tensor headers


class InitParams(c.Structure):
    _fields_ = [("mem_size", c.c_size_t), ("mem_buffer", c.c_void_p), ("no_alloc", c.c_bool)]


class Plan(c.Structure):
    # The library writes its own, shorter structure; room after it in case another version's is longer.
    _fields_ = [("work_size", c.c_size_t), ("work_data", c.c_void_p), ("n_threads", c.c_int), ("threadpool", c.c_void_p),
                ("abort_callback", c.c_void_p), ("abort_data", c.c_void_p), ("use_ref", c.c_bool), ("room", c.c_char * 256)]


class Library:
    def __init__(self, build):
        found = {path.name: path for path in build.glob("**/libggml*.so")}
        self.base = c.CDLL(str(found["libggml-base.so"]), mode=c.RTLD_GLOBAL)
        self.cpu = c.CDLL(str(found["libggml-cpu.so"]))
        for library, names in ((self.base, ("ggml_init", "ggml_new_tensor_4d", "ggml_flash_attn_ext", "ggml_new_graph",
                                            "ggml_get_data")),):
            for name in names:
                getattr(library, name).restype = c.c_void_p
        self.base.ggml_init.argtypes = [InitParams]
        self.base.ggml_free.argtypes = [c.c_void_p]
        self.base.ggml_free.restype = None
        self.base.ggml_build_forward_expand.argtypes = [c.c_void_p, c.c_void_p]
        self.base.ggml_build_forward_expand.restype = None
        self.cpu.ggml_graph_plan.argtypes = [c.c_void_p, c.c_int, c.c_void_p]
        self.cpu.ggml_graph_plan.restype = Plan
        self.cpu.ggml_graph_compute.argtypes = [c.c_void_p, c.POINTER(Plan)]
        self.cpu.ggml_cpu_init()


class Attention:
    """q, k, v: float32 arrays [tokens, heads, width]; K and V are kept in F16, as llama.cpp does by default."""

    def __init__(self, library, q, k, v, threads):
        self.library, self.threads = library, threads
        tokens, heads, width = q.shape
        size = 4 * q.size + 2 * (k.size + v.size) + 2 * tokens * tokens + 4 * q.size + OVERHEAD
        self.context = library.base.ggml_init(InitParams(size, None, False))
        if not self.context:
            raise RuntimeError(f"ggml: no memory for {size} bytes")
        # ggml's first dimension is the contiguous one: [width, tokens, heads].
        tensors = [self.tensor(F32, np.ascontiguousarray(q.transpose(1, 0, 2)))]
        tensors += [self.tensor(F16, np.ascontiguousarray(x.transpose(1, 0, 2)).astype(np.float16)) for x in (k, v)]
        mask = np.triu(np.full((tokens, tokens), -np.inf, dtype=np.float16), 1)
        tensors.append(self.tensor(F16, mask[None]))
        del mask
        self.out = c.c_void_p(library.base.ggml_flash_attn_ext(
            c.c_void_p(self.context), *tensors, c.c_float(width**-0.5), c.c_float(0), c.c_float(0)))
        self.graph = c.c_void_p(library.base.ggml_new_graph(c.c_void_p(self.context)))
        library.base.ggml_build_forward_expand(self.graph, self.out)
        self.plan = library.cpu.ggml_graph_plan(self.graph, threads, None)
        self.work = c.create_string_buffer(self.plan.work_size + 64)
        self.plan.work_data = (c.addressof(self.work) + 63) & ~63
        self.shape = (tokens, heads, width)

    def tensor(self, kind, array):
        heads, rows, width = array.shape
        tensor = c.c_void_p(self.library.base.ggml_new_tensor_4d(
            c.c_void_p(self.context), c.c_int(kind), *(c.c_int64(n) for n in (width, rows, heads, 1))))
        c.memmove(self.library.base.ggml_get_data(tensor), array.ctypes.data, array.nbytes)
        return tensor

    def run(self):
        if self.library.cpu.ggml_graph_compute(self.graph, c.byref(self.plan)) != 0:
            raise RuntimeError("ggml: the graph could not be computed")

    def output(self):
        """[tokens, heads, width]"""
        tokens, heads, width = self.shape
        data = c.cast(self.library.base.ggml_get_data(self.out), c.POINTER(c.c_float))
        return np.ctypeslib.as_array(data, (tokens, heads, width)).copy()

    def close(self):
        self.library.base.ggml_free(c.c_void_p(self.context))
