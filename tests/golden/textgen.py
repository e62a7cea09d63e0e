"""Seeded random strings that try to break a tokenizer. Used for the goldens and by the peers'
comparison.
"""

import random
import unicodedata

WHITE = [
    chr(c)
    for c in [
        9,
        10,
        11,
        12,
        13,
        32,
        0x85,
        0xA0,
        0x1680,
        *range(0x2000, 0x200B),
        0x2028,
        0x2029,
        0x202F,
        0x205F,
        0x3000,
    ]
]
NEARLY_WHITE = [
    "\x1c",
    "\x1d",
    "\x1e",
    "\x1f",
    "\u200b",
    "\u180e",
    "\u2060",
    "\ufeff",
    "\x00",
    "\x7f",
    "\xad",
]
CONTRACTIONS = [
    "'s",
    "'t",
    "'re",
    "'ve",
    "'m",
    "'ll",
    "'d",
    "'S",
    "'T",
    "'RE",
    "'Ve",
    "'M",
    "'lL",
    "'D",
    "'x",
    "''",
    "'",
    "'r",
    "'l",
    "\u2019s",
]
ODD = [
    "\ue000",
    "\uf8ff",
    "\U000f0000",
    "\ufffe",
    "\uffff",
    "\U0010ffff",
    "\u0378",
    "\ufffd",
    "\u200c",
    "\u200d",
    "\ufe0f",
    "\u20e3",
]
CODE = [
    "->",
    "::",
    "!=",
    "==",
    "/*",
    "*/",
    "//",
    "<<=",
    "&&",
    "||",
    "()",
    "{}",
    "[];",
    "#include",
    "0x1F",
    "std",
    "camelCase",
    "snake_case",
    "\t\t",
    "    ",
    "\n\n",
    "\r\n",
    "();\n",
    "\\n",
    "http://",
    "@",
    "$1",
    "%d",
    "1e-9",
    "3.14",
    "...",
    "----",
    "======",
    "<html>",
    "</p>",
]
EMOJI = [
    "😀",
    "👍",
    "👩",
    "💻",
    "🚀",
    "❤",
    "🏳",
    "🌈",
    "🇩",
    "🇪",
    "🇯",
    "🇵",
    "👨",
    "👧",
    "🙂",
    "✈",
    "☀",
    "🤷",
    "🫠",
    "⌚",
]
SKIN = ["\U0001f3fb", "\U0001f3fd", "\U0001f3ff"]
BLOCKS = [
    (0x21, 0x7E),
    (0xA1, 0x17E),
    (0x180, 0x24F),
    (0x250, 0x2AF),
    (0x370, 0x3FF),
    (0x400, 0x52F),
    (0x531, 0x58A),
    (0x591, 0x5F4),
    (0x600, 0x6FF),
    (0x700, 0x74F),
    (0x780, 0x7B1),
    (0x900, 0x97F),
    (0x980, 0x9FE),
    (0xA01, 0xA76),
    (0xA81, 0xAF1),
    (0xB01, 0xB77),
    (0xB82, 0xBFA),
    (0xC00, 0xC7F),
    (0xC80, 0xCF2),
    (0xD00, 0xD7F),
    (0xD81, 0xDF4),
    (0xE01, 0xE5B),
    (0xE81, 0xEDF),
    (0xF00, 0xFDA),
    (0x1000, 0x109F),
    (0x10A0, 0x10FF),
    (0x1100, 0x11FF),
    (0x1200, 0x1399),
    (0x13A0, 0x13FD),
    (0x1401, 0x167F),
    (0x1681, 0x169C),
    (0x16A0, 0x16F8),
    (0x1780, 0x17F9),
    (0x1800, 0x18AA),
    (0x1E00, 0x1EFF),
    (0x1F00, 0x1FFE),
    (0x2010, 0x2027),
    (0x2030, 0x205E),
    (0x2070, 0x209C),
    (0x20A0, 0x20BF),
    (0x2100, 0x218B),
    (0x2190, 0x23FF),
    (0x2460, 0x24FF),
    (0x2500, 0x27BF),
    (0x2900, 0x2BFF),
    (0x2C00, 0x2C5F),
    (0x2D00, 0x2D67),
    (0x3001, 0x303F),
    (0x3041, 0x309F),
    (0x30A0, 0x30FF),
    (0x3105, 0x312F),
    (0x3131, 0x318E),
    (0x3200, 0x33FF),
    (0x3400, 0x4DB5),
    (0x4E00, 0x9FD5),
    (0xA000, 0xA4C6),
    (0xA500, 0xA62B),
    (0xAC00, 0xD7A3),
    (0xF900, 0xFAD9),
    (0xFB00, 0xFB4F),
    (0xFB50, 0xFDFD),
    (0xFE20, 0xFE2F),
    (0xFF01, 0xFFEE),
    (0x10000, 0x100FA),
    (0x10300, 0x1034A),
    (0x10400, 0x1049D),
    (0x12000, 0x12399),
    (0x13000, 0x1342E),
    (0x1D100, 0x1D1E8),
    (0x1D400, 0x1D7FF),
    (0x1E900, 0x1E95F),
    (0x1F000, 0x1F0F5),
    (0x1F100, 0x1F1FF),
    (0x1F300, 0x1F64F),
    (0x1F680, 0x1F6FA),
    (0x1F900, 0x1F9FF),
    (0x20000, 0x2A6D6),
    (0x2F800, 0x2FA1D),
]
# full case folding makes 's match it in some regex engines: left out, as the tokenizer's page says
LONG_S = "\u017f"


