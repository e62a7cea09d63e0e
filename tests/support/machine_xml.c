#include "tests/support/machine_xml.h"

#include <stdlib.h>

#include "tests/support/test.h"
#include "tests/support/tmp.h"

typedef struct machine {
    int n_nodes;
    unsigned long long node_bytes;
    int n_cores;            /* of a node */
    const int *first, *n;   /* [n_cores] first processor on node 0, number of them */
    unsigned width;         /* processors of a node */
    unsigned strong_on_one; /* set of strong processors on node 0 */
} machine;

typedef struct writer {
    FILE *f;
    int id; /* of the next object */
} writer;

static void begin(writer *w, const char *type, int os, unsigned cpus, unsigned nodes)
{
    fprintf(w->f,
            "<object type=\"%s\" os_index=\"%d\" cpuset=\"0x%08x\" complete_cpuset=\"0x%08x\" "
            "nodeset=\"0x%x\" complete_nodeset=\"0x%x\" gp_index=\"%d\"",
            type, os, cpus, cpus, nodes, nodes, w->id++);
}

static void end(writer *w) { fprintf(w->f, "</object>\n"); }

static unsigned all_of(const machine *m, int node)
{
    return ((1u << m->width) - 1) << (unsigned)node * m->width;
}

static void write_node(writer *w, const machine *m, int node)
{
    const int base = node * (int)m->width;
    const unsigned nodes = 1u << node;
    if (m->n_nodes > 1) {
        begin(w, "Package", node, all_of(m, node), nodes);
        fprintf(w->f, ">\n");
    }
    begin(w, "NUMANode", node, all_of(m, node), nodes);
    fprintf(w->f, " local_memory=\"%llu\"/>\n", m->node_bytes);
    for (int c = 0; c < m->n_cores; c++) {
        const int first = base + m->first[c];
        begin(w, "Core", node * m->n_cores + c, ((1u << m->n[c]) - 1) << first, nodes);
        fprintf(w->f, ">\n");
        for (int i = first; i < first + m->n[c]; i++) {
            begin(w, "PU", i, 1u << i, nodes);
            fprintf(w->f, "/>\n");
        }
        end(w);
    }
    if (m->n_nodes > 1) end(w);
}

static char *write_machine(const machine *m, bool kinds)
{
    char *text = NULL;
    size_t n = 0;
    writer w = {.f = open_memstream(&text, &n), .id = 1};
    unsigned all = 0, strong = 0;
    assert_non_null(w.f);
    for (int i = 0; i < m->n_nodes; i++) {
        all |= all_of(m, i);
        strong |= m->strong_on_one << (unsigned)i * m->width;
    }
    const unsigned nodes = (1u << m->n_nodes) - 1;
    fprintf(w.f, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<topology version=\"2.0\">\n");
    begin(&w, "Machine", 0, all, nodes);
    fprintf(w.f, " allowed_cpuset=\"0x%x\" allowed_nodeset=\"0x%x\">\n", all, nodes);
    for (int i = 0; i < m->n_nodes; i++) write_node(&w, m, i);
    end(&w);
    for (int k = 0; kinds && k < 2; k++)
        fprintf(w.f, "<cpukind cpuset=\"0x%08x\" forced_efficiency=\"%d\"/>\n",
                k ? strong : all & ~strong, k);
    fprintf(w.f, "</topology>\n");
    assert_int_equal(fclose(w.f), 0);
    return text;
}

char *fl_machine_small_xml(bool kinds)
{
    static const int first[] = {0, 1, 2, 4}, n[] = {1, 1, 2, 2};
    const machine m = {1, 1ull << 30, 4, first, n, 6, 0x3c};
    return write_machine(&m, kinds);
}

char *fl_machine_two_nodes_xml(void)
{
    static const int first[] = {0, 2, 4, 5, 6, 7}, n[] = {2, 2, 1, 1, 1, 1};
    const machine m = {2, 16ull << 30, 6, first, n, 8, 0x0f};
    return write_machine(&m, true);
}

/* hwloc reads the file at each look. */
static char *dir;

void fl_machine_reset(void)
{
    unsetenv("HWLOC_SYNTHETIC");
    unsetenv("HWLOC_XMLFILE");
    if (dir) fl_tmp_remove(dir);
    dir = NULL;
}

void fl_machine_set(char *xml)
{
    fl_machine_reset();
    dir = fl_tmp_make();
    char *path = fl_tmp_path(dir, "machine.xml");
    fl_tmp_write(path, xml, strlen(xml));
    setenv("HWLOC_XMLFILE", path, 1);
    free(path);
    free(xml);
}

void fl_machine_set_words(const char *synthetic)
{
    fl_machine_reset();
    setenv("HWLOC_SYNTHETIC", synthetic, 1);
}
