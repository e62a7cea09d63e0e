"""Golden prompts of the chat template, by jinja2 in the environment that transformers uses.

usage: make_chat.py OUTDIR TEMPLATE

TEMPLATE is the published Qwen3.5 template (models/templates/Qwen3.5-4B.jinja in the source of
llama.cpp). Two of its lines are edited here to what Qwen3.6's say: `preserve_thinking`, and
arguments that are no strings are written as JSON. Conversations are random, a fifth of them wrong.
"""

import json
import random
import sys
from pathlib import Path

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import _compile_jinja_template

SEED, N = 3636, 2000
CHANGES = [
    (
        "{%- if loop.index0 > ns.last_query_index %}",
        "{%- if (preserve_thinking is defined and preserve_thinking is true)"
        " or (loop.index0 > ns.last_query_index) %}",
    ),
    (
        "args_value | tojson | safe if args_value is mapping or (args_value is sequence"
        " and args_value is not string) else args_value | string",
        "args_value | string if args_value is string else args_value | tojson | safe",
    ),
]
PIECES = ["Hello", "world", "a", "I'm", "2 + 2", "naïve café", "你好", "привет", "שלום", "🙂"]
PIECES += ["👩‍💻", "<b>", "&amp;", '"quoted"', "back\\slash", "x/y", "{}", "[1]", "None", "true"]
PIECES += ["the end.", "<tool_call>", "</tool_call>", "<|im_end|>", "<|im_start|>user", "{{ x }}"]
PIECES += ["{% if %}", "e\u0301", "\u2028", "\x7f", "\x1f", "tab\there", "\x01", "</think>"]
SPACES = [" ", "\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2003", "\x0b", "\x1c", "\x1f", "\u0085"]
NOT_SPACES = ["\u200b", "\ufeff", "\u2060"]
NUMBERS = [0, 1, -7, 42, 123456789012, 1.5, -0.25, 0.1, 3.14159, 100.0]
EXOTIC = [1e-7, 1e16, 1e22, 2.5e-5, 123456789.123456789, 5e-324]
NAMES = ["get_weather", "search", "f", "run_code", "名前", "a-b.c"]


