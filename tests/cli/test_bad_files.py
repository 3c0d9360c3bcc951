"""Hostile input files: each is one line on standard error, exit status 2, and leaves nothing behind."""

import json
import math
import os
import struct
import unittest

from support import ProgramTest, Tensor, encode, file_of, header_of, problem, safetensors


def body(tensors):
    return b"".join(tensor.data for tensor in tensors.values())


class Shapes(ProgramTest):
    def test_query_heads_no_multiple_of_key_heads(self):
        self.refuse(problem(heads=5, heads_kv=2), "Hq = 5", "Hkv = 2", "multiple")

    def test_fewer_query_heads_than_key_heads(self):
        self.refuse(problem(heads=2, heads_kv=4), "Hq = 2", "Hkv = 4")

    def test_lengths_differ(self):
        for name, lengths in (("q", "39, 40 and 40"), ("k", "40, 39 and 40"), ("v", "40, 40 and 39")):
            self.refuse(problem() | {name: problem(n=39)[name]}, "'q', 'k' and 'v'", lengths)

    def test_key_and_value_heads_differ(self):
        tensors = problem()
        tensors["v"] = problem(heads_kv=4)["v"]
        self.refuse(tensors, "'k'", "'v'", "Hkv", "2 and 4")

    def test_widths_differ(self):
        tensors = problem()
        tensors["k"] = problem(d=7)["k"]
        self.refuse(tensors, "'q'", "'k'", "width", "8 and 7")

    def test_zero_sizes(self):
        for name, shape in (("q", [0, 4, 8]), ("q", [40, 0, 8]), ("q", [40, 4, 0]), ("k", [40, 0, 8]),
                            ("k", [40, 2, 0]), ("v", [0, 2, 6]), ("v", [40, 2, 0])):
            self.refuse(problem() | {name: Tensor("F32", shape, data=b"")}, f"'{name}'", "= 0", "allowed are 1 to")
        empty = {name: Tensor("F32", [0, 1, 4], data=b"") for name in "qkv"}
        self.refuse(empty, "'q'", "n = 0")

    def test_dimensions(self):
        tensors = problem()
        flat = Tensor("F32", [40 * 4 * 8], data=tensors["q"].data)
        self.refuse(tensors | {"q": flat}, "'q'", "[1280]", "1 dimensions", "[n, Hq, d]")
        deep = Tensor("F32", [1, 40, 4, 8], data=tensors["q"].data)
        self.refuse(tensors | {"q": deep}, "'q'", "4 dimensions")
        self.refuse(tensors | {"v": Tensor("F32", [], data=b"abcd")}, "'v'", "0 dimensions")

    def test_limits(self):
        # 65537 heads of one element; then rows of 65537 elements.
        self.refuse(problem(n=1, heads=65537, heads_kv=1, d=1, dv=1), "'q'", "Hq = 65537", "65536")
        self.refuse(problem(n=1, heads=1, heads_kv=1, d=65537, dv=1), "'q'", "d = 65537", "65536")

    def test_more_tokens_than_positions(self):
        # A sparse file: 2^31 tokens of one element, whose data nobody reads.
        n = 2**31
        header = {name: {"dtype": "F16", "shape": [n, 1, 1], "data_offsets": [2 * n * i, 2 * n * (i + 1)]}
                  for i, name in enumerate("qkv")}
        path = self.put(file_of(header, b""))
        os.truncate(path, os.path.getsize(path) + 6 * n)
        done = self.run_program("attend", path, "-o", self.path("out.safetensors"))
        self.assert_refused(done, "'q'", f"n = {n}", str(2**31 - 1))
        self.assertEqual(os.listdir(self.directory), ["in.safetensors"])

    def test_small_input_with_a_huge_output(self):
        # 65536 query heads with value rows of 65536 floats: 16 GiB for each token, from 400 kB of input.
        n = 64
        data = problem(n=1, heads=65536, heads_kv=1, d=1, dv=65536, dtype="F16")
        tensors = {name: Tensor("F16", [n, *tensor.shape[1:]], data=tensor.data * n) for name, tensor in data.items()}
        self.refuse(tensors, "memory", "64 tokens", "65536")


class Types(ProgramTest):
    def test_type_that_attention_does_not_take(self):
        for dtype, size in (("F64", 8), ("I32", 4), ("U8", 1), ("F8_E4M3", 1), ("BOOL", 1)):
            tensors = problem()
            shape = tensors["k"].shape
            tensors["k"] = Tensor(dtype, shape, data=bytes(size * math.prod(shape)))
            self.refuse(tensors, "'k'", dtype, "F32, F16 or BF16")

    def test_unknown_type(self):
        for name in ("F31", "", "f32", "BF16 "):
            header = header_of(problem())
            header["v"]["dtype"] = name
            self.refuse(file_of(header, body(problem())), "'v'", f"'{name}'", "BF16")

    def test_key_and_value_types_differ(self):
        tensors = problem()
        tensors["v"] = problem(dtype="BF16")["v"]
        self.refuse(tensors, "'k'", "'v'", "F32 and BF16")


