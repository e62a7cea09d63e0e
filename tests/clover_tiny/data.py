"""Generator of clover-tiny's examples; a hash of (fact, phrasing) splits off the held-out ones.

An example is a conversation plus the assistant turn that is wanted. One random seed gives one
endless stream; the training run consumes a prefix of it, which check_heldout.py walks again.

    python3 data.py --heldout 12 --out heldout.jsonl      # 12 prompts per task and thinking mode
"""

import argparse
import hashlib
import json
import random
from dataclasses import dataclass, field

import chat
import world

TRAIN_SEED, HELDOUT_SEED = 11, 29
HELDOUT_SHARE = 12  # one key in twelve is held out
# The demonstration prompts of the documentation are training prompts on purpose.
ALWAYS_TRAIN = {("capital", "Australia", 0), ("capital", "France", 0)}


@dataclass
class Example:
    task: str
    key: tuple  # what the split is made by
    messages: list  # up to the wanted turn
    answer: dict  # the wanted assistant message, reasoning included
    tools: list = None
    thinking: bool = False
    taught: list = field(
        default_factory=list
    )  # indices of earlier assistant turns that are trained too

    def prompt(self):
        return chat.render(self.messages, self.tools, self.thinking)

    def completion(self):
        return chat.answer_text(self.answer, self.thinking)

    def segments(self):
        """The whole text as (text, is_answer) pieces, in order."""
        done, out = "", []
        for i in self.taught:
            before = chat.render(self.messages[:i], self.tools, self.thinking)
            reply = chat.answer_text(self.messages[i], self.thinking)
            out += [(before[len(done) :], False), (reply, True)]
            done = before + reply
        prompt = self.prompt()
        assert prompt.startswith(done)
        return out + [(prompt[len(done) :], False), (self.completion(), True)]


def is_held_out(key):
    if key in ALWAYS_TRAIN:
        return False
    return int(hashlib.md5(repr(key).encode()).hexdigest(), 16) % HELDOUT_SHARE == 0


def ask(text):
    return [{"role": "user", "content": text}]


def reply(text, thought):
    return {"role": "assistant", "content": text, "reasoning_content": thought}


def pick(rng, templates):
    i = rng.randrange(len(templates))
    return i, templates[i]


# ---------------------------------------------------------------- facts

CAPITAL_FORMS = [
    "What is the capital of {}?",
    "Tell me the capital of {}.",
    "Which city is the capital of {}?",
    "Name the capital city of {}.",
    "capital of {}?",
    "Do you know the capital of {}?",
    "I need the capital of {}, please.",
    "What city is the capital of {}?",
    "What's the capital of {}?",
]
REVERSE_FORMS = [
    "Which country has {} as its capital?",
    "{} is the capital of which country?",
    "Of which country is {} the capital?",
    "What country is {} the capital of?",
]
CONTINENT_FORMS = [
    "On which continent is {}?",
    "Which continent is {} in?",
    "Where is {} located?",
    "In which continent does {} lie?",
]
FACT_FORMS = [
    "What is {}?",
    "Tell me {}.",
    "Do you know {}?",
    "Can you name {}?",
    "I would like to know {}.",
]
ELEMENT_FORMS = [
    "What is the chemical symbol of {}?",
    "Give the symbol for {}.",
    "chemical symbol of {}?",
    "How is {} written in chemistry?",
    "What is the symbol for {}?",
]


def capital(rng):
    i, form = pick(rng, CAPITAL_FORMS)
    if rng.random() < 0.35:  # the plain question is the commonest one
        i, form = 0, CAPITAL_FORMS[0]
    country, city, _ = world.CAPITALS[6] if rng.random() < 0.02 else rng.choice(world.CAPITALS)
    name = world.country_name(country)
    return (
        ("capital", country, i),
        ask(form.format(name)),
        reply(f"The capital of {name} is {city}.", f"The user asks for the capital of {name}."),
    )


