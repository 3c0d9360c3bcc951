"""What SmolLM2 is asked, by make_real_golden.py and test_real.py."""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = ROOT / "models" / "decisions.txt"
SENTENCE, QUESTION = "The access code of the northern depot is 7319.", "\n\nThe access code of the northern depot is"


def document():
    """7808 tokens, with SENTENCE in the middle."""
    text = TEXT.read_text(encoding="utf-8")
    paragraphs = f"{text}\n\n{text[:len(text) * 88 // 100]}".split("\n\n")
    paragraphs.insert(len(paragraphs) * 45 // 100, SENTENCE)
    return "\n\n".join(paragraphs)