class PerHead(ProgramTest):
    def test_type_and_shape(self):
        for name in ("sinks", "alibi"):
            self.refuse(problem(**{name: Tensor("BF16", [4], [0.0] * 4)}), f"'{name}'", "BF16", "F32")
            self.refuse(problem(**{name: Tensor("F32", [2], [0.0] * 2)}), f"'{name}'", "[2]", "[4]")
            self.refuse(problem(**{name: Tensor("F32", [4, 1], [0.0] * 4)}), f"'{name}'", "[4, 1]")
            self.refuse(problem(**{name: Tensor("F32", [], [0.0])}), f"'{name}'", "[]")

    def test_values(self):
        for name, value in (("sinks", math.nan), ("sinks", math.inf), ("alibi", math.nan), ("alibi", math.inf),
                            ("alibi", -math.inf)):
            self.refuse(problem(**{name: Tensor("F32", [4], [0.0, 1.0, value, 0.0])}), f"'{name}'", "head 2",
                        "finite")


class Missing(ProgramTest):
    def test_missing_tensor(self):
        for name in "qkv":
            tensors = problem()
            del tensors[name]
            self.refuse(tensors, f"no tensor '{name}'")
        self.refuse(file_of({}, b""), "no tensor 'q'")

    def test_name_in_other_case(self):
        tensors = problem()
        tensors["K"] = tensors.pop("k")
        self.refuse(tensors, "no tensor 'k'")


class Container(ProgramTest):
    def test_no_safetensors_file(self):
        self.refuse(b"", "empty")
        self.refuse(b"abc", "3 bytes")
        self.refuse(bytes(8), "begins with")
        self.refuse(b"GGUF" + bytes(100), "header")

    def test_header_length(self):
        for length in (2**60, 2**63, 2**64 - 1, 10**8 + 1, 1000):
            self.refuse(struct.pack("<Q", length) + b"{}", str(length), "2 bytes follow")

    def test_header_beyond_the_limit(self):
        path = self.put(struct.pack("<Q", 10**8 + 1) + b"{")
        os.truncate(path, 10**8 + 100)
        done = self.run_program("attend", path, "-o", self.path("out.safetensors"))
        self.assert_refused(done, "100000001", "100000000")

    def test_truncated(self):
        data = safetensors(problem())
        for cut in (1, 100, 1000):
            self.refuse(data[:-cut], "data")
        self.refuse(data[:60], "header")
        self.refuse(data[:7], "7 bytes")

    def test_data_behind_the_tensors(self):
        self.refuse(safetensors(problem()) + b"\0", "bytes of data")

    def test_overlap(self):
        tensors = problem(dv=8)
        header = header_of(tensors)
        header["v"]["data_offsets"] = header["k"]["data_offsets"]
        self.refuse(file_of(header, tensors["q"].data + tensors["k"].data), "overlap", "'v'")
        header["v"]["data_offsets"] = [at + 4 for at in header["k"]["data_offsets"]]
        self.refuse(file_of(header, tensors["q"].data + tensors["k"].data + bytes(4)), "overlap", "'v'")

    def test_overlap_of_one_element(self):
        tensors = problem()
        header = header_of(tensors)
        header["v"]["data_offsets"] = [at - 4 for at in header["v"]["data_offsets"]]
        self.refuse(file_of(header, body(tensors)[:-4]), "overlap", "'v'")

    def test_hole(self):
        tensors = problem()
        header = header_of(tensors)
        header["v"]["data_offsets"] = [at + 8 for at in header["v"]["data_offsets"]]
        data = tensors["q"].data + tensors["k"].data + bytes(8) + tensors["v"].data
        self.refuse(file_of(header, data), "hole of 8 bytes", "'v'")

    def test_offsets_out_of_range(self):
        for offsets in ([0, 2**62], [2**62, 2**62 + 5120], [5120, 0], [2**64 - 5120, 2**64 - 1]):
            header = header_of(problem())
            header["q"]["data_offsets"] = offsets
            self.refuse(file_of(header, body(problem())), "'q'", "data_offsets")

    def test_offsets_that_do_not_fit_the_shape(self):
        header = header_of(problem())
        header["q"]["shape"] = [40, 4, 9]
        self.refuse(file_of(header, body(problem())), "'q'", "[40, 4, 9]", "5760", "5120")

    def test_sizes_that_overflow(self):
        for shape in ([2**32, 2**32, 1], [2**63, 2, 1], [2**62, 1, 4], [2**64 - 1, 2**64 - 1, 2**64 - 1]):
            header = header_of(problem())
            header["q"]["shape"] = shape
            self.refuse(file_of(header, body(problem())), "'q'", "overflow")

    def test_empty_and_huge_sizes_together(self):
        header = header_of(problem())
        header["x"] = {"dtype": "F32", "shape": [2**63, 2**63, 0], "data_offsets": [0, 4]}
        self.refuse(file_of(header, body(problem())), "'x'", "0 bytes")


