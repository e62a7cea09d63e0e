#include "kernels/x86/gdn.h"
#include "kernels/x86/x86.h"

void fl_avx512vnni_gdn_scan(const fl_gdn_args *a) { fl_gdn_scan_panels(a); }
