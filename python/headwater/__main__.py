"""python -m headwater: what is here, a text from a model, an evaluation, a model as a folder of Hugging Face."""

import argparse
import json
import signal
import sys

NAME = "python -m headwater"


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise ValueError(f"{self.prog.rpartition(' ')[2]}: {' '.join(message.split())}")


def _info(arguments):
    parser = _Parser(prog=f"{NAME} info", allow_abbrev=False,
                     description="What the library is and which engines run here, in JSON.")
    parser.parse_args(arguments)
    import headwater
    print(json.dumps(headwater.info(), indent=1))


def _generate(arguments):
    parser = _Parser(prog=f"{NAME} generate", description="What a model writes after a prompt.", allow_abbrev=False)
    parser.add_argument("-m", "--model", required=True, metavar="FILE", help="a GGUF file")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("-p", "--prompt", metavar="TEXT")
    prompt.add_argument("-f", "--file", metavar="FILE", help="a file with the prompt, a text in UTF-8; its last line break is no part of it")
    parser.add_argument("-n", "--predict", type=int, default=128, metavar="N", help="most tokens (128)")
    parser.add_argument("--temp", type=float, default=0.0, metavar="T", help="0: the likeliest token (0)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn (0)")
    parser.add_argument("-t", "--threads", type=int, default=0, metavar="N", help="0: all usable cores (0)")
    parser.add_argument("--dense", action="store_true", help="exact attention everywhere")
    flags = parser.parse_args(arguments)
    text = flags.prompt
    if text is None:
        with open(flags.file, encoding="utf-8-sig") as file:  # no byte order mark, and line ends are one character
            try:
                text = file.read().removesuffix("\n")
            except UnicodeDecodeError as error:
                raise ValueError(f"{flags.file} is no UTF-8 at byte {error.start}; allowed: a text in UTF-8") from None
    import headwater
    for piece in headwater.Model(flags.model).generate(text, max_tokens=flags.predict, temperature=flags.temp, seed=flags.seed,
                                                       threads=flags.threads, dense=flags.dense):
        print(piece, end="", flush=True)
    print()


def _evaluate(arguments):
    from .evaluate import __main__ as command
    return command.main(arguments)


def _export(arguments):
    from . import export
    return export.main(arguments)


COMMANDS = {"info": (_info, "version, library, engines"), "generate": (_generate, "text after a prompt, from a GGUF file"),
            "evaluate": (_evaluate, "what each rule costs a model"), "export": (_export, "a GGUF file as a folder of Hugging Face")}


def main(arguments=None):
    """Runs a command. Returns its exit status: 0 done, 2 bad usage or input, 130 Ctrl-C, 141 nobody reads the output."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] in (["-h"], ["--help"]):
        width = max(map(len, COMMANDS))
        print(f"usage: {NAME} COMMAND [FLAG...]\n\n" + "\n".join(f"  {name:{width}}  {about}" for name, (_, about)
                                                                in COMMANDS.items()) + "\n\nCOMMAND --help has its flags.")
        return 0
    if not arguments or arguments[0] not in COMMANDS:
        what = f"{arguments[0]!r} is not known" if arguments else "no command"
        print(f"{NAME}: {what}; allowed: {', '.join(COMMANDS)}, --help", file=sys.stderr)
        return 2
    try:
        return COMMANDS[arguments[0]][0](arguments[1:]) or 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stdout = None  # the interpreter would flush it once more
        return 141
    except (ImportError, MemoryError, OSError, RuntimeError, ValueError) as error:
        line = f"{error.filename}: {error.strerror}" if getattr(error, "filename", None) else " ".join(str(error).split())
        print(f"{NAME}: {line or type(error).__name__}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