class Json(ProgramTest):
    def refuse_header(self, text, *words):
        text = text if isinstance(text, bytes) else text.encode()
        self.refuse(file_of(text, body(problem())), *words)

    def with_entry(self, entry, name="x"):
        """The header of the problem with one more raw entry."""
        text = json.dumps(header_of(problem()))
        return text[:-1] + f', "{name}": {entry}}}'

    def test_no_object(self):
        for text in ("[]", "null", "1", '"q"', " {}", "\ufeff{}"):
            self.refuse_header(text, "begin")

    def test_broken(self):
        whole = json.dumps(header_of(problem()))
        for text in ("{", "{]", '{"a"}', whole[:-1], whole + "}", whole + "x", whole.replace('"', "'"),
                     whole.replace(":", "=", 1), "{,}"):
            self.refuse_header(text, "JSON")

    def test_bytes_that_are_no_text(self):
        self.refuse_header(b'{"\xff\xfe": 1}', "JSON")
        self.refuse_header(b'{"a\x00b": 1}', "JSON")

    def test_nested(self):
        for depth in (3, 100, 1_000_000):
            self.refuse_header('{"x":' * depth + "1" + "}" * depth, "'x'")
            self.refuse_header('{"x":' + "[" * depth + "]" * depth + "}", "'x'", "array")
            self.refuse_header(self.with_entry('{"dtype":"F32","shape":' + "[" * depth), "'x'", "shape")

    def test_duplicate_tensor(self):
        entry = json.dumps(header_of(problem())["q"])
        self.refuse_header(self.with_entry(entry, "q"), "'q'", "twice")

    def test_duplicate_keys(self):
        self.refuse_header(self.with_entry('{"dtype":"F32","dtype":"F32"}'), "'x'", "'dtype'", "twice")
        self.refuse_header(self.with_entry('{"shape":[1],"shape":[1]}'), "'x'", "'shape'", "twice")
        self.refuse_header(self.with_entry('{"data_offsets":[0,0],"data_offsets":[0,0]}'), "'x'", "twice")
        self.refuse_header(self.with_entry('{"a":"1","a":"2"}', "__metadata__"), "__metadata__", "'a'", "twice")
        self.refuse_header('{"__metadata__":{},"__metadata__":{}}', "__metadata__", "twice")

    def test_missing_keys(self):
        for name in ("dtype", "shape", "data_offsets"):
            header = header_of(problem())
            del header["k"][name]
            self.refuse_header(json.dumps(header), "'k'", f"no {name}")

    def test_unknown_key(self):
        self.refuse_header(self.with_entry('{"strides":[1]}'), "'x'", "'strides'", "not allowed")

    def test_wrong_values(self):
        for entry in ("1", "-1", "1.5", "null", "true", '"F32"', "[]"):
            self.refuse_header(self.with_entry(entry), "'x'", "object")
        for value in ("1", "null", "[]", "{}", "false"):
            self.refuse_header(self.with_entry(f'{{"dtype":{value}}}'), "'x'", "dtype")
        for value in ("1", "null", '"4"', "{}", "[null]", '["4"]', "[{}]", "[-1]", "[1.0]", "[1e3]", "[-0]", "[true]",
                      "[18446744073709551616]"):
            self.refuse_header(self.with_entry(f'{{"shape":{value}}}'), "'x'", "shape")
        self.refuse_header(self.with_entry('{"shape":[1e999]}'), "JSON", "1e999")
        for value in ("7", "[]", "[0]", "[0,4,8]", "[0,-4]", "[0.0,4]", '"0,4"'):
            self.refuse_header(self.with_entry(f'{{"dtype":"F32","shape":[1],"data_offsets":{value}}}'), "'x'",
                               "data_offsets")

    def test_metadata_is_texts(self):
        for value in ("1", "null", "[]", "{}", "true", "1.5", "-1"):
            self.refuse_header(self.with_entry(f'{{"a":{value}}}', "__metadata__"), "__metadata__", "'a'")
        self.refuse_header(self.with_entry('"text"', "__metadata__"), "__metadata__")

    def test_many_dimensions(self):
        shape = ",".join(["1"] * 100_000)
        self.refuse_header(self.with_entry(f'{{"dtype":"F32","shape":[{shape}],"data_offsets":[0,4]}}'), "'x'",
                           "dimensions")

    def test_names_cannot_break_the_line(self):
        for name in ("a\\nb", "a\\r\\nheadwater attend: fine", "\\u2028x", "\\u0085x", "\\u001b[31mred", "\\u202eabc",
                     "n" * 100_000):
            self.refuse_header(self.with_entry("1", name), "must be an object")


