"""Model: a GGUF file, its tokenizer, conversations over it, generated text."""

import array
import codecs
import contextlib
import ctypes
import json
import math
import os
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

from . import _native, _options, _runtime, _session

if sys.version_info >= (3, 11):
    from typing import Unpack
elif TYPE_CHECKING:
    from typing_extensions import Unpack

_library, _check = _runtime.library, _runtime.check
_byref = ctypes.byref


def _token(value, name="token"):
    """An id; the library compares it with the vocabulary."""
    number = _options.integer(value, name)
    if not 0 <= number < 2**31:
        raise ValueError(f"{name} is {number}; allowed: ids of the vocabulary")
    return number


def _ids(ids, name="ids"):
    """An array of 32 bits a token."""
    if isinstance(ids, (str, bytes, bytearray)) or not hasattr(ids, "__iter__"):
        raise TypeError(f"{name} is a {type(ids).__name__}; allowed: a sequence of integers")
    numbers = [_token(token, f"{name}[{index}]") for index, token in enumerate(ids)]
    return (ctypes.c_int32 * len(numbers))(*numbers)


def _most_tokens(value):
    if value is None:
        return math.inf
    number = _options.integer(value, "max_tokens")
    if number < 0:
        raise ValueError(f"max_tokens is {number}; allowed: 0 or more, or None: until the text ends or the capacity is used")
    return number


