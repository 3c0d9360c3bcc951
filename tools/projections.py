"""How far products and caches of one type are from F32's: python3 projections.py --model FILE TEXT... (--help)

Of dense attention over the first N tokens of each text, with one of the two in F32: half the mean square of the differences of the
log-probabilities of the text's own tokens, which is about the KL divergence in nats, the largest difference, and the change of
the mean loss. Needs numpy, and `headwater` (or PYTHONPATH=python and HEADWATER_LIBRARY, HEADWATER_RUNTIME_LIBRARY).
"""

import argparse
import pathlib
import sys

import numpy

import headwater


def losses(model, ids, cache_type="f32"):
    with model.conversation(quality="exact", cache_type=cache_type, capacity=len(ids)) as talk:
        return numpy.array(talk.losses(ids, decode=0))


def main():
    parser = argparse.ArgumentParser(description="How far products and caches of one type are from F32's, in nats.")
    parser.add_argument("--model", type=pathlib.Path, required=True, help="a GGUF file")
    parser.add_argument("-n", type=int, default=4096, help="tokens of each text (4096)")
    parser.add_argument("texts", type=pathlib.Path, nargs="+")
    options = parser.parse_args()
    if options.n < 2:
        parser.error("allowed: -n 2 and more")
    models = {}
    try:
        for projections in ("f32", "bf16", "int8"):
            try:
                models[projections] = headwater.Model(options.model, projections=projections)
            except ValueError as error:
                if "needs a processor" not in str(error):
                    raise
                print(f"projections: {error}", file=sys.stderr)
        texts = [(text.stem, models["f32"].tokenize(text.read_text(encoding="utf-8"), add_special=False)[:options.n])
                 for text in options.texts]
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print("| text | tokens | products | cache | half the mean square | largest | change of the loss |")
    print("| --- " * 7 + "|")
    pairs = [(projections, "f32") for projections in models] + [("f32", cache) for cache in ("f16", "bf16", "q8_0")]
    for name, ids in texts:
        if len(ids) < options.n:
            print(f"projections: {name}: {len(ids)} tokens; allowed: {options.n} and more", file=sys.stderr)
            continue
        exact = losses(models["f32"], ids)
        for projections, cache in pairs[1:]:
            change = losses(models[projections], ids, cache) - exact
            print(f"| {name} | {len(ids)} | {projections} | {cache} | {(change ** 2).mean() / 2:.6f} | {abs(change).max():.3f} | "
                  f"{change.mean():+.5f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
