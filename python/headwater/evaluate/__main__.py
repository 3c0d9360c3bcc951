"""python -m headwater.evaluate: flags, the cells of an evaluation, and its files."""

import argparse
import hashlib
import json
import math
import os
import platform
import signal
import sys
import time

from .. import _options
from . import backends, journal, report, rules, tasks

NAME = "headwater.evaluate"
MOST = 2**31 - 1
SILENCE = 20  # most seconds between lines of progress, or a cell
STOPPED, READER_GONE = 130, 141  # as a shell says it of a program that SIGINT or SIGPIPE ended

ABOUT = """What sparse prefill costs a model: perplexity on your texts, RULER's synthetic tasks, and times to the first token.

Prompts are plain text that ends with the beginning of the answer, or with --chat a turn in the model's chat format. Equal seeds give equal prompts
for all rules. Finished cells are kept in OUT/journal.jsonl: the same command goes on where it was stopped, and one with more
rules, lengths, tasks, texts or samples adds to it."""


class Refused(Exception):
    """One line: what, and what is allowed."""


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Refused(" ".join(message.split()))


def _integer(low, high):
    def parse(text):
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or not text.isascii() or not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not allowed; use an integer, {low} to {high}")
        return value
    return parse


def _least_weight(text):
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:  # 0 is what was not given, in a journal
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; use a number above 0 and below 1")
    return value


def _list(parse):
    def parse_all(text):
        values = [parse(part) for part in text.split(",")]
        for index, value in enumerate(values):
            if value in values[:index]:
                raise argparse.ArgumentTypeError(f"{value} is given twice; allowed is once")
        return values
    return parse_all


def _one_of(names):
    def parse(text):
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r} is not allowed; use some of {', '.join(names)}")
        return text
    return parse


def _nonempty(text):
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError("'' is not allowed; use a name")
    return text


def _parser():
    parser = _Parser(prog=f"python -m {NAME}", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter,
                     allow_abbrev=False)
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--model", type=_nonempty, metavar="PATH", help="a GGUF file, or a folder of Hugging Face")
    model.add_argument("--gguf", type=_nonempty, metavar="FILE", help="a GGUF file")
    parser.add_argument("--rules", type=_list(_one_of(rules.NAMES)), default=list(rules.DEFAULTS), metavar="LIST",
                        help="%(metavar)s of dense, h2o, window, blocks, sketches (all but blocks)")
    parser.add_argument("--lengths", type=_list(_integer(64, MOST)), default=[4096], metavar="LIST",
                        help="tokens of a prompt and its answer, and of a window of a text (4096)")
    parser.add_argument("--tasks", type=_list(_one_of((*tasks.TASKS, "none"))), default=list(tasks.TASKS), metavar="LIST",
                        help="; ".join(f"{task.name}: {task.about}" for task in tasks.TASKS.values()) + "; none (all)")
    parser.add_argument("--texts", type=_nonempty, nargs="+", default=[], metavar="FILE", help="texts for perplexity")
    parser.add_argument("--samples", type=_integer(1, 100_000), default=20, metavar="N",
                        help="prompts of a task and length, and most windows of a text (20)")
    parser.add_argument("--seed", type=_integer(0, 2**62), default=0, metavar="N", help="of all that is random (0)")
    parser.add_argument("--chunk", type=_integer(1, MOST), default=1024, metavar="S", help="tokens of a chunk (1024)")
    parser.add_argument("--memory", type=_integer(1, MOST), default=512, metavar="M",
                        help="tokens of a memory set; h2o: half newest, half by score; window: the newest; blocks and "
                        "sketches: the newest 32, the rest chosen (512)")
    parser.add_argument("--pinned", type=_integer(0, MOST), default=None, metavar="N",
                        help="first tokens in every memory set, out of --memory (8; 0 with h2o)")
    for size, high, about in (("key-block", 256, "keys of a block that is searched as one"),
                              ("query-block", MOST, "queries that choose a set together"),
                              ("pool", MOST, "queries whose mean votes"),
                              ("refine", 16, "so many times the tokens of a set are voted on one by one")):
        parser.add_argument(f"--{size}", type=_integer(1, high), metavar="N", help=f"of rule blocks: {about} (the library's own)")
    parser.add_argument("--least-weight", type=_least_weight, metavar="W",
                        help="of rule sketches: no token of less weight is chosen (the library's own)")
    parser.add_argument("--chat", action="store_true", help="ask in the model's own chat format")
    parser.add_argument("--dense-tail", type=_integer(0, MOST), default=0, metavar="N",
                        help="last tokens of a prompt that see everything before them; 0: the question is the end of the "
                        "sparse prefill (0)")
    parser.add_argument("--decode", type=_integer(1, MOST), default=256, metavar="N",
                        help="tokens of a window of a text that are decoded densely (256)")
    parser.add_argument("--haystack", type=_nonempty, metavar="FILE", help="a text around needles (sentences of noise)")
    parser.add_argument("--needle", type=_nonempty, default=tasks.NEEDLE, metavar="LINE",
                        help="what is planted, with {name} and {code}")
    parser.add_argument("--question", type=_nonempty, default=tasks.QUESTION, metavar="LINE", help="what is asked, with {name}")
    parser.add_argument("--digits", type=_integer(3, 18), default=tasks.DIGITS, metavar="N", help="of a code (7)")
    parser.add_argument("--first-line", action="store_true",
                        help="judge answers up to their first line break: for models that go on with another question, which "
                        "they answer by dense decoding")
    parser.add_argument("--threads", type=_integer(0, 512), default=0, metavar="N", help="0: all usable cores (0)")
    parser.add_argument("--engine", type=_nonempty, metavar="NAME", help="one of headwater.engines()")
    parser.add_argument("--out", type=_nonempty, default="evaluation", metavar="FOLDER",
                        help="for journal.jsonl, results.json, table.md and plot.svg (evaluation)")
    return parser