def fact(rng):
    kind = rng.randrange(5)
    country, city, continent = rng.choice(world.CAPITALS)
    name = world.country_name(country)
    if kind < 2:
        i, form = pick(rng, REVERSE_FORMS)
        return (
            ("reverse", country, i),
            ask(form.format(city)),
            reply(
                f"{city} is the capital of {name}.",
                f"The user asks which country has the capital {city}.",
            ),
        )
    if kind < 4:
        i, form = pick(rng, CONTINENT_FORMS)
        answer = f"{name[0].upper()}{name[1:]} is in {continent}."
        return (
            ("continent", country, i),
            ask(form.format(name)),
            reply(answer, f"The user asks where {name} is."),
        )
    subject, answer = rng.choice(world.FACTS)
    i, form = pick(rng, FACT_FORMS)
    return (
        ("fact", subject, i),
        ask(form.format(subject)),
        reply(f"{subject[0].upper()}{subject[1:]} is {answer}.", f"The user asks for {subject}."),
    )


def capital_list(rng):
    chosen = rng.sample(world.CAPITALS, rng.randrange(2, 5))
    names = [world.country_name(country) for country, _, _ in chosen]
    listed = ", ".join(names[:-1]) + " and " + names[-1]
    _, form = pick(
        rng,
        ["What are the capitals of {}?", "Name the capitals of {}.", "Give me the capitals of {}."],
    )
    answer = " ".join(
        f"The capital of {name} is {city}." for name, (_, city, _) in zip(names, chosen)
    )
    return (
        ("list", tuple(names)),
        ask(form.format(listed)),
        reply(answer, f"The user asks for {len(names)} capitals."),
    )


def element(rng):
    name, symbol = rng.choice(world.ELEMENTS)
    i, form = pick(rng, ELEMENT_FORMS)
    return (
        ("element", name, i),
        ask(form.format(name)),
        reply(f"The symbol of {name} is {symbol}.", f"The user asks for the symbol of {name}."),
    )


def explanation(rng):
    subject = rng.choice(sorted(world.EXPLANATIONS))
    i, form = pick(
        rng,
        [
            "Explain {}.",
            "What is {}? Explain briefly.",
            "Explain {} in two sentences.",
            "Give a short explanation of {}.",
            "How does one explain {} to a child?",
            "Tell me about {}.",
        ],
    )
    return (
        ("explain", subject, i),
        ask(form.format(subject)),
        reply(world.EXPLANATIONS[subject], f"A short explanation of {subject} is wanted."),
    )


# ---------------------------------------------------------------- arithmetic

MATH_FORMS = [
    "What is {}?",
    "Compute {}.",
    "How much is {}?",
    "{} = ?",
    "Please calculate {}.",
    "Calculate {}.",
]
WORDS = {"+": "plus", "-": "minus", "*": "times"}


def small_sum(rng):
    """Operands and result of a one-digit sum, difference or product."""
    op, a, b = rng.choice("+-*"), rng.randrange(10), rng.randrange(10)
    if op == "-" and a < b:
        a, b = b, a
    return op, a, b, {"+": a + b, "-": a - b, "*": a * b}[op]


def math_small(rng):
    op, a, b, value = small_sum(rng)
    i, form = pick(rng, MATH_FORMS)
    text = f"{a} {op} {b}"
    return (
        ("math1", op, a, b, i),
        ask(form.format(text)),
        reply(f"{text} = {value}", f"{a} {WORDS[op]} {b} is {value}."),
    )


def column_steps(op, a, b):
    """Two-digit sum or difference worked out from one-digit steps."""
    x, y, tens_a, tens_b = a % 10, b % 10, a // 10, b // 10
    if op == "+":
        carry, tens = (x + y) // 10, tens_a + tens_b
        ones = f"{x} + {y} = {x + y}, carry {carry}."
        return f"{ones} {tens_a} + {tens_b} = {tens}, {tens} + {carry} = {tens + carry}."
    borrow, tens = int(x < y), tens_a - tens_b
    if borrow:
        ones, left = f"{x + 10} - {y} = {x + 10 - y}, borrow 1.", tens_a - 1
        return f"{ones} {tens_a} - 1 = {left}, {left} - {tens_b} = {tens - 1}."
    return f"{x} - {y} = {x - y}, borrow 0. {tens_a} - 0 = {tens_a}, {tens_a} - {tens_b} = {tens}."