class NonFinite(ProgramTest):
    """NaN and infinity are computed (NUM-2) and told as a warning."""

    def test_warning_names_count_and_first_place(self):
        for dtype in ("F32", "F16", "BF16"):
            tensors = problem(dtype=dtype)
            values = tensors["k"].values
            values[(17 * 2 + 1) * 8 + 5] = math.inf
            values[(23 * 2 + 0) * 8 + 1] = -math.inf
            tensors["k"] = Tensor(dtype, [40, 2, 8], values)
            # Rows are looked at call by call: both values in one, and each in its own.
            for flags in ((), ("--steps", "p10,d5,p25"), ("--steps", "p10,d10,p20")):
                out, _, error = self.attend(tensors, *flags)
                lines = error.splitlines()
                self.assertEqual(len(lines), 1, error)
                self.assertTrue(lines[0].startswith("warning: k: "), error)
                for word in ("2 values", "token 17", "head 1", "element 5"):
                    self.assertIn(word, lines[0])
                self.assertEqual(len(out["out"].values), 40 * 4 * 6)

    def test_later_chunks_only(self):
        tensors = problem(n=64)
        data = tensors["v"].data
        at = (50 * 2) * 6 * 4
        poisoned = problem(n=64) | {"v": Tensor("F32", [64, 2, 6], data=data[:at] + struct.pack("<f", math.nan) + data[at + 4:])}
        flags = ("-ub", "16", "--h2o-local", "4", "--h2o-heavy", "4")
        clean, _, _ = self.attend(tensors, *flags)
        dirty, _, error = self.attend(poisoned, *flags)
        self.assertIn("warning: v: 1 value is", error)
        self.assertIn("token 50", error)
        before = 48 * 4 * 6 * 4  # chunk of position 50 begins at 48
        self.assertEqual(clean["out"].data[:before], dirty["out"].data[:before])

    def test_warnings_are_suppressed_by_an_error(self):
        tensors = problem()
        tensors["q"] = Tensor("F32", [40, 4, 8], data=encode("F32", [math.nan] * 1280))
        self.refuse(tensors, "--steps", arguments=["--steps", "p20,p20:99", "-b", "3", "-ub", "2"])


class Unused(ProgramTest):
    def test_other_tensors_are_a_warning(self):
        extra = {f"other{i}\n": Tensor("F32", [1], [0.0]) for i in range(6)}
        _, _, error = self.attend(problem(**extra))
        lines = [line for line in error.splitlines() if "not used" in line]
        self.assertEqual(len(lines), 1, error)
        self.assertTrue(lines[0].startswith("warning: 6 tensors"), error)
        self.assertIn("other0", lines[0])
        self.assertEqual(len(error.splitlines()), 1)

    def test_all_types_and_odd_shapes_are_legal_there(self):
        extra = {"s": Tensor("I64", [], data=bytes(8)), "e": Tensor("F64", [3, 0], data=b""),
                 "b": Tensor("BOOL", [3], data=bytes(3)), "f": Tensor("F8_E5M2", [1, 1], data=bytes(1)),
                 "u": Tensor("U64", [1], data=bytes(8)), "c": Tensor("C64", [2], data=bytes(16)),
                 "f4": Tensor("F4", [3, 2], data=bytes(3)), "f62": Tensor("F6_E2M3", [4], data=bytes(3)),
                 "f63": Tensor("F6_E3M2", [2, 4], data=bytes(6)), "f80": Tensor("F8_E8M0", [3], data=bytes(3)),
                 "fn4": Tensor("F8_E4M3FNUZ", [1], data=bytes(1)), "fn5": Tensor("F8_E5M2FNUZ", [1], data=bytes(1)),
                 "none": Tensor("F4", [0], data=b"")}
        self.attend(problem(**extra))

    def test_elements_of_less_than_a_byte(self):
        for dtype, shape, size, names in (("F4", [3], 2, "12 bits"), ("F6_E2M3", [3], 3, "18 bits"), ("F4", [4], 3, "[4] takes"),
                                          ("F6_E3M2", [4], 4, "[4] takes")):
            self.refuse(problem(other=Tensor(dtype, shape, data=bytes(size))), "'other'", dtype, names)


if __name__ == "__main__":
    unittest.main()