def _text(path):
    """A text and its digest. Errors: Refused (no regular text in UTF-8), OSError."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise Refused(f"{path} is no regular file; allowed: a text in UTF-8")
    with open(path, "rb") as file:
        found = file.read()
    try:
        return found.decode(), hashlib.sha256(found).hexdigest()[:16]
    except UnicodeDecodeError as error:
        raise Refused(f"{path} is no UTF-8 at byte {error.start}; allowed: a text in UTF-8") from None


def fingerprint(path):
    """A digest of a file, or of the files of a folder: names, sizes, first and last 64 KiB. Errors: OSError."""
    found = hashlib.sha256()
    folder = os.path.isdir(path)
    for name in sorted(os.listdir(path)) if folder else [""]:
        file_path = os.path.join(path, name) if folder else path
        if os.path.isfile(file_path) or not os.path.exists(file_path):
            size = os.path.getsize(file_path)
            found.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
            with open(file_path, "rb") as file:
                found.update(file.read(65536))
                file.seek(max(0, size - 65536))
                found.update(file.read(65536))
    return found.hexdigest()[:16]


def _processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), platform.machine())
    except OSError:
        return platform.machine()


def say(line):
    if sys.stderr is not None:  # closed by whoever started us
        try:
            print(line, file=sys.stderr, flush=True)
        except OSError:
            pass


class _Progress:
    """tqdm's bar where it is installed and there is a terminal; else a line for each part of the work, and now and then."""

    def __init__(self, total):
        self._bar, self._total, self._done, self._part = None, total, 0, None
        self._begin = self._said = time.monotonic()
        if sys.stderr is not None and sys.stderr.isatty():
            try:
                import tqdm
                self._bar = tqdm.tqdm(total=total, unit="cell", file=sys.stderr)
            except ImportError:
                pass

    def advance(self, part, is_new):
        self._done += 1
        if self._bar is not None:
            self._bar.set_description(part)
            self._bar.update()
        elif is_new and (part != self._part or time.monotonic() - self._said > SILENCE):
            self._said = time.monotonic()
            say(f"{NAME}: cell {self._done} of {self._total}, {self._said - self._begin:.0f} s: {part}")
            self._part = part

    def close(self):
        if self._bar is not None:
            self._bar.close()


def _windows(backend, path, text, length, most):
    """Ids of the windows of a text, each with what begins a prompt in place of its tokens (as `headwater perplexity`)."""
    begin = backend.tokenize("")
    ids = backend.tokenize(text)
    if len(ids) < length:
        raise Refused(f"{path} has {len(ids)} tokens; allowed: {length} or more, the longest of --lengths")
    for first in range(0, len(ids) - length + 1, length)[:most]:
        window = ids[first:first + length]
        window[:len(begin)] = begin
        yield window


def _mean(values):
    return sum(values) / len(values) if values else None


