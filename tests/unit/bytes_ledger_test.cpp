// What the kernels of a fused and of a step-by-step operation move, by the ledger, against counts made by hand.
#include <gtest/gtest.h>

#include "common/kernels/cross_entropy.h"
#include "common/kernels/rmsnorm.h"
#include "common/kernels/swiglu.h"
#include "common/train/trainer.h"
#include "tests/support/kernel_repeat.h"

namespace ref5d::testing {
namespace {

struct Moved {
  std::int64_t read, written;
  bool operator==(const Moved&) const = default;
};
void PrintTo(const Moved& m, std::ostream* out) { *out << m.read << " read, " << m.written << " written"; }

template <typename Work>
Moved moved(Work&& work) {
  device().bytes().reset();
  work();
  return {device().bytes().bytes_read(), device().bytes().bytes_written()};
}

TEST(BytesLedger, CountsATensorOnceForEachKernelThatTouchesIt) {
  constexpr std::int64_t kRows = 3, kColumns = 10;
  for (const Dtype dtype : kFloatDtypes) {
    SCOPED_TRACE(dtype_name(dtype));
    const auto e = static_cast<std::int64_t>(dtype_size(dtype)),
               a = static_cast<std::int64_t>(dtype_size(accumulator_of(dtype)));
    const std::int64_t matrix = kRows * kColumns * e, row = kColumns * e, statistic = kRows * a, labels_bytes = kRows * 4;
    auto array = [&] { return device_tensor(random_values(kRows * kColumns, 1), {kRows, kColumns}, dtype); };
    const Tensor x = array(), y = array(), p = array(), q = array();
    EXPECT_EQ(moved([&] { swiglu_forward(stream(), y, x, p); }), (Moved{2 * matrix, matrix}));
    EXPECT_EQ(moved([&] { swiglu_forward_unfused(stream(), y, q, x, p); }), (Moved{3 * matrix, 2 * matrix}));

    const Tensor w = device_tensor(random_values(kColumns, 2), {kColumns}, dtype),
                 rstd = poisoned({kRows}, accumulator_of(dtype));
    EXPECT_EQ(moved([&] { rmsnorm_forward(stream(), y, rstd, x, w, 1e-5); }), (Moved{matrix + row, matrix + statistic}));
    EXPECT_EQ(moved([&] { rmsnorm_forward_unfused(stream(), y, rstd, p, q, x, w, 1e-5); }),
              (Moved{4 * matrix + statistic + row, 3 * matrix + statistic}));

    const Tensor labels = Tensor::zeros({kRows}, Dtype::kInt32, MemoryCategory::kWorkspace, stream());
    EXPECT_EQ(moved([&] { cross_entropy(stream(), y, rstd, labels, 1); }), (Moved{matrix + labels_bytes, matrix + statistic}));
    EXPECT_EQ(moved([&] { cross_entropy_unfused(stream(), y, p, rstd, x, labels, 1); }),
              (Moved{2 * matrix + 2 * labels_bytes, 2 * matrix + statistic}));
  }
}

// A model that is not fused runs all three operations step by step.
TEST(BytesLedger, ModelStepByStepMovesWhatItsOperationsMove) {
  TrainerOptions t;
  t.model = preset("tiny");
  t.model.layers = 3;
  std::vector<std::int32_t> tokens(65, 7);
  const Dataset data({plain_row(tokens, 0, 64)});
  auto bytes = [&](bool fused) {
    t.fused = fused;
    Trainer trainer(t, data);
    return moved([&] { trainer.accumulate(); });
  };
  const std::int64_t rows = 2 * 64, norms = 2 * 3 + 1, hidden = t.model.hidden, ffn = t.model.ffn, vocab = t.model.vocab;
  const Moved fused = bytes(true), steps = bytes(false);
  EXPECT_EQ(steps.read - fused.read, 4 * rows * (3 * ffn + norms * (3 * hidden + 1) + vocab + 1));
  EXPECT_EQ(steps.written - fused.written, 4 * rows * (3 * ffn + norms * 2 * hidden + vocab));
}

}  // namespace
}  // namespace ref5d::testing
