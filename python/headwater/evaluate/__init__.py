"""Evaluate on your model: python -m headwater.evaluate --help

Perplexity on texts, RULER's synthetic tasks, and times to the first token, for each rule and length (docs/python.md).
"""
