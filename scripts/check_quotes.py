#!/usr/bin/env python3
"""check_quotes.py [--fix] [ROOT]: fails when a page quotes a file and does not say what the file says.

A quote is a line `<!-- quotes PATH -->` (from the root of the tree) and the fenced block after it, which holds the whole file. --fix
writes the file into the block. At least one quote must be found, so that a changed marker does not end the check.
"""
import pathlib
import re
import sys

QUOTE = re.compile(r"^<!-- quotes (\S+) -->\n+```[a-z]*\n(.*?)^```$", re.M | re.S)
MARKER = re.compile(r"^<!-- quotes ", re.M)


def main() -> int:
    words = [word for word in sys.argv[1:] if word != "--fix"]
    fix = len(words) != len(sys.argv) - 1
    root = pathlib.Path(words[0] if words else pathlib.Path(__file__).parent.parent)
    found, wrong = 0, []
    for page in sorted(root.glob("*.md")) + sorted(p for top in ("rendezvous", "launcher", "worker_runtime") for p in (root / top).rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        name = page.relative_to(root)
        quotes = list(QUOTE.finditer(text))
        found += len(quotes)
        if len(quotes) != len(MARKER.findall(text)):
            wrong.append(f"{name}: a quote is not followed by a fenced block")
        for quote in reversed(quotes):
            source = root / quote[1]
            if not source.is_file():
                wrong.append(f"{name}: quotes {quote[1]}, which is not there")
            elif source.read_text(encoding="utf-8") != quote[2]:
                text = text[: quote.start(2)] + source.read_text(encoding="utf-8") + text[quote.end(2):]
                if not fix:
                    wrong.append(f"{name}: differs from {quote[1]}, which it quotes (scripts/check_quotes.py --fix)")
        if fix:
            page.write_text(text, encoding="utf-8")
    if found == 0:
        wrong.append("there is no quote at all")
    print("\n".join(wrong) if wrong else f"quotes: {found} as in their files")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
