// A first exercise: a product small enough to follow by hand, cut both ways, and an embedding of six entries.
#include <fmt/format.h>

#include <utility>

#include "03_tensor_parallel/conjugates.h"
#include "03_tensor_parallel/experiments.h"
#include "03_tensor_parallel/parallel_linear.h"
#include "common/device/device.h"
#include "common/kernels/embedding.h"

namespace ref5d::tensor_parallel {

namespace {

using Values = std::vector<double>;

//     0 1                          20  40
// x = 2 3    W^T = 10 30    x W^T = 80 180
//     4 5          20 40           140 320
//     6 7                          200 460
const Values kX{0, 1, 2, 3, 4, 5, 6, 7}, kW{10, 30, 20, 40}, kY{20, 40, 80, 180, 140, 320, 200, 460};
const Values kColumns[] = {{20, 80, 140, 200}, {40, 180, 320, 460}};
const Values kTerms[] = {{0, 0, 20, 60, 40, 120, 60, 180}, {20, 40, 60, 120, 100, 200, 140, 280}};
// Entries of an embedding of width 1, and the tokens that are looked up.
const Values kTable{10, 20, 30, 40, 50, 60}, kTokens{1, 4, 2, 5}, kFound{20, 50, 30, 60};
const Values kLookups[] = {{20, 0, 30, 0}, {0, 50, 0, 60}};

class Numbers {
 public:
  explicit Numbers(Experiment& e) : e_(e), axis_(e.mesh, {}), stream_(device().compute()), ctx_(stream_) {
    ctx_.dtype = Dtype::kFp64;
  }

  void column_parallel() {
    const Range own = share_of(2, axis_.size(), axis_.rank());
    const ColumnParallelLinear linear(weight(), segments_of(own));
    load(*linear.weight, kW);
    const Tensor y = linear.multiply(ctx_, tensor(kX, {4, 2}));
    compare("columns of W^T: x times a column, rank", y, kColumns);
    compare("columns joined", all_gather_columns(axis_, ctx_, y, 2, "numbers"), kY);
  }

  void row_parallel() {
    const Range own = share_of(2, axis_.size(), axis_.rank());
    const RowParallelLinear linear(weight(), segments_of(own), axis_.size());
    load(*linear.weight, kW);
    const Tensor y = linear.multiply(ctx_, own_columns(axis_, ctx_, tensor(kX, {4, 2})));
    compare("rows of W^T: a column of x times a row, rank", y, kTerms);
    compare("terms summed", all_reduce(axis_, ctx_, y, "numbers"), kY);
  }

  void embedding() {
    const Range own = share_of(6, axis_.size(), axis_.rank());
    const Tensor table = tensor(kTable, {6, 1}).rows(own.begin, own.end), found = ctx_.activation({4, 1});
    const Tensor tokens = Tensor::from_host(HostTensor::from_doubles(kTokens, {4}, Dtype::kInt32), Dtype::kInt32,
                                            MemoryCategory::kWorkspace, stream_);
    const Tensor rows = Tensor::empty({4}, Dtype::kInt32, MemoryCategory::kWorkspace, stream_);
    part_rows(stream_, rows, tokens, own.begin, own.size());
    embedding_forward(stream_, found, table, rows, false);
    compare("embedding of tokens 1 4 2 5: what is found on rank", found, kLookups);
    compare("lookups summed", all_reduce(axis_, ctx_, found, "numbers"), kFound);
  }

 private:
  [[nodiscard]] static Linear weight() { return Linear("W", 2, 2, false, true, 0.0); }
  [[nodiscard]] Tensor tensor(const Values& values, const Shape& shape) const {
    return Tensor::from_host(HostTensor::from_doubles(values, shape, Dtype::kFp64), Dtype::kFp64, MemoryCategory::kWorkspace,
                             stream_);
  }
  void load(Parameter& p, const Values& values) const {
    StorageOptions storage;
    storage.dtype = Dtype::kFp64;
    storage.gradients = false;
    materialise(p, storage, stream_);
    load_weight(p, HostTensor::from_doubles(values, {2, 2}, Dtype::kFp64), stream_);
  }

  // A tensor of every rank's own.
  void compare(const std::string& what, const Tensor& mine, const Values (&expected)[2]) {
    const std::vector<Bytes> all = gather_on_host(e_.mesh["tp"].group(), mine.to_host(stream_).data);
    for (std::size_t r = 0; r < all.size() && e_.world.is_root(); ++r)
      claim(fmt::format("{} {}", what, r), HostTensor{Dtype::kFp64, mine.shape(), all[r]}.to_doubles(), expected[r]);
  }
  // One that is the same on all.
  void compare(const std::string& what, const Tensor& whole, const Values& expected) {
    const Values values = whole.to_doubles(stream_);
    if (e_.world.is_root()) claim(what, values, expected);
  }
  void claim(const std::string& what, const Values& values, const Values& expected) {
    std::int64_t other = values.size() == expected.size() ? 0 : 1;
    for (std::size_t i = 0; i < values.size() && i < expected.size(); ++i) other += values[i] == expected[i] ? 0 : 1;
    e_.report.claims.push_back(make_claim("numbers: " + what + ": wrong ones", 0, static_cast<double>(other)));
    if (e_.prints()) fmt::print("{:<53} [{}]\n", what, fmt::join(values, " "));
  }

  Experiment& e_;
  Axis axis_;
  Stream& stream_;
  Context ctx_;
};

}  // namespace

void numbers_experiment(Experiment& e) {
  if (e.mesh["tp"].size() != 2) {
    if (e.prints()) fmt::print("\nnumbers: left out, since it cuts a matrix of two columns; --tp 2 shows it\n");
    return;
  }
  if (e.prints()) fmt::print("\nx W^T with x = [0 1; 2 3; 4 5; 6 7] and W^T = [10 30; 20 40], cut over two ranks\n");
  Numbers numbers(e);
  numbers.column_parallel();
  numbers.row_parallel();
  numbers.embedding();
}

}  // namespace ref5d::tensor_parallel
