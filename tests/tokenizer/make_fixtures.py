"""Writes files of tests/tokenizer/fixtures.tar.xz with PyPI packages that share nothing with this project.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install gguf==0.19.0 tokenizers==0.23.3 sentencepiece==0.2.3 protobuf
    /tmp/venv/bin/python tests/tokenizer/make_fixtures.py TOKENIZER_JSON TEXT

TOKENIZER_JSON is that of the bundled model, TEXT what a SentencePiece model is trained on.
tiny.gguf, sentence.gguf: vocabularies without tensors. tiny.json, sentence.json: texts (hexadecimal) and their ids, by
`tokenizers` with each pre-tokeniser (and its words), and by `sentencepiece`. normal_forms.json: texts and their form C. Bytes that are no UTF-8 are read as U+FFFD, as Python
does. The results are committed; nothing in the build runs this.
"""

import json
import pathlib
import random
import sys
import tempfile
import unicodedata

import gguf
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from packed import pack

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
MODERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
CLITICS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
         r"\s*[\r\n]+|\s+(?!\S)|\s+")
WHOLE_WORDS_FIRST = {"llama-bpe", "tekken"}
PATTERNS = {
    "qwen2": [MODERN % r"\p{N}"],
    "llama-bpe": [MODERN % r"\p{N}{1,3}"],
    "gpt-2": [GPT2],
    "smollm": None,  # as in tokenizer.json of SmolLM2: no pattern, but parts of the package
    "gpt-4o": [CASED % (CLITICS, CLITICS, "{1,3}")],
    "tekken": [CASED % ("", "", "")],
    "qwen35": [r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|"
               r"\s+(?!\S)|\s+"],
    "deepseek-v3": [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
                    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
                    r"\s*[\r\n]+|\s+(?!\S)|\s+"],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
}

TEXTS = [
    "", " ", "  ", "\n", "\t", "\r\n", "a", "Hello, world!", "Hello world", " leading", "trailing ", "two  spaces",
    "def f(x: int) -> int:\n    \"\"\"Doc.\"\"\"\n    return x ** 2  # square\n",
    "class A(B):\n\n    def __init__(self, *args, **kwargs):\n        super().__init__(*args, **kwargs)\n",
    "for (int i = 0; i < n; ++i) { sum += a[i] * b[i]; }\n", "SELECT * FROM t WHERE x >= 1000000 AND y != 'it''s';",
    "#include <vector>\n\ttemplate<class T> struct S{};\r\n\r\n", "0xDEADBEEF 3.14159e-10 1_000_000 12345678901234567890",
    "don't can't we're I've I'm you'll he'd DON'T CAN'T WE'RE I'VE I'M YOU'LL HE'D 'S 'ſ 'sx",
    "naïve café résumé Ünïcödé straße İstanbul ﬁﬂ", "e\u0301 a\u0308 n\u0303 \u0301", "Ωμέγα Привет мир Ёлка",
    "東京は日本の首都です。漢字かなカナ", "한국어 텍스트 시험", "你好,世界!数字123和字母abc", "שלום עולם العربية ٣٤٥ فارسی ۱۲۳",
    "हिन्दी देवनागरी १२३ தமிழ் ไทย ภาษา", "ᚠᛇᚻ 𐍈 𝔘𝔫𝔦 𝟙𝟚𝟛 Ⅷ ½ ² ①", "🙂👍🏽👨‍👩‍👧‍👦🇩🇪 ☃️ ❤️‍🔥 x🙂y",
    "a\u00a0b\u2003c\u3000d\u202fe\u205ff\u1680g", "a\u0085b\u2028c\u2029d\u000be\u000cf", "x\u200by\u200cz\u180ew\ufeffv",
    "\x00\x01\x1b[0m\x7f", "tabs\t\tand  \t mixed \n\n \n  lines", "   \n", "\n   ", "\n\n\n\n", " \r\n \r \n",
    "word\n\nword", "word \n word", "word   word", "!!!???...,,,;;;", "$+<=>^~|`@#%&*()[]{}", "a$b+c<d>e=f^g~h|i",
    "http://example.com/?q=a+b&c=%20#x", "C:\\Windows\\System32", "----====____", "x" * 100, "ab" * 300, " " * 100,
    "\n" * 50, "1" * 40, "'" * 10, "\ufffd\ufffd", "<|endoftext|>", "<|im_start|>user\nhi<|im_end|>\n",
    "<|im_start|<|im_end|>>", "<|endoftext|><|endoftext|>", "a<|im_end|>b <|endoftext|> c", "<s>x</s>", "<0x41><unk>",
]
BROKEN = [b"\xff", b"a\xc3", b"\xc3(", b"\xe2\x82", b"\xf0\x9f\x98", b"ok \xed\xa0\x80 no", b"\xc0\xaf", b"\xf5\x80\x80\x80",
          b"\xe2\x28\xa1 x", b"\x80\x81 tail", b"mid\xfe\xffdle", b"\xf4\x90\x80\x80", b"caf\xe9 na\xefve"]
RANDOM_TEXTS = 80


def alphabet():
    """Characters that were assigned long ago: libraries differ in their version of Unicode."""
    old = unicodedata.ucd_3_2_0
    ranges = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x340), (0x370, 0x500), (0x5D0, 0x660), (0x900, 0x970), (0xE01, 0xE30),
              (0x2000, 0x2070), (0x20A0, 0x20B0), (0x2150, 0x2300), (0x3000, 0x3100), (0x4E00, 0x4F00), (0xAC00, 0xAC80),
              (0x1D400, 0x1D420)]
    return [[chr(c) for c in range(*r) if old.category(chr(c)) not in ("Cn", "Cs")] for r in ranges]