class Chats:
    """Draws conversations."""

    def __init__(self, seed):
        self.r = random.Random(seed)

    def maybe(self, p):
        return self.r.random() < p

    def text(self, hi=5):
        """A few pieces between white space, sometimes none; think tags in odd places at times."""
        r = self.r
        parts = [
            r.choice(PIECES) + (r.choice(SPACES) if self.maybe(0.3) else " ")
            for _ in range(r.randint(0, hi))
        ]
        if self.maybe(0.1):
            parts.insert(r.randint(0, len(parts)), r.choice(NOT_SPACES))
        edge = lambda: "".join(r.choice(SPACES) for _ in range(r.randint(0, 2)))
        return (
            (edge() if self.maybe(0.3) else "")
            + "".join(parts)
            + (edge() if self.maybe(0.3) else "")
        )

    def content(self, text):
        """The text as a string, or as a list of text parts."""
        if not self.maybe(0.1):
            return text
        cut = self.r.randint(0, len(text))
        return [{"type": "text", "text": text[:cut]}, {"type": "text", "text": text[cut:]}]

    def value(self, depth=0):
        """Any JSON value."""
        r = self.r
        kind = r.randint(0, 7 if depth < 2 else 5)
        if kind <= 2:
            return self.text(3)
        if kind == 3:
            return r.choice(NUMBERS) if self.maybe(0.9) else r.choice(EXOTIC)
        if kind == 4:
            return r.choice([True, False, None])
        if kind == 5:
            return r.choice(["", "x", 7])
        if kind == 6:
            return [self.value(depth + 1) for _ in range(r.randint(0, 3))]
        return {r.choice(PIECES) + str(i): self.value(depth + 1) for i in range(r.randint(0, 3))}

    def tool(self):
        schema = {
            "type": "object",
            "properties": {"p": {"type": "string", "description": self.text(2)}},
        }
        if self.maybe(0.3):
            schema["properties"]["q"] = {"enum": self.value(1), "minimum": self.r.choice(NUMBERS)}
        function = {"name": self.r.choice(NAMES), "description": self.text(2), "parameters": schema}
        tool = {"type": "function", "function": function}
        return tool if self.maybe(0.9) else dict(reversed(tool.items()))

    def call(self):
        args = {f"{self.r.choice('pqr')}{i}": self.value() for i in range(self.r.randint(0, 3))}
        # the OpenAI interface sends arguments as a JSON string, which must be parsed first
        given = json.dumps(args, ensure_ascii=self.maybe(0.5)) if self.maybe(0.4) else args
        return {"type": "function", "function": {"name": self.r.choice(NAMES), "arguments": given}}

    def assistant(self):
        r, m = self.r, {"role": "assistant"}
        text = self.text()
        if self.maybe(0.35):
            think = "".join(r.choice(["\n", " ", "", "\n\n"]) for _ in range(2))
            before = r.choice(["<think>", "<think>\n", "x<think>a<think>\n\n", "", "\n<think>"])
            after = r.choice(
                ["</think>", "\n</think>\n\n", "\n\n</think>\n", "</think> y</think>\n"]
            )
            text = before + think + self.text(2) + after + text
        m["content"] = None if self.maybe(0.07) else self.content(text)
        if self.maybe(0.3):
            m["reasoning_content"] = None if self.maybe(0.2) else self.text(3)
        if self.maybe(0.3):
            m["tool_calls"] = [self.call() for _ in range(r.randint(0, 3))]
        return m

    def user(self):
        text = self.text()
        if self.maybe(0.1):
            text = self.r.choice(["<tool_response>", " <tool_response>\n"]) + text
            text += self.r.choice(["</tool_response>", "\n</tool_response>\n", ""])
        return {"role": "user", "content": self.content(text)}

    def messages(self):
        r, out = self.r, []
        if self.maybe(0.4):
            out.append({"role": "system", "content": self.content(self.text(3))})
        if self.maybe(0.93):
            out.append(self.user())
        for _ in range(r.randint(0, 5)):
            kind = r.randint(0, 4)
            if kind <= 1:
                out.append(self.assistant())
            elif kind == 2:
                out.append(self.user())
            else:
                for _ in range(r.randint(1, 2)):
                    out.append({"role": "tool", "content": self.content(self.text(3))})
        return self.spoilt(out) if self.maybe(0.12) else out

    def spoilt(self, messages):
        """Make it wrong: no message, a late system message, an unknown role, wrong content."""
        r = self.r
        how = r.randint(0, 4)
        if how == 0 or not messages:
            return []
        at = r.randint(0, len(messages))
        if how == 1:
            messages.insert(max(1, at), {"role": "system", "content": "late"})
        elif how == 2:
            role = r.choice(["developer", "function", "System", ""])
            messages.insert(at, {"role": role, "content": "x"})
        elif how == 3:
            messages[at - 1] = {
                "role": messages[at - 1]["role"],
                "content": r.choice([5, True, 1.5]),
            }
        else:
            part = {"type": "audio", "audio": "x"}
            messages[at - 1] = {"role": messages[at - 1]["role"], "content": [part]}
        return messages

    def one(self):
        """The request: what is absent is not in it."""
        out = {"messages": self.messages()}
        if self.maybe(0.25):
            out["tools"] = [self.tool() for _ in range(self.r.randint(0, 2))]
        for key, p in (("enable_thinking", 0.5), ("preserve_thinking", 0.4)):
            if self.maybe(p):
                out[key] = self.maybe(0.5)
        out["add_generation_prompt"] = self.maybe(0.8)
        return out


def parsed(messages):
    """What a server hands to the template: arguments as objects."""
    messages = json.loads(json.dumps(messages))
    for m in messages:
        for call in m.get("tool_calls") or []:
            if isinstance(call["function"]["arguments"], str):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return messages


def load_template(path):
    text = Path(path).read_text(encoding="utf-8")
    for old, new in CHANGES:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return _compile_jinja_template(text)


def main(out, template_path):
    out.mkdir(parents=True, exist_ok=True)
    template, chats, lines, errors = load_template(template_path), Chats(SEED), [], 0
    while len(lines) < N:
        request = chats.one()
        try:
            given = dict(request, messages=parsed(request["messages"]))
            result = {"expect": template.render(**given)}
        except TemplateError:
            result = {"error": True}
            errors += 1
        lines.append(json.dumps(request | result, ensure_ascii=False))
    (out / "qwen36.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    print(f"conversations {len(lines)}, errors {errors}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