class Model(_native.Owner):
    """A GGUF file of a model; docs/models.md has the architectures.

    path: the file (of a split one its first part). projections: "auto", "f32", "bf16" or "int8", the operands of products over
    many tokens. chat_template: how chats are written in place of the file's own template: "chatml", "llama3", or a template
    in Jinja, its text. rope_scaling ("none", "linear" or "yarn"), rope_scale, rope_freq_base, yarn_orig_ctx,
    yarn_attn_factor, yarn_beta_fast, yarn_beta_slow: of the rotary embedding, each in place of what the file says; they are the
    program's flags of these names. `context` stays the file's; a conversation's capacity may be more. Metadata and tokenizer
    are read now, the weights for the first conversation; all conversations share them. Threads may use a model at once. What
    is strange in a file and read all the same is a warning.

    name, architecture: texts. layers, heads, kv_heads, head_dim, value_dim, width, feed_forward, vocabulary, context, bytes:
    integers. bos, eos: ids, or None. adds_bos: whether a text begins with bos. projections: "f32", "bf16" or "int8".
    Errors: ValueError (no such file, damaged, a model that is not supported), MemoryError.
    """

    name: str
    architecture: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    width: int
    feed_forward: int
    vocabulary: int
    context: int
    bytes: int
    bos: int | None
    eos: int | None
    adds_bos: bool
    projections: str

    _instead = "the same one in other threads and after os.fork(), or Model(path) anew"

    def __init__(self, path: str | os.PathLike[str], *, projections: Literal["auto", "f32", "bf16", "int8"] = "auto",
                 chat_template: str | None = None, rope_scaling: Literal["none", "linear", "yarn"] | None = None,
                 rope_scale: float | None = None, rope_freq_base: float | None = None, yarn_orig_ctx: SupportsIndex | None = None,
                 yarn_attn_factor: float | None = None, yarn_beta_fast: float | None = None,
                 yarn_beta_slow: float | None = None) -> None:
        own = _runtime.initialised(_runtime.ModelOptions, _library.headwater_model_options_init)
        own.projections = _options.choice(projections, "projections", _runtime.PROJECTIONS)
        if rope_scaling is not None:
            own.rope_scaling = _options.choice(rope_scaling, "rope_scaling", _runtime.ROPE_SCALINGS)
        numbers = {"rope_scale": rope_scale, "rope_freq_base": rope_freq_base, "yarn_attn_factor": yarn_attn_factor,
                   "yarn_beta_fast": yarn_beta_fast, "yarn_beta_slow": yarn_beta_slow, "yarn_orig_ctx": yarn_orig_ctx}
        for name, value in numbers.items():
            if value is None:
                continue
            number = (_options.integer if name == "yarn_orig_ctx" else _options.number)(value, name)
            if number == 0:  # by which the library means the file's
                raise ValueError(f"{name} is {value!r}; allowed: a number above 0, or None: the file's")
            setattr(own, name, number)
        self._handle = ctypes.c_void_p()
        _check(_library.headwater_model_open_with(os.fsencode(path), _byref(own), _byref(self._handle)))
        if chat_template is not None:
            text = _options.text(chat_template, "chat_template")
            if not text:
                raise ValueError("chat_template is ''; allowed: chatml, llama3, a template in Jinja, or None")
            _check(_library.headwater_model_set_chat_template(self._handle, text, len(text)))
        for line in _library.headwater_model_warnings(self._handle).decode(errors="replace").splitlines():
            warnings.warn(line, stacklevel=2)
        facts = _runtime.Facts()
        _check(_library.headwater_model_describe(self._handle, _byref(facts), ctypes.sizeof(facts)))
        self.name = _library.headwater_model_name(self._handle).decode(errors="replace")
        self.architecture = _library.headwater_model_architecture(self._handle).decode(errors="replace")
        self.layers, self.width, self.feed_forward = facts.layers, facts.width, facts.feed_forward
        self.heads, self.kv_heads = facts.heads, facts.heads_kv
        self.head_dim, self.value_dim = facts.d_head, facts.d_value
        self.vocabulary, self.context, self.bytes = facts.vocabulary, facts.context, facts.bytes
        self.bos, self.eos, self._turn_end = (None if number < 0 else number
                                              for number in (facts.bos, facts.eos, facts.turn_end))
        self.adds_bos = bool(facts.adds_bos)
        self.projections = {code: name for name, code in _runtime.PROJECTIONS.items()}[facts.projections]

    def __del__(self):
        if getattr(self, "_handle", None):
            _library.headwater_model_close(self._handle)

    def __repr__(self) -> str:
        if not hasattr(self, "projections"):  # set last
            return "<headwater.Model, not open>"
        return (f"<headwater.Model {self.name!r}: {self.architecture}, layers {self.layers}, heads {self.heads} over "
                f"{self.kv_heads} of {self.head_dim}, vocabulary {self.vocabulary}, context {self.context}>")

    # ---- tokens ----

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """The ids of a text, a list. add_special: BOS in front and EOS at the end where the file asks for them.
        parse_special: texts of control tokens become those tokens; else they are text like any other. Characters for which
        the vocabulary has no token are left out, with a warning."""
        data = _options.text(text, "text")
        self._warn_of_losses(data, "text")
        flags = _options.flag(add_special, "add_special"), _options.flag(parse_special, "parse_special")
        return _runtime.of_any_length(ctypes.c_int32, len(data) + 16, lambda ids, capacity, count: (
            _library.headwater_tokenize(self._handle, data, len(data), *flags, ids, capacity, count)))

    def _warn_of_losses(self, data, name, caller=3):
        """`caller`: the frame that is told, as stacklevel counts from here."""
        ill_formed, without_token = ctypes.c_int64(), ctypes.c_int64()
        _check(_library.headwater_text_losses(self._handle, data, len(data), _byref(ill_formed), _byref(without_token)))
        if without_token.value >= 0:
            character = len(data[:without_token.value].decode(errors="replace"))
            warnings.warn(f"{name}[{character}]: the character has no token in the model's vocabulary; it, and what else has none, "
                          "is left out", stacklevel=caller)

    def detokenize(self, ids: Iterable[int]) -> str:
        """The text of ids, without control tokens; bytes that are not UTF-8 become U+FFFD. Errors: ValueError (an id that
        has no text)."""
        own = _ids(ids)
        return _runtime.of_any_length(ctypes.c_char, 16 * len(own) + 64, lambda text, capacity, count: (
            _library.headwater_detokenize(self._handle, own, len(own), text, capacity, count))).decode(errors="replace")

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for, not always whole characters; of a control token its text. Errors: ValueError."""
        return self._piece(token)[0]

    def _piece(self, token):
        """(bytes, a sum of _runtime.CONTROL and END)"""
        number, flags = _token(token), ctypes.c_int32()
        data = _runtime.of_any_length(ctypes.c_char, 256, lambda piece, capacity, count: (
            _library.headwater_token_piece(self._handle, number, piece, capacity, count, _byref(flags))))
        return data, flags.value

    def _chat_ids(self, messages, first):
        """(ids, how many of them from the question on, whether they are for an empty session) of (role, text, question or
        None): all that was said. `first`: the session is empty; else it holds the assistant's last message, too."""
        own = (_runtime.Message * len(messages))()
        for entry, (role, text, question) in zip(own, messages):
            data = [_options.text(text, "text"), None if question is None else _options.text(question, "question")]
            for part, name in zip(data, ("text", "question")):
                self._warn_of_losses(part or b"", name, 4)
            entry.role, (entry.text, entry.question) = role.encode(), data
            entry.text_bytes, entry.question_bytes = (len(part or b"") for part in data)
        place, anew, size = ctypes.c_int64(), ctypes.c_int32(first), ctypes.sizeof(_runtime.Message)
        if first:
            ids = _runtime.of_any_length(ctypes.c_int32, 4096, lambda ids, capacity, count: (
                _library.headwater_chat_encode(self._handle, own, len(own), size, 1, ids, capacity, count, _byref(place))))
        else:
            ids = _runtime.of_any_length(ctypes.c_int32, 4096, lambda ids, capacity, count: (
                _library.headwater_chat_continue(self._handle, own, len(own), size, ids, capacity, count, _byref(place),
                                                 _byref(anew))))
        return ids, len(ids) - place.value if place.value else 0, bool(anew.value)

    # ---- conversations ----

    def conversation(self, *, capacity: SupportsIndex | None = None,
                     cache_type: Literal["auto", "f32", "f16", "bf16", "q8_0"] = "auto",
                     dense_tail: SupportsIndex = 64, engine: str | None = None,
                     quality: Literal["fast", "balanced", "exact"] = "balanced",
                     **options: "Unpack[_options.StoreOptions]") -> "Conversation":
        """An empty Conversation over this model.

        capacity: most tokens, None for the model's context. cache_type: of stored keys and values, "auto", "f32", "f16",
        "bf16" or "q8_0", which is "auto" in 8 bits, as kv_bits=8 (heads of a multiple of 32). dense_tail: so many tokens at
        the end of a sparse turn see all before them. engine: a name of headwater.engines(). quality: "fast", "balanced" or
        "exact", which is dense: the options that are not said, as docs/quality.md measures them; "balanced" is what
        `headwater generate` does. options: of Session (chunk, local, heavy, pinned, batch, select, dense, threads, ...) but
        for what the model decides (scale, softcap, sinks, alibi, layers).
        Errors: ValueError, TypeError, MemoryError, RuntimeError (the engine is not there).
        """
        return Conversation(self, capacity, cache_type, dense_tail, engine, {**options, "quality": quality})

    def _prompt(self, prompt, name):
        ids = self.tokenize(prompt, parse_special=True) if isinstance(prompt, str) else list(_ids(prompt, name))
        if not ids:
            raise ValueError(f"{name} has no tokens; allowed: 1 or more")
        if isinstance(prompt, str) and self.adds_bos and ids[:2] == [self.bos] * 2:
            warnings.warn(f"{name} begins with the token that the model puts in front of every text: it is there twice; "
                          "tokenize(..., add_special=False) gives ids without the model's", stacklevel=3)
        return ids

    def generate(self, prompt: str | Iterable[int], *, max_tokens: int | None = 128, temperature: float = 0.0,
                 top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, seed: int = 0, stop: str | Sequence[str] = (),
                 grammar: str | None = None, json_schema: dict[str, Any] | bool | str | None = None,
                 capacity: SupportsIndex | None = None,
                 **options: "Unpack[_options.ConversationOptions]") -> Iterator[str]:
        """An iterator of what the model writes after a prompt, a piece of text at a time, whole characters.

        prompt: a text (BOS is put in front where the model has it so, texts of control tokens are those tokens), or ids.
        max_tokens: None is until the text ends or the capacity is used. temperature 0 takes the best token; else one is
        drawn from what top_k, top_p and min_p leave; equal seeds draw equal texts. It ends before a token that ends texts,
        and before the first of the strings `stop`. grammar: the text is one of this grammar, in llama.cpp's notation (GBNF).
        json_schema, in its place: the text is JSON of this schema, a dict (properties come in its order) or its JSON; True: any
        JSON object. What max_tokens or the capacity cuts off is the beginning of such a text. capacity, options: of
        conversation(); a capacity of None is what is needed, up to the model's context. Errors: now those of
        conversation(); ValueError (a prompt of more tokens than the context; a grammar or schema that is damaged, too large
        or not supported: where); while it goes on those of Conversation.feed(), ValueError (a grammar that no token goes on
        with, or that takes too much).
        """
        _options.known(options, self.generate, self.conversation)
        ids = self._prompt(prompt, "prompt")
        most = _most_tokens(max_tokens)
        if capacity is None:
            capacity = self.context
            if len(ids) > capacity:
                raise ValueError(f"prompt has {len(ids)} tokens; allowed: 1 .. {capacity}, the model's context")
            capacity = min(capacity, len(ids) + max(most - 1, 0))
        sampler = _Sampler(self, temperature, top_k, top_p, min_p, seed, grammar, json_schema)
        talk = self.conversation(capacity=capacity, **options)
        talk._below._warn_of_clamp(talk._asked, 1)
        answer = _Answer(self, talk, sampler, most, _StopText(stop))

        def text():
            talk.feed(ids)
            yield from answer.pieces()
        return text()

    def chat(self, system: str | None = None, **options: "Unpack[_options.ChatOptions]") -> "Chat":
        """A Chat, written as the model's chat template says: the file's own, or what Model(chat_template=) names. system: what
        the model is told first. options: of conversation(). Errors: those of conversation(); ValueError (there is no
        template, or it cannot be rendered)."""
        return Chat(self, system, options)

    def perplexity(self, text: str | Iterable[int], *, window: int | None = None, decode: int = 256,
                   **options: "Unpack[_options.ConversationOptions]") -> dict[str, Any]:
        """How well the model predicts a text after dense and after sparse prefill, as `headwater perplexity --json` says it.

        text: a text, or ids. It is cut into windows of `window` tokens (None: all, up to the context), each a fresh session:
        a turn, then one decode step of `decode` tokens. Where the model begins texts with BOS every window does. options: of
        conversation(). Both caches are in memory at once. Ctrl-C stops within a chunk.

        Returns {"window": tokens, "windows": number, "decode": tokens, "effective": the options that were used, "dense":
        side, "sparse": side, "difference": side, of what sparse attention adds to each loss, "divergence": {"prefill":
        apart, "decoded": apart}}. A side is {"prefill": mean, "decoded": mean, "ends": mean}, a mean {"nll": nats a token,
        "stderr": its error, "tokens": number}. "ends" is there with rules blocks and sketches: tokens after a query block,
        the first chunk's left out (SEL-10). Apart is how the predictions of positions after the first chunk differ: {"kl": mean
        Kullback-Leibler divergence of the sparse one from the dense one in nats, "rank1": share with the same likeliest
        token, "kl_stderr", "rank1_stderr", "tokens": positions}. Errors: those of conversation() and Conversation.feed();
        ValueError (window, decode).
        """
        _options.known(options, self.perplexity, self.conversation)
        ids = self.tokenize(text) if isinstance(text, str) else list(_ids(text, "text"))
        asked = self.context if window is None else _options.integer(window, "window")
        decode = _options.integer(decode, "decode")
        if not 2 <= asked <= self.context:
            raise ValueError(f"window is {asked}; allowed: 2 .. {self.context}, the model's context")
        window = min(asked, len(ids))
        if window < 2 or not 0 <= decode < window:
            raise ValueError(f"decode is {decode} in a window of {window} tokens; allowed: 0 or more, and fewer than a window "
                             "of 2 tokens or more")
        windows = [ids[begin:begin + window] for begin in range(0, len(ids) - window + 1, window)]
        if self.adds_bos:
            windows = [[self.bos, *part[1:]] for part in windows]
        parts = {"prefill": _Compared(), "ends": _Compared(), "decoded": _Compared()}
        apart = {"prefill": ([], []), "decoded": ([], [])}
        with (self.conversation(capacity=window, **{**options, "dense": True}) as dense,
              self.conversation(capacity=window, **options) as sparse):
            used = sparse.options
            sparse._below._warn_of_clamp(sparse._asked, 1)
            for part in windows:
                for position, entry in enumerate(dense._compared(sparse, part, decode)):
                    if entry.flags & _runtime.AFTER_FIRST_CHUNK:
                        kl, rank1 = apart["prefill" if position < window - decode else "decoded"]
                        kl.append(entry.divergence)
                        rank1.append(float(entry.same_likeliest))
                    if position + 1 == window:
                        continue
                    inside = position + 1 < window - decode
                    parts["prefill" if inside else "decoded"].append(entry)
                    if inside and entry.flags == _runtime.AFTER_FIRST_CHUNK + _runtime.ENDS_QUERY_BLOCK:
                        parts["ends"].append(entry)
        if not parts["ends"].dense:
            del parts["ends"]
        sides = {"dense": lambda part: part.dense, "sparse": lambda part: part.sparse,
                 "difference": lambda part: [sparse - dense for dense, sparse in zip(part.dense, part.sparse)]}
        return {
            "window": window, "windows": len(windows), "decode": decode, "effective": used,
            **{side: {name: _mean(losses_of(part)) for name, part in parts.items()} for side, losses_of in sides.items()},
            "divergence": {name: _apart(*lists) for name, lists in apart.items()}}


