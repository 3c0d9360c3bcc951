"""Prints the report at the end of `./dev demo`: demo_report.py COMPARE.json DOCUMENT QUESTION PICTURE

COMPARE.json is what `headwater generate -f DOCUMENT -p QUESTION --compare --json` said. Standard library only.
"""

import json
import pathlib
import sys


def main():
    if len(sys.argv) != 5:
        print(__doc__, file=sys.stderr)
        return 2
    sparse = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    document, question, picture = sys.argv[2:]
    dense, differs = sparse["dense"], sparse["difference"]
    same = differs["equal_tokens"]
    print(f"\n{sparse['model']}, {sparse['threads']} threads, engine {sparse['isa']}; rule {sparse['effective']['select']}")
    print(f"document  {document}; with the question {sparse['prompt_tokens']} tokens")
    print(f"question  {' '.join(question.split())} ...")
    for name, run in (("dense", dense), ("sparse", sparse)):
        print(f"{name:<8}  {json.dumps(run['text'].strip(), ensure_ascii=False)} after {run['seconds']['prefill']:.1f} s "
              f"and {run['pairs']:,} query-key pairs a head")
    answer = "the same answer" if sparse["ids"] == dense["ids"] else f"answers that differ after {same} tokens"
    print(f"result    {answer}, {differs['times_sooner']:.2f} times as soon, "
          f"{dense['pairs'] / sparse['pairs']:.1f} times fewer pairs")
    print(f"picture   {picture} (which tokens each chunk read, in a layer of the small model in models/)")
    return 0


sys.exit(main())
