// compare A B: names the first tensor in which two dumps depart.
#include <cstdio>

#include "common/tools/dump_compare.h"

int main(int argc, char** argv) { return ref5d::run_compare(argc, argv, stdout, stderr); }