class Evaluation:
    """The cells of what the flags ask for, over one backend and one journal."""

    def __init__(self, flags, backend, texts, haystack):
        self._flags, self._backend, self._texts = flags, backend, texts
        self._rules = [rules.Rule(name, flags.chunk, flags.memory, **_sizes(flags)) for name in flags.rules]
        self._encode = (lambda text: backend.chat(*tasks.split(text))) if flags.chat else backend.tokenize
        self._setting = tasks.Setting(flags.seed, tasks.Haystack(haystack), flags.needle, flags.question, flags.digits)
        self._tasks = [] if flags.tasks == ["none"] else [tasks.TASKS[name] for name in flags.tasks]
        if backend.context is not None and max(flags.lengths) > backend.context:
            raise Refused(f"--lengths: {max(flags.lengths)} is not allowed; the model's context has {backend.context} tokens")
        if texts and flags.decode >= min(flags.lengths):
            raise Refused(f"--decode: {flags.decode} is not allowed; use less than the shortest of --lengths, "
                          f"{min(flags.lengths)}")
        # Before hours of work: every length is long enough for every task, and every text for every length.
        self._read = {(path, length): list(_windows(backend, path, text, length, flags.samples))
                      for path, (text, _) in texts.items() for length in flags.lengths}
        for task in self._tasks:
            for length in flags.lengths:
                self._prompt(task, length, 0)

    def _prompt(self, task, length, sample):
        prompt = tasks.prompt(task, self._setting, sample, length, self._backend.tokenize, self._encode)
        if self._flags.dense_tail >= prompt.tokens:
            raise Refused(f"--dense-tail: {self._flags.dense_tail} is not allowed; use less than {prompt.tokens}, the tokens "
                          f"of a prompt of task {task.name}")
        return prompt

    def _plan(self):
        """(length, task, sample, a function -> what to run with a rule), in the order of work."""
        for length in self._flags.lengths:
            for task in self._tasks:
                for sample in range(self._flags.samples):
                    yield length, task.name, sample, self._answers_of(task, length, sample)
            for path, (_, digest) in self._texts.items():
                name = f"text {os.path.basename(path)} {digest}"
                for sample, window in enumerate(self._read[path, length]):
                    yield length, name, sample, self._losses_of(window)

    def _answers_of(self, task, length, sample):
        made = []

        def run(rule):
            if not made:  # one prompt for all rules, and none where all are done
                made.append(self._prompt(task, length, sample))
            (prompt,) = made
            answer, seconds = self._backend.answer(self._encode(prompt.text), prompt.room, rule, self._flags.dense_tail)
            return {"answer": answer, "wanted": prompt.answers, "seconds": seconds, "tokens": prompt.tokens}
        return run

    def _losses_of(self, window):
        def run(rule):
            losses = self._backend.losses(window, self._flags.decode, rule)
            prefill = len(window) - self._flags.decode
            ends = rules.block_ends(prefill, self._flags.chunk, self._flags.query_block or rules.QUERY_BLOCK)
            return {"prefill": _mean(losses[:prefill - 1]), "decoded": _mean(losses[prefill - 1:]),
                    "ends": _mean([losses[at] for at in ends if at < prefill - 1])}
        return run

    def run(self, kept):
        """Runs what the journal `kept` lacks. Returns all cells asked for, (rule, length, task, sample) -> result."""
        plan = list(self._plan())
        progress = _Progress(len(plan) * len(self._rules))
        cells = {}
        try:
            for length, task, sample, run in plan:
                for rule in self._rules:
                    cell = [rule.name, length, task, sample]
                    result = kept.get(cell)
                    is_new = result is None
                    if is_new:
                        result = run(rule)
                        kept.add(cell, result)
                    cells[tuple(cell)] = result
                    progress.advance(f"{length} tokens, {task}", is_new)
        finally:
            progress.close()
        return cells


def _sizes(flags):
    return {size: getattr(flags, size) for size in ("pinned", *_options.RULES_WITH)}


def _configuration(flags, path, haystack_digest):
    """What a cell depends on beside its key, as JSON values."""
    import headwater
    known = headwater.info()
    engine = flags.engine or known["engine"]
    # Of a journal that is older than a flag: what the flag is where it is not given.
    given = {name: value for name, value in (*_sizes(flags).items(), ("chat", flags.chat)) if value}
    return given | {"model": os.path.basename(os.path.abspath(path)), "fingerprint": fingerprint(path), "chunk": flags.chunk,
            "memory": flags.memory, "dense_tail": flags.dense_tail, "decode": flags.decode, "seed": flags.seed,
            "haystack": haystack_digest, "needle": flags.needle, "question": flags.question, "digits": flags.digits,
            "threads": flags.threads, "version": known["version"], "engine": engine, "processor": _processor(),
            "isa": next((entry["isa"] for entry in known["engines"] if entry["name"] == engine), "")}