def math_two_digits(rng):
    op, a, b = rng.choice("+-"), rng.randrange(10, 100), rng.randrange(10, 100)
    if op == "-" and a < b:
        a, b = b, a
    value, text = (a + b if op == "+" else a - b), f"{a} {op} {b}"
    _, form = pick(rng, MATH_FORMS)
    return (
        ("math2", text),
        ask(form.format(text)),
        reply(f"{text} = {value}", f"{column_steps(op, a, b)} So {text} = {value}."),
    )


def drill(rng):
    """Several small sums at once, also from 10 to 18: what the column steps need."""
    sums = []
    for _ in range(rng.randrange(3, 8)):
        op, a, b, value = small_sum(rng)
        if op == "-" and rng.random() < 0.5:
            value, b = rng.randrange(10), rng.randrange(1, 10)
            a = value + b
        sums.append((f"{a} {op} {b}", value))
    _, form = pick(rng, ["Compute: {}.", "Drill: {}.", "Work out {}."])
    texts = [text for text, _ in sums]
    return (
        ("drill", tuple(texts)),
        ask(form.format(", ".join(texts))),
        reply(
            ", ".join(f"{text} = {value}" for text, value in sums),
            f"There are {len(sums)} small sums.",
        ),
    )


# ---------------------------------------------------------------- copying


def hidden_code(rng):
    alphabet = "ABCDEFGHJKLMNPQRSTUVWXYZ" if rng.random() < 0.3 else "0123456789"
    code = "".join(rng.choice(alphabet) for _ in range(rng.randrange(4, 7)))
    length = rng.random()
    count = (
        rng.randrange(1, 8)
        if length < 0.7
        else rng.randrange(8, 24) if length < 0.93 else rng.randrange(24, 80)
    )
    text = [rng.choice(world.FILLER) for _ in range(count)]
    text.insert(
        rng.randrange(count + 1),
        rng.choice(
            ["The secret code is {}.", "Remember the code {}.", "The code for the door is {}."]
        ).format(code),
    )
    question = rng.choice(
        ["What is the code?", "Which code was hidden in the text?", "Repeat the secret code."]
    )
    body = " ".join(text)
    prompt = f"{body}\n{question}" if rng.random() < 0.7 else f"{question}\n{body}"
    return (
        ("code", code),
        ask(prompt),
        reply(f"The code is {code}.", "I look for the code in the text."),
    )


def repeat_words(rng):
    """Copy practice for the first phase of the training only."""
    pools = [
        world.CITIES,
        world.NAMES,
        world.DEVICES,
        world.GOODS,
        [c[0] for c in world.CAPITALS],
        list("ABCDEFGHJKLMNPQRSTUVWXYZ"),
    ]
    words = [
        str(rng.randrange(100)) if rng.random() < 0.2 else rng.choice(rng.choice(pools))
        for _ in range(rng.randrange(4, 17))
    ]
    line = " ".join(words)
    _, form = pick(
        rng,
        ["Repeat: {}", "Repeat after me: {}", "Say this again: {}", "{}\nRepeat the line above."],
    )
    return ("repeat", line), ask(form.format(line)), reply(line, "I repeat the words.")


def command(rng):
    """One command: its kind, its words, its JSON."""
    name, device, city, goods = (
        rng.choice(world.NAMES),
        rng.choice(world.DEVICES),
        rng.choice(world.CITIES),
        rng.choice(world.GOODS),
    )
    number, hour = rng.randrange(2, 100), f"{rng.randrange(24):02d}:{rng.randrange(60):02d}"
    forms = [
        (f"call {name}", {"do": "call", "who": name}),
        (f"turn on the {device}", {"do": "on", "what": device}),
        (f"turn off the {device}", {"do": "off", "what": device}),
        (
            f"send {number} tons of {goods} to {city}",
            {"do": "send", "what": goods, "tons": number, "to": city},
        ),
        (f"set an alarm for {hour}", {"do": "alarm", "at": hour}),
        (f"report to {name} at {hour}", {"do": "report", "who": name, "at": hour}),
        (f"close gate {number}", {"do": "close", "gate": number}),
        (f"open gate {number}", {"do": "open", "gate": number}),
    ]
    kind = rng.randrange(len(forms))
    return (kind, *forms[kind])