def random_texts():
    rng = random.Random(2024)
    pools = alphabet()
    ascii_pool = pools[0]
    texts = []
    for _ in range(RANDOM_TEXTS):
        mix = [ascii_pool, rng.choice(pools), list(" \n\t\r'09aS")]
        texts.append("".join(rng.choice(rng.choice(mix)) for _ in range(rng.randrange(1, 50))))
    return texts


def cases():
    yield from (text.encode() for text in TEXTS)
    yield from BROKEN
    yield from (text.encode() for text in random_texts())


def golden(encode):
    return [{"hex": raw.hex(), "ids": encode(raw.decode("utf-8", errors="replace"))} for raw in cases()]


def write_gguf(name, model, entries):
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / name
        writer = gguf.GGUFWriter(path, "test")
        writer.add_tokenizer_model(model)
        for method, value in entries:
            getattr(writer, method)(value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        pack(name, path.read_bytes())


def byte_level(source):
    document = json.loads(pathlib.Path(source).read_text(encoding="utf-8"))
    tokens = {text: (id_, gguf.TokenType.NORMAL) for text, id_ in document["model"]["vocab"].items()}
    for added in document["added_tokens"]:
        tokens[added["content"]] = (added["id"], gguf.TokenType.CONTROL)
    order = sorted(tokens, key=lambda text: tokens[text][0])
    assert [tokens[text][0] for text in order] == list(range(len(order)))
    merges = [" ".join(m) if isinstance(m, list) else m for m in document["model"]["merges"]]
    write_gguf("tiny.gguf", "gpt2", [
        ("add_tokenizer_pre", "qwen2"), ("add_token_list", order), ("add_token_types", [tokens[t][1] for t in order]),
        ("add_token_merges", merges), ("add_eos_token_id", tokens["<|endoftext|>"][0]),
        ("add_bos_token_id", tokens["<|endoftext|>"][0]), ("add_add_bos_token", False)])

    results = {}
    for name, patterns in PATTERNS.items():
        document["model"]["ignore_merges"] = name in WHOLE_WORDS_FIRST
        tokenizer = Tokenizer.from_str(json.dumps(document))
        if patterns is None:
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
            words = pre_tokenizers.Sequence(
                [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Split(Regex(GPT2), "isolated")])
        else:
            splits = [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
            words = pre_tokenizers.Sequence(splits)
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                splits + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        results[name] = golden(lambda text, t=tokenizer: t.encode(text, add_special_tokens=False).ids)
        # The vocabulary is too small to show every word; so the words themselves, as lengths in UTF-8.
        for case in results[name]:
            text = bytes.fromhex(case["hex"]).decode("utf-8", errors="replace")
            case["words"] = [len(word.encode()) for word, _ in words.pre_tokenize_str(text)]
    pack("tiny.json", json.dumps(results, separators=(",", ":")) + "\n")


def sentence(source):
    with tempfile.TemporaryDirectory() as scratch:
        prefix = f"{scratch}/m"
        sentencepiece.SentencePieceTrainer.train(
            input=source, model_prefix=prefix, model_type="bpe", vocab_size=900, byte_fallback=True,
            normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=1.0,
            max_sentence_length=100000, minloglevel=2)
        model = sentencepiece_model_pb2.ModelProto()
        model.ParseFromString(pathlib.Path(f"{prefix}.model").read_bytes())
    kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
    # Unused tokens help merging and are taken apart again: every ninth one that is made of others.
    for i, piece in enumerate(model.pieces):
        if piece.type == kinds.NORMAL and len(piece.piece) > 1 and i % 9 == 0:
            piece.type = kinds.UNUSED
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    write_gguf("sentence.gguf", "llama", [
        ("add_token_list", [p.piece for p in model.pieces]), ("add_token_scores", [p.score for p in model.pieces]),
        ("add_token_types", [p.type for p in model.pieces]), ("add_unk_token_id", 0), ("add_bos_token_id", 1),
        ("add_eos_token_id", 2)])
    pack("sentence.json", json.dumps(golden(processor.encode), separators=(",", ":")) + "\n")


def normal_forms():
    """Texts and their normal form C: those of above taken apart, and what composes, reorders or must stay apart."""
    rng = random.Random(15)
    marks = [chr(c) for c in (*range(0x300, 0x340), 0x345, 0x5B0, 0x5BC, 0x93C, 0xC56, 0x1161, 0x11A8, 0x3099)]
    bases = [*"aeiouAEIOUnNsS ", "\u00e9", "\u0391", "\u05e9", "\u0915", "\u0c46", "\u1100", "\uac00", "\u304b", "\u2126",
             "\u212b", "\u0958", "\ufb1d", "\U0001d15e", "\U0002f800", "\u4e00", "x"]
    texts = [text.encode() for text in TEXTS + [unicodedata.normalize("NFD", text) for text in TEXTS]]
    texts += ["".join(rng.choice(rng.choice((bases, marks))) for _ in range(rng.randrange(1, 40))).encode() for _ in range(300)]
    form = normalizers.NFC()
    pairs = [(raw, form.normalize_str(raw.decode()).encode()) for raw in texts]
    for raw, normal in pairs:
        assert unicodedata.normalize("NFC", raw.decode()).encode() == normal, raw
    pack("normal_forms.json",
         json.dumps([[raw.hex(), normal.hex()] for raw, normal in pairs], separators=(",", ":")) + "\n")


def main():
    normal_forms()
    byte_level(sys.argv[1])
    sentence(sys.argv[2])


main()
