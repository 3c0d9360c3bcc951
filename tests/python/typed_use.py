"""What test_types.py has mypy check: a line that ends in `# E: TEXT` is an error whose message holds TEXT, all others are none.
Nobody runs it."""

import array
from typing import assert_type

import numpy
from numpy.typing import NDArray

import headwater
from headwater import Chat, Conversation, Model, Session

Rows = NDArray[numpy.float32]
q: Rows = numpy.zeros((8, 4, 16), numpy.float32)
out: NDArray[numpy.float64] = numpy.zeros((8, 4, 16))

assert_type(headwater.attention(q, q, q, chunk=64, local=8, heavy=numpy.int64(8), scale=numpy.float32(1)), Rows)
assert_type(headwater.attention(q, q, q, out=out), NDArray[numpy.float64])
headwater.attention(q, q, q, select="blocks", pinned=8, pool=2, refine=4, key_block=8, query_block=32,
                    dense_layers=[0], sinks=q[0, 0])
headwater.attention(q, q, q, select="sketches", least_weight=numpy.float32(0.01))
headwater.attention(q, q, q, chunkk=5)  # E: "chunkk"
headwater.attention(q, q, q, chunk="5")  # E: No overload
headwater.attention(q, q, q, dense="no")  # E: No overload
headwater.attention(q, q, q, select="window")  # E: No overload
headwater.attention([[1.0]], q, q)  # E: 
headwater.attention(q, q, q, layout="ndh")  # E: No overload
headwater.atention(q, q, q)  # E: "atention"

session = Session(layers=2, heads=4, kv_heads=2, head_dim=16, capacity=64, layer_options=[None, {"window": 8}])
assert_type(session.attend(0, q, q, q), Rows)
assert_type(session.attend(0, q, q, q, out), NDArray[numpy.float64])
session.attend(0, None, q, q)
assert_type(session.fork(), Session)
Session(layers=2, heads=4, head_dim=16, capacity=64, chunkk=5)  # E: "chunkk"
Session(layers=2, heads=4, head_dim=16)  # E: "capacity"
Session.estimate(layers=2, heads=4, head_dim=16, capacity=64, chunkk=5)  # E: "chunkk"
Session.load("file", layers=2, heads=4, head_dim=16, capacity=64, chunkk=5)  # E: "chunkk"

model = headwater.Model("model.gguf", rope_scaling="yarn", rope_scale=4, yarn_orig_ctx=32768)
assert_type(model, Model)
assert_type(model.layers, int)
assert_type(model.bos, int | None)
assert_type("".join(model.generate("text", max_tokens=5, chunk=256, pinned=8, dense_tail=32, engine=None)), str)
model.generate("text", chunkk=5)  # E: "chunkk"
model.generate("text", scale=1.0)  # E: "scale"
model.generate("text", json_schema={"type": "object", "required": ["a"]}, temperature=1)
model.generate("text", grammar=5)  # E: has incompatible type
talk = model.conversation(capacity=numpy.int64(64), cache_type="bf16", select="h2o")
assert_type(talk, Conversation)
assert_type(talk.fork(), Conversation)
talk.truncate(5)
talk.truncate("5")  # E: has incompatible type
assert_type(talk.losses(array.array("i", [1, 2])), list[float])
model.conversation(cache_type="q8_0", kv_bits=8)
model.conversation(cache_type="f8")  # E: has incompatible type
model.conversation(chunkk=5)  # E: "chunkk"
chat = model.chat("Be brief.", capacity=64, heavy=8)
assert_type(chat, Chat)
assert_type(next(chat.say("Hello.")), str)
model.chat(chunkk=5)  # E: "chunkk"
model.perplexity("text", window=64, chunkk=5)  # E: "chunkk"
