"""Synthetic tasks of RULER (Hsieh et al. 2024, "RULER: What's the Real Context Size of Your Long-Context Language Models?").

Made anew from the paper's description, in our own words and without its worked examples. A prompt ends with the beginning of
its answer, as the paper has it, so that base models can go on. An answer is judged by the paper's string match. Everything
that is random comes from (seed, task, sample): equal for all rules, and independent of what else is evaluated.
"""

import random
import re
import uuid

ADJECTIVES = ("amber ancient brave bright calm clever cold copper crimson distant eager early empty fierce gentle golden "
              "green hidden humble lively lonely loud lucky mellow narrow noble pale patient plain proud quick quiet rapid "
              "rough rusty silent silver simple smooth solid steady strong sudden sunny swift tall tender tiny warm "
              "wild").split()
NOUNS = ("anchor apple basket beacon bridge button candle canyon carpet castle circle cloud corner engine feather fence "
         "forest garden hammer harbor island jacket kettle ladder lantern lemon marble meadow mirror mountain needle ocean "
         "orchard paper pebble pencil pillow planet pocket ribbon river saddle shadow spoon stone summer tower valley "
         "wagon window").split()
NOISE = (("The", "A", "Every", "Some"), ("rain", "wind", "road", "field", "river", "tree", "cloud", "bird", "hill", "lamp"),
         ("falls on", "runs along", "rests beside", "looks over", "moves past", "waits behind"),
         ("the grass", "the fence", "the old wall", "the water", "the market", "the gate", "the path", "the sea"))
SYLLABLES = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
FILLER = " ."  # one token in most vocabularies
ZETA_2 = 1.6449340668482264
DIGITS = 7  # of the paper
NEEDLE = "The secret code of {name} is {code}."
QUESTION = "Question: what is the secret code of {name} in the text above? Answer: the secret code of {name} is"


def match_all(answer, wanted):
    """Share of the wanted strings that the answer holds, in any case: RULER's score of all these tasks."""
    found = answer.lower()
    return sum(text.lower() in found for text in wanted) / len(wanted)


def match_part(answer, wanted):
    """1.0 where the answer holds any of the wanted strings, in any case."""
    found = answer.lower()
    return float(any(text.lower() in found for text in wanted))


class Haystack:
    """Words that stand around needles: of a text, again and again, or sentences of noise."""

    def __init__(self, text=None):
        """Errors: ValueError where the text has no word."""
        self._words = None if text is None else re.findall(r"\S+\s*", text)
        if self._words == []:
            raise ValueError("the haystack has no word; allowed: a text")

    def words(self, own):
        """A function n -> the first n words, each with the white space after it, from a beginning that `own` draws."""
        if self._words is not None:
            kept, begin = self._words, own.randrange(len(self._words))
            return lambda n: [kept[(begin + index) % len(kept)] for index in range(n)]
        kept = []

        def noise(n):
            while len(kept) < n:
                kept.extend(word + " " for word in " ".join(map(own.choice, NOISE)).split())
                kept[-1] = kept[-1].rstrip() + ". "
            return kept[:n]
        return noise


def _names(own, count):
    return [f"{adjective}-{noun}" for adjective, noun in zip(own.sample(ADJECTIVES, count), own.sample(NOUNS, count))]


def _codes(own, count, digits):
    return [str(code) for code in own.sample(range(10 ** (digits - 1), 10 ** digits), count)]


def _uuids(own, count):
    return [str(uuid.UUID(int=own.getrandbits(128), version=4)) for _ in range(count)]


def _pseudo_words(own, count):
    """Different words of six letters: none is part of another one."""
    found = {}
    while len(found) < count:
        found["".join(own.choices(SYLLABLES, k=3))] = None
    return list(found)


def _depths(sample, count):
    """Where `count` needles stand, 0 to 1: even over the samples, however many there are, and even among each other."""
    return [(0.5 + sample * 0.6180339887498949 + index / count) % 1.0 for index in range(count)]


def _planted(words, needles):
    """The text of words with (depth, line) planted between sentences: after the last one that ends before the depth."""
    ends = [0] + [index for index, word in enumerate(words, 1) if word.rstrip()[-1] in ".!?" or "\n" in word]
    places = {}
    for depth, line in needles:
        place = max((end for end in ends if end <= depth * len(words)), default=0)
        places.setdefault(place, []).append(line)
    parts, begin = [], 0
    for place in sorted(places):
        parts.append("".join(words[begin:place]).rstrip())
        parts.extend(places[place])
        begin = place
    parts.append("".join(words[begin:]).rstrip())
    return "\n".join(part for part in parts if part)


