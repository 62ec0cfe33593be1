// What the tests include beside it.
#include <gtest/gtest.h>

#include "common/tools/precompiled.h"