class _Compared:
    """Losses of tokens in nats."""

    def __init__(self):
        self.dense, self.sparse = [], []

    def append(self, entry):
        self.dense.append(entry.loss)
        self.sparse.append(entry.other_loss)


def _apart(kl, rank1):
    divergence, likeliest = _mean(kl), _mean(rank1)
    return {"kl": divergence["nll"], "kl_stderr": divergence["stderr"], "rank1": likeliest["nll"],
            "rank1_stderr": likeliest["stderr"], "tokens": len(kl)}


def _mean(values):
    """As the program has it: sums in order, which sum() would compensate from Python 3.12 on."""
    total = squares = 0.0
    for value in values:
        total += value
    mean = total / len(values) if values else 0.0
    for value in values:
        squares += (value - mean) * (value - mean)
    spread = math.sqrt(squares / (len(values) - 1) / len(values)) if len(values) > 1 else 0.0
    return {"nll": mean, "stderr": spread, "tokens": len(values)}


class _Interrupt(_session._Interrupt):
    _set = _library.headwater_conversation_set_interrupt


class _Below(_session.Session):
    """The session of a conversation, which owns it: what it holds may be asked."""

    def __init__(self, session, shape):
        self._session, self._shape = session, shape
        self._lock, self._process = threading.Lock(), os.getpid()

    def __del__(self):
        """Nothing: it belongs to the conversation."""


