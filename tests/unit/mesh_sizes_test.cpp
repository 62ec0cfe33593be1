// From --dp, --tp, ... and the number of ranks to a mesh.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "common/app/parallel_program.h"
#include "common/device/error.h"

namespace ref5d::testing {
namespace {

MeshSizes sizes(std::map<std::string, std::int64_t> axes, int ranks) {
  Options options;
  options.axes = std::move(axes);
  return mesh_sizes(options, ranks);
}

std::string refusal_of(std::map<std::string, std::int64_t> axes, int ranks) {
  try {
    (void)sizes(std::move(axes), ranks);
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

TEST(MeshSizes, DpTakesWhatRemains) {
  EXPECT_EQ(sizes({}, 6).edp, 6);
  const MeshSizes s = sizes({{"tp", 2}, {"pp", 3}}, 12);
  EXPECT_EQ(s.edp, 2);
  EXPECT_EQ(s.tp, 2);
  EXPECT_EQ(s.pp, 3);
  EXPECT_EQ(s.ranks(), 12);
}

TEST(MeshSizes, EpIsPartOfDp) {
  const MeshSizes s = sizes({{"ep", 2}, {"tp", 2}}, 12);
  EXPECT_EQ(s.ep, 2);
  EXPECT_EQ(s.edp, 3);
  EXPECT_NE(refusal_of({{"ep", 4}}, 6).find("--ep 4 does not divide the 6 data-parallel ranks"), std::string::npos);
}

TEST(MeshSizes, AProductThatDoesNotFitIsAnError) {
  EXPECT_NE(refusal_of({{"dp", 2}}, 3).find("--dp 2 does not fit 3 ranks; start 2 ranks"), std::string::npos);
  EXPECT_NE(refusal_of({{"dp", 2}, {"tp", 4}}, 4).find("--dp 2 x --tp 4 does not fit 4 ranks; start 8 ranks"),
            std::string::npos);
  EXPECT_NE(refusal_of({{"tp", 3}}, 4).find("--tp 3 does not fit 4 ranks"), std::string::npos);
  EXPECT_NE(refusal_of({{"tp", 8}}, 4).find("start 8 ranks"), std::string::npos);
}

}  // namespace
}  // namespace ref5d::testing