class Instance:
    """One sample of a task: a text for every size, and the answers.

    body: n -> the context, longer for larger n. least: the smallest n that makes sense.
    """

    def __init__(self, head, body, question, answers, least=0):
        self.head, self.body, self.question, self.answers, self.least = head, body, question, answers, least

    def text(self, size, filler):
        return f"{self.head}\n{self.body(size)}{FILLER * filler}\n{self.question}"


class Task:
    """make: (own, sample, length, setting) -> Instance. room: most tokens of an answer in the paper."""

    def __init__(self, name, make, room, about):
        self.name, self.make, self.room, self.about = name, make, room, about


class Setting:
    """What all tasks share: seed, the Haystack, how a needle and its question are worded ({name}, {code}), digits of a code."""

    def __init__(self, seed=0, haystack=None, needle=NEEDLE, question=QUESTION, digits=DIGITS):
        """Errors: ValueError where a wording lacks a place."""
        for flag, text, places in (("needle", needle, ("{name}", "{code}")), ("question", question, ("{name}",))):
            if not all(place in text for place in places):
                raise ValueError(f"the {flag} is {text!r}; allowed: a text with {' and '.join(places)}")
        self.seed, self.haystack, self.digits = seed, haystack or Haystack(), digits
        self._needle, self._question = needle, question

    def needle(self, name, code):
        return self._needle.replace("{name}", name).replace("{code}", code)

    def question(self, names):
        return self._question.replace("{name}", ", ".join(names))


_FIND = "Some secret codes are hidden in the following text. Remember them; you will be asked for them later."


def _needles(planted, asked=1, values=1):
    """A maker: `planted` names with `values` codes each, of which `asked` are asked for."""
    def make(own, sample, _length, setting):
        names = _names(own, planted)
        codes = _codes(own, planted * values, setting.digits)
        pairs = [(name, codes[index * values + value]) for index, name in enumerate(names) for value in range(values)]
        needles = list(zip(_depths(sample, len(pairs)), (setting.needle(*pair) for pair in pairs)))
        words = setting.haystack.words(own)
        return Instance(_FIND, lambda n: _planted(words(n), needles), setting.question(names[:asked]),
                        [code for name, code in pairs if name in names[:asked]])
    return make


def _only_needles(own, sample, _length, setting):
    """The haystack is made of needles."""
    (name,), (code,) = _uuids(own, 1), _uuids(own, 1)
    others = []

    def body(n):
        while len(others) < n:
            others.append(setting.needle(*_uuids(own, 2)))
        place = round(_depths(sample, 1)[0] * n)
        return "\n".join([*others[:place], setting.needle(name, code), *others[place:n]])
    return Instance(_FIND, body, setting.question([name]), [code])


