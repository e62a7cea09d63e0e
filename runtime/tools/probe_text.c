#include "runtime/tools/probe_text.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/tools/masked.h"

#define ASK "<|im_start|>user\n"
#define REPLY "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
#define END "<|im_end|>"

const fl_probe_doc fl_probe_general[] = {
    {ASK "What is the capital of Australia?" REPLY, "The capital of Australia is Canberra." END},
    {ASK "Why is the sky blue? Answer in three sentences." REPLY,
     "Sunlight is a mixture of all colours. When it passes through the air, the molecules scatter "
     "short wavelengths much more strongly than long ones. That is why blue light reaches our eyes "
     "from every direction, while red light mostly travels straight on." END},
    {ASK "List the days of the week, one per line." REPLY,
     "Monday\nTuesday\nWednesday\nThursday\nFriday\nSaturday\nSunday" END},
    {ASK "Write a Python function that returns the factorial of n without recursion." REPLY,
     "```python\ndef factorial(n):\n    result = 1\n    for i in range(2, n + 1):\n"
     "        result *= i\n    return result\n```" END},
    {ASK "Repeat this sentence exactly: The quick brown fox jumps over the lazy dog." REPLY,
     "The quick brown fox jumps over the lazy dog." END},
    {ASK "How does a refrigerator keep food cold?" REPLY,
     "A refrigerator moves heat from the inside to the outside. A liquid called a refrigerant "
     "evaporates in pipes inside the cabinet and takes up heat while it does so. A compressor then "
     "pumps the gas to pipes on the back, where it is put under pressure, becomes liquid again and "
     "gives the heat to the air of the kitchen. A thermostat turns the compressor on and off so "
     "that the temperature stays the same." END},
    {ASK "Convert to JSON: name is Anna, age is 31, she lives in Oslo and speaks Norwegian and "
         "English." REPLY,
     "{\"name\": \"Anna\", \"age\": 31, \"city\": \"Oslo\", \"languages\": [\"Norwegian\", "
     "\"English\"]}" END},
    {ASK "Count from one to twelve in words." REPLY,
     "one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve" END},
    {NULL, NULL},
};

/* Vocabulary of clover-tiny; no other model is known that has as few tokens. */
enum { TINY_VOCABULARY = 2048 };

static fl_status join(fl_probe_ids *x, const int32_t *prompt, size_t n_prompt,
                      const int32_t *answer, size_t n_answer, fl_err *err)
{
    x->ids = malloc((n_prompt + n_answer + 1) * sizeof *x->ids);
    if (!x->ids) return FL_FAIL(err, FL_E_NOMEM, 0, "probe: no memory for its text");
    memcpy(x->ids, prompt, n_prompt * sizeof *x->ids);
    memcpy(x->ids + n_prompt, answer, n_answer * sizeof *x->ids);
    x->n_prompt = (int)n_prompt;
    x->n = (int)(n_prompt + n_answer);
    return FL_OK;
}

/* A prompt that leaves no room for an answer is left out. */
static fl_status add_doc(fl_probe_text *t, const fl_tokenizer *tok, const fl_probe_doc *d,
                         size_t limit, fl_err *err)
{
    int32_t *prompt = NULL, *answer = NULL;
    size_t n_prompt = 0, n_answer = 0;
    fl_probe_ids x = {0};
    fl_status st =
        fl_tokenizer_encode(tok, d->prompt, strlen(d->prompt), true, &prompt, &n_prompt, err);
    if (st == FL_OK)
        st = fl_tokenizer_encode(tok, d->answer, strlen(d->answer), true, &answer, &n_answer, err);
    if (st == FL_OK && n_prompt < limit) {
        if (n_answer > limit - n_prompt) n_answer = limit - n_prompt;
        st = join(&x, prompt, n_prompt, answer, n_answer, err);
    }
    free(prompt);
    free(answer);
    if (st != FL_OK || !x.ids) return st;
    t->doc[t->n_docs++] = x;
    t->n_answer += x.n - x.n_prompt;
    if (x.n > t->longest) t->longest = x.n;
    return FL_OK;
}

fl_status fl_probe_text_open(fl_probe_text *t, const fl_model *model, int limit, fl_err *err)
{
    const fl_tokenizer *tok = model->tokenizer;
    const char *path = fl_source_paths(model->src)[0];
    *t = (fl_probe_text){.name = "general"};
    if (!tok)
        return FL_FAIL(err, FL_E_UNSUPPORTED, 0,
                       "%s: holds no tokenizer: there is no text to measure it on", path);
    const bool tiny = fl_tokenizer_size(tok) == TINY_VOCABULARY;
    const fl_probe_doc *d = tiny ? fl_probe_tiny : fl_probe_general;
    if (tiny) t->name = "clover-tiny";
    t->fill = fl_mask_fill(model);
    fl_status st = FL_OK;
    for (; d->prompt && st == FL_OK && t->n_docs < FL_PROBE_DOCS; d++)
        st = add_doc(t, tok, d, limit > 0 ? (size_t)limit : 0, err);
    if (st == FL_OK && t->n_answer == 0)
        st = FL_FAIL(err, FL_E_UNSUPPORTED, 0,
                     "%s: none of the probe's conversations fits into %d tokens", path, limit);
    if (st != FL_OK) fl_probe_text_free(t);
    return st;
}

void fl_probe_text_free(fl_probe_text *t)
{
    for (int i = 0; i < t->n_docs; i++) free(t->doc[i].ids);
    *t = (fl_probe_text){0};
}
