/* Cores by kind and memory by node, on machines that are written down. */
#include "runtime/base/topology.h"

#include <stdlib.h>

#include "tests/support/fake_root.h"
#include "tests/support/machine_xml.h"
#include "tests/support/test.h"

static void read_two_nodes(fl_topology *t, const char *root)
{
    char *xml = fl_machine_two_nodes_xml();
    fl_topology_read(t, root, xml);
    free(xml);
}

static void two_nodes_with_cores_of_two_kinds(void **state)
{
    (void)state;
    fl_topology t;
    read_two_nodes(&t, "/nowhere");
    assert_int_equal(t.n_cores, 12);
    assert_int_equal(t.n_kinds, 2);
    assert_int_equal(t.n_nodes, 2);
    for (int n = 0; n < 2; n++) {
        const fl_node *node = fl_topology_node(&t, n);
        assert_non_null(node);
        assert_int_equal(node->bytes, UINT64_C(16) << 30);
        assert_int_equal(node->free_bytes, 0);
        assert_int_equal(node->n_cores, 6);
        assert_int_equal(fl_topology_count(&t, 0, n), 2);
        assert_int_equal(fl_topology_count(&t, 1, n), 4);
    }
    assert_int_equal(fl_topology_count(&t, 0, -1), 4);
    assert_null(fl_topology_node(&t, 2));
    const fl_core *second_strong = &t.core[7];
    assert_int_equal(second_strong->kind, 0);
    assert_int_equal(second_strong->node, 1);
    assert_int_equal(second_strong->n_cpus, 2);
    assert_int_equal(second_strong->cpu[0], 10);
    assert_int_equal(second_strong->cpu[1], 11);
}

static void free_memory_is_what_each_node_says(void **state)
{
    (void)state;
    fl_topology t;
    fl_fake_put("/sys/devices/system/node/node1/meminfo",
                "Node 1 MemTotal:       16777216 kB\nNode 1 MemFree:         1048576 kB\n"
                "Node 1 Inactive(anon):   123456 kB\nNode 1 Inactive(file):   524288 kB\n");
    read_two_nodes(&t, fl_fake.root);
    assert_int_equal(t.node[0].free_bytes, 0);
    assert_int_equal(t.node[1].free_bytes, UINT64_C(1536) << 20);
}

/* hwloc's own variables stand for a machine, as they do for its tools. */
static void a_machine_from_the_environment(void **state)
{
    (void)state;
    fl_topology t;
    fl_machine_set_words("numa:2 core:3 pu:2");
    fl_topology_read(&t, NULL, NULL);
    fl_machine_reset();
    assert_int_equal(t.n_nodes, 2);
    assert_int_equal(t.n_cores, 6);
    assert_int_equal(t.n_kinds, 1);
    assert_int_equal(t.core[5].n_cpus, 2);
    assert_int_equal(t.core[5].node, 1);
}

static void what_is_no_machine_has_no_cores(void **state)
{
    (void)state;
    fl_topology t;
    fl_topology_read(&t, NULL, "this is no machine");
    assert_int_equal(t.n_cores, 0);
    assert_int_equal(t.n_kinds, 1);
    assert_int_equal(t.n_nodes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_nodes_with_cores_of_two_kinds),
        FL_FAKE_TEST(free_memory_is_what_each_node_says),
        cmocka_unit_test(a_machine_from_the_environment),
        cmocka_unit_test(what_is_no_machine_has_no_cores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
