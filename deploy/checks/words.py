"""Finds sentences in Markdown files that are hard to read, and counts them for each file.

A fault is a sentence above 30 words (long); a paragraph of three sentences or more, of which more
than a third have at most eight words (staccato); or a phrase that is translated German (phrase).
Code is left out. Tables and headings are searched only for phrases, and the items of lists are
not searched for staccato.

With --bounds FILE the script prints only the files with more faults of a kind than that file
allows, and fails if there are any. --update writes the present counts into it.
"""

import argparse
import re
import sys

KINDS = ("long", "staccato", "phrase")
PHRASES = re.compile(
    r"""\b(
    also\s(while|when|if|of|with|without)
    | (it|this|that)\sis\sno(?!\slonger) | is\sno\s(database|promise|reason)
    | of\sa\spage\sof | of\s(another|other|every|each)\sorigins?
    | (let|lets|letting)\sgo\sof
    | (have|has|had|having)\shad | counts?\sas\shad
    | (be|is|are|was|were)\stold
    | (take|takes|took|taken)(\s\w+){0,2}\sfor\sdead
    | suffers?(ed)?\ssilence | keeps?\s(its|their)\sword
    | (go|goes|went)\son
    | room\sagain | (has|have|no)\sroom
    | (table|log|setting|file|line|document|guide|page)\s(tells|names)
    | may\sstand | (hello|poll|answer|session)\sof\sthe\s\w+'s\sown
    | of\s(\w+\s){1,2}of\s(\w+\s){1,2}of
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)
SUBJECT = re.compile(r"\A(Who|What)\b(?! to\b)[^?]*$")  # "Who finds none waits", but not a question
SENTENCE = re.compile(r"\S.*?(?:[.!?][\"')”’*_]*(?=\s+(?:[^a-z\s]|pubsub))|\Z)", re.DOTALL)
CODE = re.compile(r"`[^`]*`")
FENCE = re.compile(r"\s*(```|~~~)")
ITEM = re.compile(r"(\s*(?:[-*+]|\d+[.)])\s+)\S")
HTML = re.compile(r"\s*</?[a-zA-Z!][\w-]*[\s>/]|\s*<!--")


def blocks(markdown):
    """Yields the kind, the line and the text of each block: prose, item or cells."""
    kind, start, lines, column, fence, html = "prose", 0, [], 0, "", False
    for number, line in enumerate([*markdown.splitlines(), ""], 1):
        mark = FENCE.match(line)
        cells = line.lstrip().startswith(("|", "#"))
        item = ITEM.match(line)
        if fence or mark or cells or item or not line.strip():
            if lines:
                yield kind, start, "\n".join(lines)
            lines = []
        if fence or mark:
            if not fence:
                fence = mark[1]
            elif mark and mark[1] == fence:
                fence = ""
        elif cells:
            yield "cells", number, line.strip("|# ").replace("|", " . ")
        elif not line.strip():
            html = False
        elif html or (not lines and HTML.match(line)):
            html = True
        elif lines:
            lines.append(line.strip())
        else:
            indent = len(line) - len(line.lstrip())
            column = min(column, indent)
            if indent < column + 4 or (item and kind == "item"):
                kind, start, lines = "item" if item or column else "prose", number, [line[len(item[1]) :] if item else line.strip("> ")]
                column = len(item[1]) if item else column


def plain(text):
    """Returns what a reader sees of a text, with its line breaks, and a mark where a link begins."""
    text = re.sub(r"\A\*\*[^*]+[.:]\*\*\s?", "", text)  # a heading in the line
    text = re.sub(r"!\[[^]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^]]*)\](\([^)]*\)|\[[^]]*\])", r"[\1", text)
    return CODE.sub(lambda code: re.sub(r"[.!?](?=\s)", ",", code[0]), text)


def faults(markdown):
    """Yields the line, the kind and the text of each fault.

    >>> def kinds(markdown):
    ...     return [(line, kind) for line, kind, _ in faults(markdown)]
    >>> kinds("It has" + " one word" * 14 + ".\\n\\nIt has" + " one word" * 14 + " more.")
    [(3, 'long')]
    >>> kinds("It starts. It stops. This sentence has more words than eight, and it says why.")
    [(1, 'staccato')]
    >>> kinds("- It starts. It stops. It starts again.\\n\\n# It starts. It stops. It starts again.")
    []
    >>> kinds("| a | table |\\n|---|---|\\n| it listens | also while it waits |\\n\\n# It is no database")
    [(3, 'phrase'), (5, 'phrase')]
    >>> kinds("It says:\\n\\n```\\nalso while\\n```\\n\\n    also while\\n\\n1. It is ready.\\n   Clients let\\n   go of it.")
    [(10, 'phrase')]
    >>> kinds("What arrives is read. What arrives?")
    [(1, 'phrase')]
    """
    for kind, start, text in blocks(markdown):
        text = plain(text)
        lengths = []
        for match in SENTENCE.finditer(text):
            line, sentence = start + text.count("\n", 0, match.start()), match[0]
            lengths.append(sum(any(letter.isalnum() for letter in word) for word in sentence.split()))
            if kind != "cells" and lengths[-1] > 30:
                yield line, "long", f"({lengths[-1]} words) {sentence}"
            for phrase in [*PHRASES.finditer(CODE.sub("``", sentence)), *(SUBJECT.finditer(sentence) if kind != "cells" else ())]:
                yield line, "phrase", f"({phrase[1]}) {sentence}"
        short = sum(length <= 8 for length in lengths)
        if kind == "prose" and len(lengths) >= 3 and short * 3 > len(lengths):
            yield start, "staccato", f"({short} of {len(lengths)} sentences) {text}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bounds", metavar="FILE", help="the file with the counts that the documents may have")
    parser.add_argument("--update", action="store_true", help="write the counts into that file")
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()
    bounds = {}
    if arguments.bounds and not arguments.update:
        with open(arguments.bounds, encoding="utf-8") as file:
            bounds = {path: [int(count) for count in counts] for *counts, path in map(str.split, file.readlines()[1:])}
    header, table, worse = "".join(f"{kind:>9}" for kind in KINDS) + "  file", [], []
    for path in arguments.files:
        with open(path, encoding="utf-8") as file:
            found = sorted(faults(file.read()))
        counts = [sum(kind == one for _, one, _ in found) for kind in KINDS]
        exceeded = [kind for kind, count, bound in zip(KINDS, counts, bounds.get(path, [0] * len(KINDS))) if count > bound]
        if any(counts):
            table.append("".join(f"{count:9}" for count in counts) + "  " + path)
        if exceeded:
            worse.append(path)
        for line, kind, text in found:
            if not arguments.update and kind in exceeded:
                print(f"{path}:{line}: {kind} {' '.join(text.split())}")
    if arguments.update:
        with open(arguments.bounds, "w", encoding="utf-8") as file:
            print(header, *table, sep="\n", file=file)
    else:
        print(header, *(row for row in table if not bounds or row.split()[-1] in worse), sep="\n")
    if arguments.bounds and worse and not arguments.update:
        sys.exit(f"{', '.join(worse)}: more faults than {arguments.bounds} allows: mend those that you added")


if __name__ == "__main__":
    main()
