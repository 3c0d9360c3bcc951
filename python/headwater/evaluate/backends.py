"""Where a model comes from: a GGUF file, by headwater.Model, or a folder of Hugging Face, by transformers."""

import inspect
import os
import time


class Backend:
    """What the evaluation needs of a model. A subclass opens a model, and has:

    context: most tokens, or None where it is not known. facts: a dict of JSON values for the report.
    """

    context = None
    facts = {}

    def tokenize(self, text):
        """Ids of a text as a prompt: with the token that begins one, where the model has it."""
        raise NotImplementedError

    def chat(self, asked, answer):
        """Ids of a turn of a user in the model's own chat format, then of what begins the model's answer. Errors: ValueError
        (the model has none)."""
        raise NotImplementedError

    def answer(self, ids, room, rule, dense_tail):
        """(text, seconds): at most `room` tokens greedily after the prompt, and the time to the first of them."""
        raise NotImplementedError

    def losses(self, ids, decode, rule):
        """Losses of ids[1:] in nats: all but the last `decode` ids are one prefill, these are decoded densely after it."""
        raise NotImplementedError


def _likeliest(logits):
    """The first index of the largest of a NumPy array. Errors: ValueError where one is not finite."""
    import numpy
    if not numpy.isfinite(logits).all():
        raise ValueError("the model's logits are not finite; allowed: weights that can be used")
    return int(logits.argmax())


class Gguf(Backend):
    """A GGUF file through headwater.Model."""

    def __init__(self, path, threads, engine):
        import headwater
        self._model = headwater.Model(path)
        self._more = {"threads": threads, "engine": engine}
        self.context = self._model.context
        self.facts = {"kind": "gguf", "name": self._model.name, "projections": self._model.projections}

    def tokenize(self, text):
        return self._model.tokenize(text)

    def chat(self, asked, answer):
        # What Chat.say() feeds first.
        ids, _, _ = self._model._chat_ids([("user", asked, None)], True)
        return list(ids) + self._model.tokenize(answer, add_special=False)

    def answer(self, ids, room, rule, dense_tail):
        """The first piece of text is the first token, unless that is not a whole character."""
        pieces = self._model.generate(ids, max_tokens=room, dense_tail=dense_tail, **self._more, **rule.options)
        begin = time.perf_counter()
        first = next(pieces, "")
        seconds = time.perf_counter() - begin
        return first + "".join(pieces), seconds

    def losses(self, ids, decode, rule):
        with self._model.conversation(capacity=len(ids), **self._more, **rule.options) as talk:
            return talk.losses(ids, decode=decode)


class HuggingFace(Backend):
    """A folder of Hugging Face through transformers, with the attention of headwater.hf."""

    ROWS = 256  # positions whose logits are in memory at a time

    def __init__(self, folder, threads, engine):
        try:
            import torch
            import transformers
        except ImportError as error:
            raise ValueError(f"a folder of Hugging Face needs torch and transformers: {error}; allowed: a GGUF file "
                             "without them") from None
        import headwater.hf
        self._torch, self._hf = torch, headwater.hf
        self._more = {"threads": threads, "engine": engine}
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self._model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, local_files_only=True, attn_implementation="headwater", dtype="auto").eval()
        except Exception as error:  # of every kind: what reads the folder is not ours
            raise ValueError(f"{folder}: {type(error).__name__}: {error}; allowed: a folder of a causal language model that "
                             "transformers reads") from error
        # `cache` from transformers 5.24 on
        self._cache_name = "cache" if "cache" in inspect.signature(self._model.forward).parameters else "past_key_values"
        ends = self._model.generation_config.eos_token_id
        self._ends = set(ends if isinstance(ends, list) else [] if ends is None else [ends])
        self._config = self._model.config.get_text_config()
        self.context = getattr(self._config, "max_position_embeddings", None)
        self.facts = {"kind": "hugging face", "name": self._config.model_type, "dtype": str(self._model.dtype),
                      "torch": str(torch.__version__), "transformers": transformers.__version__}

    def tokenize(self, text):
        return list(self._tokenizer(text, verbose=False)["input_ids"])

    def chat(self, asked, answer):
        if not self._tokenizer.chat_template:
            raise ValueError(f"{self._config.model_type}: the tokenizer has no chat template; allowed: a model with one")
        begin = self._tokenizer.apply_chat_template([{"role": "user", "content": asked}], add_generation_prompt=True,
                                                    tokenize=False)
        return list(self._tokenizer(begin + answer, add_special_tokens=False, verbose=False)["input_ids"])

    def _run(self, ids, cache, **arguments):
        return self._model(self._torch.tensor([ids]), use_cache=True, **{self._cache_name: cache}, **arguments)

    def _cache(self):
        from transformers import DynamicCache
        return DynamicCache(config=self._model.config)  # said, not left to the model's forward()

    def answer(self, ids, room, rule, dense_tail):
        torch = self._torch
        with torch.inference_mode():
            self._hf.configure(self._model, dense_tail=dense_tail, **self._more, **rule.options)
            cache = self._cache()
            begin = time.perf_counter()
            out = self._run(ids, cache, logits_to_keep=1)
            token = _likeliest(out.logits[0, -1].float().numpy())
            seconds = time.perf_counter() - begin
            answer = []
            while token not in self._ends:
                answer.append(token)
                if len(answer) == room:
                    break
                out = self._run([token], cache)
                token = _likeliest(out.logits[0, -1].float().numpy())
        return self._tokenizer.decode(answer), seconds

    def losses(self, ids, decode, rule):
        """One forward: the dense tail of a prompt is a decode step. Logits of all positions would not fit in memory for a
        large vocabulary, so the last hidden states become logits a few rows at a time."""
        torch, states = self._torch, []
        head = self._model.get_output_embeddings()
        hook = head.register_forward_pre_hook(lambda _module, given: (states.append(given[0]), (given[0][:, -1:],))[1])
        with torch.inference_mode():
            self._hf.configure(self._model, dense_tail=decode, **self._more, **rule.options)
            try:
                last = self._run(ids, self._cache()).logits[0, -1].float()
            finally:
                hook.remove()
            (rows,) = states
            if not torch.allclose(self._logits(head, rows[0, -1:])[0], last, rtol=1e-3, atol=1e-3):
                raise NotImplementedError(f"losses of {self._config.model_type}: it changes logits after its output layer in "
                                          "a way that is not known; allowed: none, or a soft cap")
            losses = []
            for first in range(0, len(ids) - 1, self.ROWS):
                part = torch.tensor(ids[first + 1:first + 1 + self.ROWS])
                logits = self._logits(head, rows[0, first:first + len(part)])
                losses += torch.nn.functional.cross_entropy(logits, part, reduction="none").tolist()
        return losses

    def _logits(self, head, rows):
        logits = head(rows).float()
        cap = getattr(self._config, "final_logit_softcapping", None)
        return logits if cap is None else self._torch.tanh(logits / cap) * cap


def open_model(path, threads=0, engine=None):
    """The Backend of a path. Errors: ValueError (neither a GGUF file nor a folder with config.json), OSError."""
    if os.path.isdir(path):
        if not os.path.isfile(os.path.join(path, "config.json")):
            raise ValueError(f"{path} has no config.json; allowed: a folder of Hugging Face, or a GGUF file")
        return HuggingFace(path, threads, engine)
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{path} is no regular file; allowed: a GGUF file, or a folder of Hugging Face")
    with open(path, "rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError(f"{path} is no GGUF file; allowed: one, or a folder of Hugging Face")
    return Gguf(path, threads, engine)
