#ifndef FL_TESTS_SUPPORT_FILES_H
#define FL_TESTS_SUPPORT_FILES_H

/* A fresh folder and places for models in it. */
typedef struct fl_test_files {
    char *dir;
    char *gguf;   /* dir/model.gguf */
    char *folder; /* dir/hf, for a model in safetensors; neither exists yet */
} fl_test_files;

extern fl_test_files fl_files;

/* Setup and teardown for cmocka, of a group or of a test. */
int fl_files_setup(void **state);
/* The same with a model of two layers, clover_moe in Q4_K (fl_make_quick_experts), at
 * fl_files.gguf. */
int fl_files_setup_model(void **state);
int fl_files_teardown(void **state);

#endif