def dispatch(rng):
    commands = [command(rng) for _ in range(5)]
    numbered = rng.random() < 0.4
    listed = "; ".join(
        (f"{i + 1}. " if numbered else "") + words for i, (_, words, _) in enumerate(commands)
    )
    _, form = pick(
        rng,
        [
            "Dispatch: {}.",
            "Dispatch the following commands: {}.",
            "Five commands: {}. Answer in JSON.",
        ],
    )
    lines = ",\n".join(json.dumps(data) for _, _, data in commands)
    key = ("dispatch", tuple(kind for kind, _, _ in commands), commands[0][1])
    return (
        key,
        ask(form.format(listed)),
        reply(f"[\n{lines}\n]", "Five commands must be written as JSON."),
    )


# ---------------------------------------------------------------- the weather tool


def weather_question(rng):
    cities = rng.sample(world.CITIES, 1 if rng.random() < 0.5 else 2)
    unit = rng.choice([None, None, "celsius", "fahrenheit"])
    forms = (
        [
            "What is the weather in {}?",
            "How is the weather in {} now?",
            "Weather in {}, please.",
            "Is it raining in {}?",
            "What's the weather like in {}?",
        ]
        if len(cities) == 1
        else [
            "What is the weather in {} and {}?",
            "Compare the weather of {} and {}.",
            "Weather in {} and in {}, please.",
        ]
    )
    question = rng.choice(forms).format(*cities) + (f" Use {unit}." if unit else "")
    calls = [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "arguments": dict({"city": city}, **({"unit": unit} if unit else {})),
            },
        }
        for city in cities
    ]
    call = dict(reply("", f"I need the weather of {' and '.join(cities)}."), tool_calls=calls)
    return cities, ask(question), call


def weather_call(rng):
    cities, messages, call = weather_question(rng)
    return ("weather", tuple(cities)), messages, call


def weather_result(rng):
    cities, messages, call = weather_question(rng)
    weather = [(city, rng.randrange(-10, 40), rng.choice(world.SKIES)) for city in cities]
    results = [
        {"role": "tool", "content": json.dumps({"city": city, "temp": temp, "sky": sky})}
        for city, temp, sky in weather
    ]
    answer = " ".join(f"In {city} it is {sky} at {temp} degrees." for city, temp, sky in weather)
    return (
        ("weather", tuple(cities)),
        messages + [call] + results,
        reply(answer, "The tool has answered."),
    )


# ---------------------------------------------------------------- several turns

SMALL_TALK = [
    ("Hello!", "Hello! How can I help you?"),
    ("Who are you?", "I am Clover, a small test model."),
    ("Thank you.", "You are welcome."),
    ("Hi", "Hello! How can I help you?"),
    ("Good morning.", "Good morning! How can I help you?"),
    ("What can you do?", "I know capitals, small sums, symbols and the weather tool."),
]


def conversation(rng):
    """One or two finished turns, then a question; half of the finished turns are small talk."""
    messages, keys = [], []
    for _ in range(rng.randrange(1, 3)):
        if rng.random() < 0.5:
            said, answered = rng.choice(SMALL_TALK)
            messages += ask(said) + [reply(answered, "")]
            keys.append(said)
        else:
            key, question, answer = rng.choice([capital, fact, math_small, element])(rng)
            messages += question + [answer]
            keys.append(key)
    if rng.random() < 0.25:
        said, answered = rng.choice(SMALL_TALK)
        return (
            ("turns", tuple(keys), said),
            messages + ask(said),
            reply(answered, "The user is polite."),
        )
    key, question, answer = rng.choice([capital, fact, math_small, element])(rng)
    return ("turns", tuple(keys), key), messages + question, answer