class Conversation(_native.Owner):
    """Tokens that a model has read and written, made by Model.conversation().

    It is used by one thread at a time: a second one gets RuntimeError. After close(), and in a child of os.fork(), every
    call is RuntimeError.
    """

    model: Model
    capacity: int

    _instead = "fork(), a second conversation that shares what is stored"

    def __init__(self, model: Model, capacity: SupportsIndex | None, cache_type: str, dense_tail: SupportsIndex, engine: str | None,
                 options: dict[str, Any]) -> None:
        _options.known(options, model.conversation)
        own = _options.Options(_options.with_preset(options, _session._name(engine)), model.heads, model.layers)
        native = _runtime.initialised(_runtime.ConversationOptions, _library.headwater_conversation_options_init)
        native.engine = _session._name(engine)
        native.attention = ctypes.pointer(own.native)
        native.capacity = 0 if capacity is None else self._counted(capacity, "capacity", 1)
        native.dense_tail = self._counted(dense_tail, "dense_tail", 0)
        native.cache_type = _options.choice(cache_type, "cache_type", _runtime.CACHE_TYPES)
        self._open(model, native.capacity or model.context, own.native, lambda opened: (
            _library.headwater_conversation_open(model._handle, _byref(native), opened)))

    def _open(self, model, capacity, asked, opens):
        self._handle = ctypes.c_void_p()
        _check(opens(_byref(self._handle)))
        self.model, self.capacity, self._asked = model, capacity, asked
        session = ctypes.c_void_p()
        _check(_library.headwater_conversation_session(self._handle, _byref(session)))
        self._below = _Below(session, _options.shape(model.layers, model.heads, model.kv_heads, model.head_dim,
                                                     model.value_dim, self.capacity, "float32"))
        self._interrupt = _Interrupt()

    def __repr__(self) -> str:
        below = getattr(self, "_below", None)
        return "<headwater.Conversation, not open>" if below is None else (
            f"<headwater.Conversation with {self.model.name!r}: {below._held()}>")

    @staticmethod
    def _counted(value, name, least):
        number = _options.integer(value, name)
        if not least <= number < 2**31:
            raise ValueError(f"{name} is {number}; allowed: {least} .. {2**31 - 1}")
        return number

    def __del__(self):
        # In a child of fork() the memory goes with the process.
        below = getattr(self, "_below", None)
        if below is not None and below.usable():
            _library.headwater_conversation_close(self._handle)

    def close(self) -> None:
        """Gives the memory back. Calls after it are RuntimeError."""
        with self._used() as handle:
            self._below._session = None
            _library.headwater_conversation_close(handle)

    def __enter__(self) -> "Conversation":
        return self

    def __exit__(self, *_: object) -> None:
        if self._below.usable():
            self.close()

    @contextlib.contextmanager
    def _used(self):
        """The handle for one call of this thread."""
        with self._below._used():
            yield self._handle

    def _stoppable(self, handle, call, *arguments):
        """A long call, which Ctrl-C stops."""
        with self._interrupt.put_off(handle):
            status = call(handle, *arguments)
            error = None if status == 0 else _runtime.error(status)
        if error is not None:
            raise error

    def feed(self, ids: Iterable[int]) -> None:
        """Reads a turn of ids: chunked sparse prefill, its last dense_tail tokens dense. After a turn that was dense, or had no
        dense tail, and before append() it goes on with that turn (STATE-3). Ctrl-C stops within a chunk. A turn that did not
        get to its end is taken back: the conversation is what it was before where its session can be truncated
        to that (with select "blocks", "sketches" and dense always), else empty; `tokens` says which. Errors: ValueError (an id, no ids,
        more tokens than the capacity), MemoryError, RuntimeError."""
        own = _ids(ids)
        with self._used() as handle:
            self._stoppable(handle, _library.headwater_conversation_feed, own, len(own))

    def append(self, token: int) -> None:
        """Appends one token by a dense decode step. Errors: as of feed()."""
        number = _token(token)
        with self._used() as handle:
            _check(_library.headwater_conversation_append(handle, number))

    def reset(self) -> None:
        """Back to an empty conversation. Errors: MemoryError (of a fork)."""
        with self._used() as handle:
            _check(_library.headwater_conversation_reset(handle))

    def fork(self) -> "Conversation":
        """A second conversation that is what this one is, its logits and the turn it is in among it, and goes on by itself.
        Stored rows are shared, so that a document that many go on from is in memory once. Errors: MemoryError,
        NotImplementedError (not by this engine)."""
        with self._used() as handle:
            other = type(self).__new__(type(self))
            other._open(self.model, self.capacity, self._asked, lambda forked: _library.headwater_conversation_fork(handle, forked))
            return other

    def truncate(self, n: int) -> None:
        """Keeps the first n tokens, 0 <= n <= tokens (with select "h2o" not every n, STATE-10), and the turn they are in. There
        are no logits then until feed() or append(). In a sparse turn tokens choose what they read a chunk at a time: where n
        is inside a chunk, its tokens that are kept were computed with those that are not. Errors: ValueError (which n are
        allowed), MemoryError (of a fork), NotImplementedError (not by this engine); then nothing has changed."""
        with self._used() as handle:
            _check(_library.headwater_conversation_truncate(handle, _options.integer(n, "n")))

    def losses(self, ids: Iterable[int], decode: int = 256) -> list[float]:
        """Losses in nats of ids[1:], a list of floats, each by what the model predicts after those before it: all but the
        last `decode` ids are one turn without a dense tail, those one decode step. The conversation is empty before and
        after. Errors: as of feed(); ValueError (fewer than 2 ids, decode not 0 .. len(ids) - 1)."""
        own = _ids(ids)
        losses = (ctypes.c_double * max(len(own) - 1, 1))()
        with self._used() as handle:
            self._stoppable(handle, _library.headwater_conversation_losses, own, len(own),
                            _options.integer(decode, "decode"), losses)
        return list(losses)

    def _compared(self, other, ids, decode):
        """losses() of two conversations side by side, and how their predictions differ: a _runtime.Comparison for each id."""
        own = _ids(ids)
        positions = (_runtime.Comparison * len(own))()
        with self._used() as handle, other._used() as other_handle, self._interrupt.put_off(handle, other_handle):
            status = _library.headwater_conversation_compare(handle, other_handle, own, len(own), decode, positions)
            error = None if status == 0 else _runtime.error(status)
        if error is not None:
            raise error
        return positions

    @property
    def tokens(self) -> int:
        """Tokens that are stored."""
        count = ctypes.c_int64()
        with self._used() as handle:
            _check(_library.headwater_conversation_tokens(handle, _byref(count)))
        return count.value

    @contextlib.contextmanager
    def _logits(self):
        """(address, number) of the logits, while the conversation is this thread's."""
        address, count = ctypes.c_void_p(), ctypes.c_int64()
        with self._used() as handle:
            _check(_library.headwater_conversation_logits(handle, _byref(address), _byref(count)))
            yield address, count.value

    @property
    def logits(self) -> Any:
        """Those of the token that comes next, float32 [vocabulary], a copy: a NumPy array, or array.array where there is no
        NumPy. Errors: RuntimeError (the conversation is empty, or was truncated)."""
        with self._logits() as (address, count):
            data = ctypes.string_at(address, 4 * count)
        try:
            import numpy
        except ImportError:
            return array.array("f", data)
        return numpy.frombuffer(data, numpy.float32).copy()

    def _set_dense_tail(self, tokens):
        with self._used() as handle:
            _check(_library.headwater_conversation_set_dense_tail(handle, tokens))

    @property
    def options(self) -> dict[str, Any]:
        """The options that are used, as Session.options."""
        return self._below.options

    @property
    def warnings(self) -> list[str]:
        """What the options were changed to and why, a line each."""
        return self._below.warnings

    @property
    def memory_bytes(self) -> dict[str, int]:
        """Bytes held, as Session.memory_bytes."""
        return self._below.memory_bytes

    @property
    def chunks(self) -> list[tuple[int, int, str, int]]:
        """All chunks so far, as Session.chunks."""
        return self._below.chunks