def _points(kind):
    """Every assigned BMP and SMP code point whose general category starts with `kind`."""
    return [
        chr(c)
        for c in range(0x30000)
        if unicodedata.category(chr(c)).startswith(kind) and chr(c) != LONG_S
    ]


class TextGen:
    """Draws strings of one of a dozen kinds; `words` are texts of vocabulary tokens, so that long
    merges happen.
    """

    def __init__(self, seed, words, added, allowed=None):
        self.r, self.words, self.added = random.Random(seed), words, added
        ok = (lambda c: True) if allowed is None else allowed.__contains__
        self.marks = [c for c in _points("M") if ok(c)]
        self.digits = [c for c in _points("N") if ok(c)]
        self.blocks = []
        for lo, hi in BLOCKS:
            chars = [
                chr(c)
                for c in range(lo, hi + 1)
                if unicodedata.category(chr(c)) not in ("Cn", "Cs")
                and chr(c) != LONG_S
                and ok(chr(c))
            ]
            if chars:
                self.blocks.append(chars)
        self.kinds = [
            self.script,
            self.script,
            self.mixed,
            self.tokens,
            self.tokens,
            self.spaces,
            self.emoji,
            self.marked,
            self.code,
            self.special,
            self.numbers,
            self.repeat,
            self.odd,
        ]

    def some(self, items, lo, hi):
        return [self.r.choice(items) for _ in range(self.r.randint(lo, hi))]

    def script(self):
        chars = self.r.choice(self.blocks)
        return "".join(
            self.r.choice(chars) if self.r.random() < 0.85 else self.r.choice(" \n,.!-'")
            for _ in range(self.r.randint(1, 24))
        )

    def mixed(self):
        return "".join(
            self.r.choice(self.r.choice(self.blocks)) for _ in range(self.r.randint(1, 16))
        )

    def tokens(self):
        return "".join(self.some(self.words, 1, 7))

    def spaces(self):
        pool = WHITE + [" "] * 20 + ["\n"] * 6 + ["\r"] * 3 + NEARLY_WHITE
        out = []
        for _ in range(self.r.randint(1, 4)):
            out += self.some(pool, 0, 6) + [
                self.r.choice(["a", "B", "1", ".", "", "é", "中", "'s"])
            ]
        return "".join(out)

    def emoji(self):
        out = []
        for _ in range(self.r.randint(1, 6)):
            e = self.r.choice(EMOJI) + self.r.choice(["", "", "\ufe0f", self.r.choice(SKIN)])
            out.append(e + self.r.choice(["", "", "\u200d", " ", "1\ufe0f\u20e3", "a", "."]))
        return "".join(out)

    def marked(self):
        out = []
        for _ in range(self.r.randint(1, 5)):
            base = self.r.choice(
                ["a", "e", "O", " ", "", "1", "\n", ".", self.r.choice(self.r.choice(self.blocks))]
            )
            out.append(
                base
                + "".join(
                    self.some(
                        (
                            self.marks
                            if self.r.random() < 0.5
                            else ["\u0301", "\u0323", "\u0308", "\u0327", "\u05b0", "\u3099"]
                        ),
                        0,
                        3,
                    )
                )
            )
        return "".join(out)

    def code(self):
        return "".join(
            self.r.choice(CODE + CONTRACTIONS + self.words[:50])
            for _ in range(self.r.randint(1, 8))
        )

    def special(self):
        out = []
        for _ in range(self.r.randint(1, 4)):
            t = self.r.choice(self.added) if self.added else "<x>"
            if self.r.random() < 0.25:
                t = t[: self.r.randint(1, len(t))]
            out.append(
                t
                + self.r.choice(
                    ["", " ", "\n", "  ", "e\u0301", "\u0301", self.r.choice(self.words)]
                )
            )
        return self.r.choice(["", " ", "a", "\n "]) + "".join(out)

    def numbers(self):
        return "".join(
            self.r.choice(self.digits if self.r.random() < 0.4 else list("0123456789 ,."))
            for _ in range(self.r.randint(1, 14))
        )

    def repeat(self):
        unit = self.r.choice(
            [
                "a",
                "ab",
                " ",
                "=",
                "-",
                "\n",
                "中",
                "ha",
                "\t",
                "0",
                "é",
                "e\u0301",
                ".",
                "#",
                "\r\n",
                self.r.choice(self.words),
            ]
        )
        return unit * self.r.randint(2, max(2, min(40, 60 // len(unit))))

    def odd(self):
        pool = (
            ODD
            + NEARLY_WHITE
            + CONTRACTIONS
            + [
                "a",
                " ",
                "\n",
                "1",
                "word",
                " the",
                "\u1100\u1161\u11a8",
                "\ufb01",
                "\u212b",
                "\u2126",
                "ﬀ",
            ]
        )
        return "".join(self.some(pool, 1, 7))

    def one(self):
        s = self.r.choice(self.kinds)()
        return s if self.r.random() < 0.8 else s + self.r.choice(self.kinds)()

    def invalid(self):
        """Bytes that are not UTF-8: valid text with bytes cut, inserted, overwritten; surrogates
        and overlongs among them.
        """
        b = bytearray(self.one()[:20].encode("utf-8"))
        bad = [
            b"\xff",
            b"\xfe",
            b"\xc0\xaf",
            b"\xe0\x80\xaf",
            b"\xed\xa0\x80",
            b"\xed\xb0\x80",
            b"\xf4\x90\x80\x80",
            b"\xf0\x9f\x98",
            b"\xe4\xb8",
            b"\xc3",
            b"\x80",
            b"\xbf\xbf",
            b"\xf8\x88\x80\x80\x80",
            b"\xf0\x80\x80\xaf",
            b"\xe1\x80\xc3",
            b"\xf1\x80\x80\xf1\x80",
        ]
        for _ in range(self.r.randint(1, 3)):
            at = self.r.randint(0, len(b))
            what = self.r.random()
            if what < 0.6 or not b:
                b[at:at] = self.r.choice(bad)
            elif what < 0.8:
                del b[min(at, len(b) - 1)]
            else:
                b[min(at, len(b) - 1)] = self.r.randint(0x80, 0xFF)
        return bytes(b)