def _variable_tracking(own, sample, _length, setting):
    """A value, and four assignments of one variable to the next."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    names = []
    while len(names) < 5:
        name = "".join(own.choices(letters, k=5))
        if name not in names:
            names.append(name)
    value = str(own.randrange(10_000, 100_000))
    lines = [f"VAR {name} = {f'VAR {names[index - 1]}' if index else value}" for index, name in enumerate(names)]
    needles = list(zip(sorted(_depths(sample, len(names))), lines))  # a variable is used after its assignment
    words = setting.haystack.words(own)
    return Instance("Assignments to variables are hidden in the following text. Keep track of their values.",
                    lambda n: _planted(words(n), needles),
                    f"Question: which variables have the value {value}, directly or through others? There are five. "
                    f"Answer: the variables with the value {value} are", names)


def _common_words(own, _sample, length, _setting):
    """Ten words that are ten times as common as all others, in a numbered list."""
    often = max(3, min(30, length * 30 // 4096))
    seldom = max(1, often // 10)
    common = _pseudo_words(own, 10)
    order = own.getrandbits(64)
    others = {}

    def body(n):
        while len(others) < n:
            others.update((word, None) for word in _pseudo_words(own, n - len(others)) if word not in common)
        listed = common * often + list(others)[:n] * seldom
        random.Random(order).shuffle(listed)
        return " ".join(f"{number}. {word}" for number, word in enumerate(listed, 1))
    return Instance("Here is a numbered list of words. Some of them are more common in it than the others.", body,
                    "Question: which ten words are the most common in the list above? Answer: the ten most common words are",
                    common, 10)


def _frequent_words(own, _sample, _length, _setting):
    """Words by a zeta distribution with exponent 2; the most frequent one is noise, a row of dots."""
    words = ["..."]
    order = own.getrandbits(64)

    def body(n):
        counts = []
        while not counts or counts[-1] > 0:
            counts.append(int(n * (len(counts) + 1) ** -2 / ZETA_2))
        while len(words) < len(counts):
            words.extend(word for word in _pseudo_words(own, 1) if word not in words)
        listed = [word for word, count in zip(words, counts) for _ in range(count)]
        random.Random(order).shuffle(listed)
        return " ".join(listed)
    instance = Instance("The following text is in code. Count its words, and leave the dots out.", body,
                        "Question: which three words are the most frequent in the coded text above? Answer: the three most "
                        "frequent words are", None, 60)
    body(instance.least)
    instance.answers = words[1:4]
    return instance


TASKS = {task.name: task for task in (
    Task("niah_single", _needles(1), 128, "one needle"),
    Task("niah_multikey", _needles(4), 128, "four needles, one of them asked for"),
    Task("niah_uuid", _only_needles, 128, "a haystack of needles, names and codes are UUIDs"),
    Task("niah_multivalue", _needles(1, values=4), 128, "four codes of one name"),
    Task("niah_multiquery", _needles(4, asked=4), 128, "four needles, all asked for"),
    Task("variable_tracking", _variable_tracking, 30, "a chain of five variables"),
    Task("common_words", _common_words, 120, "the ten most common words of a list"),
    Task("frequent_words", _frequent_words, 50, "the three most frequent words of a coded text"),
)}


class Prompt:
    """text; answers, the strings that are looked for; room, the most tokens of an answer; tokens, those of the text."""

    def __init__(self, text, answers, room, tokens):
        self.text, self.answers, self.room, self.tokens = text, answers, room, tokens


def _with_space(question, answer, tokenize):
    """The question, with a space at its end where the space before the answer is a token of its own.

    Such a token says nothing of the answer, and all after it would be decoded densely, whatever the prefill saw.
    """
    longer = tokenize(question + " ")
    return question + " " if tokenize(f"{question} {answer}")[:len(longer)] == longer != tokenize(question) else question


def split(text):
    """A prompt's text as (what is asked, the beginning of its answer): for chats, where the second is the model's."""
    before, _, question = text.rpartition("\n")
    asked, found, answer = question.partition(" Answer: ")
    return f"{before}\n{asked}", answer if found else ""


def prompt(task, setting, sample, length, tokenize, encode=None):
    """The Prompt of a sample that takes `length` tokens together with the room for its answer, never more.

    tokenize: text -> ids. encode: the same of a whole prompt, where that is more than its text (a chat). The context grows by bisection, word by word; what is left is filled with dots. Where no number of
    dots gives the length to the token (a vocabulary that joins them), the prompt is the longest below it.
    Errors: ValueError where the length is too short for the task.
    """
    own = random.Random(f"{setting.seed}/{task.name}/{sample}")
    instance = task.make(own, sample, length, setting)
    instance.question = _with_space(instance.question, instance.answers[0], tokenize)

    def count(text):
        return len((encode or tokenize)(text))

    # A vocabulary that cuts words small needs more than the paper's room.
    room = max(task.room, 3 * len(tokenize(" " + ", ".join(instance.answers))) // 2)
    wanted = length - room
    least = count(instance.text(instance.least, 0))
    if least > wanted:
        raise ValueError(f"length {length} is too short for task {task.name}, sample {sample}; allowed: {least + room} or more")
    fits, step = instance.least, max(1, wanted // 8)
    while count(instance.text(fits + step, 0)) <= wanted:
        fits += step
        step *= 2
    over = fits + step
    while over - fits > 1:
        middle = (fits + over) // 2
        if count(instance.text(middle, 0)) <= wanted:
            fits = middle
        else:
            over = middle
    # The last word and the first dot may join, so that a dot more is two tokens or none: then a shorter context.
    found = None
    for size in range(fits, max(fits - 4, instance.least - 1), -1):
        text, tokens = _filled(instance, size, wanted, count)
        if found is None or tokens > found.tokens:
            found = Prompt(text, instance.answers, room, tokens)
        if tokens == wanted:
            break
    return found


def _filled(instance, size, wanted, count):
    text = instance.text(size, 0)
    tokens = count(text)
    filler = wanted - tokens
    for _ in range(8):  # a dot is a token nearly everywhere: one or two steps
        if tokens == wanted or filler < 1:
            break
        longer = instance.text(size, filler)
        now = count(longer)
        if tokens < now <= wanted:
            text, tokens = longer, now
        filler += wanted - now
    return text, tokens