def _write(flags, backend, configuration, cells):
    found = report.summarize(cells, list(rules.NAMES), flags.first_line)
    facts = {key: value for key, value in backend.facts.items() if value is not None}
    settings = [f"{configuration['model']} ({', '.join(f'{key} {value}' for key, value in facts.items())})",
                f"headwater {configuration['version']}, engine {configuration['engine']} ({configuration['isa']}), "
                f"{configuration['processor']}",
                f"chunks of {flags.chunk}, memory sets of {flags.memory}, dense tail {flags.dense_tail}, "
                f"{flags.decode} tokens of a text decoded" + "".join(
                    f", {name.replace('_', ' ')} {value}" for name, value in _sizes(flags).items() if value),
                f"{flags.samples} samples, seed {flags.seed}, " + ("noise" if flags.haystack is None else os.path.basename(
                    flags.haystack)) + " around needles" + (", chat format" if flags.chat else "") + (
                        ", first line of answers" if flags.first_line else "")]
    text = report.markdown(found, settings)
    timed = {entry["length"] for entry in found["first_token"]}
    for length in sorted({entry["length"] for entry in found["answers"]} - timed):
        say(f"{NAME}: no times at {length} tokens: no run has answered one prompt with every rule; more --samples, or another "
            "folder, do")
    versions = {"headwater": configuration["version"], "python": platform.python_version()}
    machine = {"processor": configuration["processor"], "cores": os.cpu_count(), "system": platform.platform()}
    document = {"versions": versions, "machine": machine, "model": backend.facts, "configuration": configuration,
                "samples": flags.samples, "first_line": flags.first_line, **found}
    journal.replace(os.path.join(flags.out, "results.json"), json.dumps(document, indent=1) + "\n")
    journal.replace(os.path.join(flags.out, "table.md"), text)
    try:
        import io
        drawn = io.StringIO()
        report.plot(found, drawn)
        journal.replace(os.path.join(flags.out, "plot.svg"), drawn.getvalue())
    except ImportError:
        say(f"{NAME}: no plot.svg: matplotlib is not installed")
    return text


def _evaluate(arguments, open_model):
    flags = _parser().parse_args(arguments)
    if "none" in flags.tasks and (len(flags.tasks) > 1 or not flags.texts):
        raise Refused("--tasks: none is not allowed beside other tasks, or without --texts; leave it out")
    if len({os.path.basename(path) for path in flags.texts}) < len(flags.texts):
        raise Refused("--texts: two files have one name; allowed: names that differ")
    path = flags.model or flags.gguf
    if flags.gguf is not None and os.path.isdir(path):
        raise Refused(f"--gguf: {path} is a folder; allowed: a GGUF file")
    texts = {text_path: _text(text_path) for text_path in flags.texts}
    haystack, haystack_digest = (None, None) if flags.haystack is None else _text(flags.haystack)
    for size, names in _options.RULES_WITH.items():
        if getattr(flags, size) is not None and not set(names) & set(flags.rules):
            raise Refused(f"--{size.replace('_', '-')}: no rule of --rules has such a size; allowed: without it, or --rules "
                          f"with {' or '.join(names)}")
    rules.Rule("dense", flags.chunk, flags.memory, **_sizes(flags))
    configuration = _configuration(flags, path, haystack_digest)
    backend = open_model(path, flags.threads, flags.engine)
    evaluation = Evaluation(flags, backend, texts, haystack)
    os.makedirs(flags.out, exist_ok=True)  # not before all flags are known to be good: a journal keeps its configuration
    kept = journal.Journal(os.path.join(flags.out, "journal.jsonl"), configuration)
    try:
        return _write(flags, backend, configuration, evaluation.run(kept))
    finally:
        kept.close()


def _one_line(error):
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def main(arguments=None, open_model=backends.open_model):
    """Runs the command. Returns its exit status: 0 done, 2 bad usage or input, 130 Ctrl-C, 141 nobody reads the table."""
    if sys.stdout is None:
        say(f"{NAME}: standard output is closed; allowed: a file or a pipe")
        return 2
    try:
        print(_evaluate(arguments, open_model), end="", flush=True)
        return 0
    except KeyboardInterrupt:
        say(f"{NAME}: stopped; the same command goes on from here")
        return STOPPED
    except BrokenPipeError:
        status, line = READER_GONE, None
    except (Refused, ValueError, TypeError, MemoryError, RuntimeError, ImportError, OSError) as error:
        status, line = 2, f"{NAME}: {_one_line(error)}"
    if line is not None:
        say(line)
    try:  # what print() still holds would fail once more when the interpreter ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        pass
    return status


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