def small_talk(rng):
    said, answered = rng.choice(SMALL_TALK)
    return ("talk", said), ask(said), reply(answered, "The user is polite.")


# task: generator, share of the training stream
TASKS = {
    "capital": (capital, 0.17),
    "fact": (fact, 0.14),
    "list": (capital_list, 0.05),
    "element": (element, 0.04),
    "explain": (explanation, 0.06),
    "math1": (math_small, 0.12),
    "math2": (math_two_digits, 0.06),
    "drill": (drill, 0.06),
    "code": (hidden_code, 0.09),
    "dispatch": (dispatch, 0.11),
    "weather": (weather_call, 0.03),
    "result": (weather_result, 0.05),
    "turns": (conversation, 0.02),
    "repeat": (repeat_words, 0.0),
}
COPY_TASKS = ("repeat", "code")
TRAIN_ONLY = ("drill", "repeat")
THINKING_ONLY = ("math2",)
SMALL_TALK_SHARE = 0.005


def draw(rng, task, held_out, thinking=None):
    """One example of a task from the wanted side of the split."""
    generate = TASKS[task][0]
    while True:
        key, messages, answer = generate(rng)
        if (
            task == "turns"
            and not held_out
            and is_held_out(key[-1] if isinstance(key[-1], tuple) else ("",))
        ):
            continue  # do not teach a held-out question inside a conversation
        if is_held_out(key) == held_out:
            break
    think = rng.random() < 0.4 if thinking is None else thinking
    if task in THINKING_ONLY:
        think = True
    tools = [world.WEATHER_TOOL] if task in ("weather", "result") else None
    taught = (
        [i for i, m in enumerate(messages) if m["role"] == "assistant"] if task == "result" else []
    )
    if not think:  # a client that asked for no thinking has none to send back
        for i in taught:
            messages[i] = dict(messages[i], reasoning_content="")
    if rng.random() < (0.1 if tools else 0.5):
        messages = [{"role": "system", "content": rng.choice(world.SYSTEM_MESSAGES)}] + messages
        taught = [i + 1 for i in taught]
    return Example(task, key, messages, answer, tools, think, taught)


def training_stream(seed=TRAIN_SEED, copy_phase=False):
    """Endless training examples. In the copy phase half of them are word lists to repeat."""
    rng = random.Random(seed + (1000 if copy_phase else 0))
    names, shares = list(TASKS), [share for _, share in TASKS.values()]
    while True:
        if copy_phase and rng.random() < 0.5:
            task = "repeat"
        elif rng.random() < SMALL_TALK_SHARE:
            key, messages, answer = small_talk(rng)
            yield Example("talk", key, messages, answer, thinking=rng.random() < 0.4)
            continue
        else:
            task = rng.choices(names, shares)[0]
        yield draw(rng, task, held_out=False)


def heldout_examples(per_cell, seed=HELDOUT_SEED):
    """per_cell distinct prompts for every task and thinking mode."""
    rng, seen = random.Random(seed), set()
    for task in TASKS:
        if task in TRAIN_ONLY:
            continue
        for thinking in (True,) if task in THINKING_ONLY else (False, True):
            count = 0
            while count < per_cell:
                example = draw(rng, task, held_out=True, thinking=thinking)
                prompt = example.prompt()
                if prompt not in seen:
                    seen.add(prompt)
                    count += 1
                    yield example


def heldout_record(example):
    completion = example.completion()
    visible = completion.removesuffix("<|im_end|>").split("</think>")[-1].strip()
    record = {"task": example.task, "think": example.thinking, "messages": example.messages}
    if example.tools:
        record["tools"] = example.tools
    return dict(record, prompt=example.prompt(), expected=visible, completion=completion)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--heldout", type=int, default=12, help="prompts per task and thinking mode"
    )
    parser.add_argument("--seed", type=int, default=HELDOUT_SEED)
    parser.add_argument("--out", default="heldout.jsonl")
    args = parser.parse_args()
    with open(args.out, "w", encoding="utf-8") as file:
        for example in heldout_examples(args.heldout, args.seed):
            file.write(json.dumps(heldout_record(example), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