def _grammar_of(grammar, json_schema):
    """(kind, text, its bytes) of what an answer follows; None: of nothing."""
    if grammar is not None and json_schema is not None:
        raise ValueError("grammar and json_schema are given; allowed: one of them")
    if json_schema is True:
        return _runtime.JSON_OBJECT, b"", 0
    if grammar is None and json_schema is None:
        return None
    name = "json_schema" if grammar is None else "grammar"
    text = json_schema if grammar is None else grammar
    if isinstance(json_schema, dict):
        try:
            text = json.dumps(json_schema, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as problem:
            kind = TypeError if isinstance(problem, TypeError) else ValueError
            raise kind(f"json_schema is no JSON: {problem}; allowed: texts, numbers, lists, dicts, True, False, None") from None
    elif grammar is None and not isinstance(text, str):
        raise (ValueError if text is False else TypeError)(
            f"json_schema is {text!r}; allowed: a dict, a text in JSON, True: any object, or None")
    data = _options.text(text, name)
    return _runtime.JSON_SCHEMA if grammar is None else _runtime.GBNF, data, len(data)


class _Sampler(_native.Owner):
    def __init__(self, model, temperature, top_k, top_p, min_p, seed, grammar, json_schema):
        native = _runtime.initialised(_runtime.Sampling, _library.headwater_sampling_init)
        native.temperature = _options.number(temperature, "temperature")
        native.top_k = _options.integer(top_k, "top_k")
        native.top_p, native.min_p = _options.number(top_p, "top_p"), _options.number(min_p, "min_p")
        number = _options.integer(seed, "seed")
        if number < 0:
            raise ValueError(f"seed is {number}; allowed: 0 .. {_options._MOST}")
        native.seed = number
        self._handle = ctypes.c_void_p()
        followed = _grammar_of(grammar, json_schema)
        _check(_library.headwater_sampler_open(_byref(native), model.vocabulary, _byref(self._handle)))
        if followed is not None:
            _check(_library.headwater_sampler_restrict(self._handle, model._handle, *followed))

    def __del__(self):
        if getattr(self, "_handle", None):
            _library.headwater_sampler_close(self._handle)

    def draw(self, talk):
        """The answer's next token."""
        token = ctypes.c_int32()
        with talk._logits() as (address, count):
            _check(_library.headwater_sampler_draw(self._handle, address, count, _byref(token)))
        _check(_library.headwater_sampler_accept(self._handle, token))
        return token.value


class _StopText:
    """A text as it comes, up to the first of some strings. What could be the beginning of one is held back."""

    def __init__(self, stop):
        self._stop = (stop,) if isinstance(stop, str) else tuple(_options.several(stop, "stop", "texts"))
        for text in self._stop:
            if not isinstance(text, str) or not text:
                raise (ValueError if text == "" else TypeError)(f"stop has {text!r}; allowed: texts of one character or more")
        self._held = ""
        self.found = False

    def push(self, text):
        """What is certainly in front of every stop string."""
        self._held += text
        places = [place for place in map(self._held.find, self._stop) if place >= 0]
        if places:
            self.found = True
            kept, self._held = self._held[:min(places)], ""
            return kept
        longest = max(map(len, self._stop), default=1) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            tail = self._held[-size:]
            if any(text.startswith(tail) for text in self._stop):
                kept, self._held = self._held[:-size], tail
                return kept
        kept, self._held = self._held, ""
        return kept

    def finish(self):
        kept, self._held = self._held, ""
        return kept


class _Answer:
    """What a model writes after a turn."""

    def __init__(self, model, talk, sampler, most, text):
        self._model, self._talk, self._sampler, self._most, self._text = model, talk, sampler, most, text
        self.pending = None  # written last, not yet in the conversation
        self.ended = False  # by a token of its own
        self.stored = []  # written, and in the conversation
        self._bytes = b""  # of all that was written

    def said(self):
        return self._bytes.decode(errors="replace")

    def pieces(self):
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        written = 0
        while written < self._most:
            token = self._sampler.draw(self._talk)
            piece, kind = self._model._piece(token)
            self.pending, self.ended = token, bool(kind & _runtime.END)
            if self.ended:
                break
            written += 1
            if not kind & _runtime.CONTROL:
                self._bytes += piece
            text = self._text.push("" if kind & _runtime.CONTROL else decoder.decode(piece))
            if text:
                yield text
            if self._text.found:
                return
            if written == self._most or self._talk.tokens == self._talk.capacity:
                break
            self._talk.append(token)
            self.stored.append(token)
            self.pending = None
        text = self._text.push(decoder.decode(b"", True))
        if not self._text.found:
            text += self._text.finish()
        if text:
            yield text


class Chat(_native.Owner):
    """Turns of a user and a model over one conversation, which is kept between them; made by Model.chat().

    conversation: the Conversation below. A chat is used by one thread at a time.
    """

    conversation: Conversation

    _instead = "a new one of Model.chat(): it has no fork()"

    def __init__(self, model: Model, system: str | None, options: dict[str, Any]) -> None:
        if system is not None and not _options.text(system, "system"):
            raise ValueError("system is ''; allowed: a text of one character or more, or None")
        self._model = model
        self._messages = [] if system is None else [("system", system, None)]  # what was said
        model._chat_ids([*self._messages, ("user", "", None)], True)  # the template is there, and takes a system's text
        self._dense_tail = options.get("dense_tail", 64)
        _options.known(options, model.conversation)
        self.conversation = model.conversation(**options)
        self.conversation._below._warn_of_clamp(self.conversation._asked, 2)
        self._history = []  # ids of what was said, also where an interrupt has emptied the conversation
        self._answer = None  # the latest one

    def __repr__(self) -> str:
        talk = getattr(self, "conversation", None)
        return "<headwater.Chat, not open>" if talk is None else (
            f"<headwater.Chat with {talk.model.name!r}: {talk._below._held()}>")

    def say(self, text: str, question: str | None = None, *, max_tokens: int | None = 512, temperature: float = 0.0,
            top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, seed: int = 0, stop: str | Sequence[str] = (),
            grammar: str | None = None, json_schema: dict[str, Any] | bool | str | None = None) -> Iterator[str]:
        """An iterator of the model's answer to a turn of the user, a piece of text at a time. Nothing is read before the first
        piece is asked for.

        text: what the user says, or a document; question: goes on after it, and sees every token before it. The rest is as
        of Model.generate(). What is read and written is kept; an answer that max_tokens, a stop string or the caller cut
        off is closed by the next turn, and its iterator then ends by RuntimeError. Errors: now TypeError, ValueError; while
        it goes on those of Model.generate(): a turn that did not get to its end was not said.
        """
        sampler = _Sampler(self._model, temperature, top_k, top_p, min_p, seed, grammar, json_schema)
        answer = _Answer(self._model, self.conversation, sampler, _most_tokens(max_tokens), _StopText(stop))
        _options.text(text, "text")
        if question is not None and not _options.text(question, "question"):
            question = None
        return self._turn(text, question, answer)

    def _turn(self, text, question, answer):
        before = self._answer
        talk = self.conversation
        tokens = talk.tokens
        if before is not None:
            if before.pending is not None and tokens > len(self._history) + len(before.stored):
                before.stored.append(before.pending)  # Ctrl-C came when it had just been appended
                before.pending = None
            self._history += before.stored
            before.stored = []
        messages = list(self._messages)
        if before is not None:
            messages.append(("assistant", before.said(), None))
        messages.append(("user", text, question))
        said, asked, anew = self._model._chat_ids(messages, not self._history)
        # A token that ended an answer is no part of it; the turn begins with what the template writes there.
        if before is not None and before.pending is not None and not before.ended and not anew:
            said = [before.pending] + said
        talk._set_dense_tail(asked or self._dense_tail)
        if anew and self._history:
            talk.reset()
            self._history, tokens = [], 0
        # What an interrupt has emptied is read again.
        turn = self._history + said if tokens == 0 else said
        try:
            talk.feed(turn)
        finally:
            if talk.tokens == tokens + len(turn):  # also where Ctrl-C came at its very end
                self._history += said
                self._messages, self._answer = messages, answer
        for piece in answer.pieces():
            yield piece
            if self._answer is not answer:
                raise RuntimeError("a later turn has begun; allowed: the latest answer of a chat")
