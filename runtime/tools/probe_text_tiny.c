/* Written by tests/clover_tiny/probe_text.py. */
#include "runtime/tools/probe_text.h"

const fl_probe_doc fl_probe_tiny[] = {
    {"<|im_start|>system\n"
     "Help the user.<|im_end|>\n"
     "<|im_start|>user\n"
     "Name the capitals of Czechia and Haiti.<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<think>\n",
     "The user asks for 2 capitals.\n"
     "</think>\n"
     "\n"
     "The capital of Czechia is Prague. The capital of Haiti is Port-au-Prince.<|im_end|>"},
    {"<|im_start|>user\n"
     "How does one explain sleep to a child?<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<think>\n",
     "A short explanation of sleep is wanted.\n"
     "</think>\n"
     "\n"
     "During sleep the brain sorts memories and the body repairs itself. Adults need about "
     "eight hours.<|im_end|>"},
    {"<|im_start|>user\n"
     "40 + 67 = ?<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<think>\n",
     "0 + 7 = 7, carry 0. 4 + 6 = 10, 10 + 0 = 10. So 40 + 67 = 107.\n"
     "</think>\n"
     "\n"
     "40 + 67 = 107<|im_end|>"},
    {"<|im_start|>user\n"
     "42 + 96 = ?<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<think>\n",
     "2 + 6 = 8, carry 0. 4 + 9 = 13, 13 + 0 = 13. So 42 + 96 = 138.\n"
     "</think>\n"
     "\n"
     "42 + 96 = 138<|im_end|>"},
    {"<|im_start|>system\n"
     "You answer questions about the world.<|im_end|>\n"
     "<|im_start|>user\n"
     "Dispatch the following commands: close gate 86; turn on the light; set an alarm for "
     "19:20; report to Nina at 09:47; set an alarm for 10:35.<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<think>\n"
     "\n"
     "</think>\n"
     "\n",
     "[\n"
     "{\"do\": \"close\", \"gate\": 86},\n"
     "{\"do\": \"on\", \"what\": \"light\"},\n"
     "{\"do\": \"alarm\", \"at\": \"19:20\"},\n"
     "{\"do\": \"report\", \"who\": \"Nina\", \"at\": \"09:47\"},\n"
     "{\"do\": \"alarm\", \"at\": \"10:35\"}\n"
     "]<|im_end|>"},
    {"<|im_start|>system\n"
     "You are Clover, a small test model.<|im_end|>\n"
     "<|im_start|>user\n"
     "I need the capital of Laos, please.<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<think>\n",
     "The user asks for the capital of Laos.\n"
     "</think>\n"
     "\n"
     "The capital of Laos is Vientiane.<|im_end|>"},
    {"<|im_start|>system\n"
     "You answer questions about the world.<|im_end|>\n"
     "<|im_start|>user\n"
     "What is the code?\n"
     "A dog slept near the door of the bakery. The code for the door is CLMB. The report "
     "was printed on yellow paper.<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<think>\n"
     "\n"
     "</think>\n"
     "\n",
     "The code is CLMB.<|im_end|>"},
    {NULL, NULL},
};
