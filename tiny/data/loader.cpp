#include "tiny/data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <utility>

#include "tiny/base/error.h"
#include "tiny/base/splitmix.h"
#include "tiny/base/thread.h"

namespace tiny {

namespace {

// A batch, or what was thrown in its place.
struct Made {
  DataLoader::Batch batch;
  std::exception_ptr error;
};

Made made(const DataLoader::Fetch& fetch, const std::vector<int64_t>& positions) {
  try {
    DataLoader::Batch batch = fetch(positions);
    check(!batch.empty(), "DataLoader: a batch of no tensors");
    return {std::move(batch), nullptr};
  } catch (...) {
    return {{}, std::current_exception()};
  }
}

// Rows of tensors as bytes on the host.
struct Rows {
  explicit Rows(const Tensor& t)
      : dtype(t.dtype()),
        shape(to_shape(t.shape())),
        device(t.device()),
        bytes(static_cast<size_t>(t.numel()) * t.dtype().size()) {
    t.to_bytes(bytes.data());
  }

  Tensor at(const std::vector<int64_t>& positions) const {
    const size_t row = shape[0] == 0 ? 0 : bytes.size() / static_cast<size_t>(shape[0]);
    std::vector<std::byte> out(row * positions.size());
    if (row > 0)
      for (size_t i = 0; i < positions.size(); ++i)
        std::memcpy(&out[i * row], &bytes[static_cast<size_t>(positions[i]) * row], row);
    Shape part = shape;
    part[0] = static_cast<int64_t>(positions.size());
    return Tensor::from_bytes(out.data(), dtype, part, device);
  }

  DType dtype;
  Shape shape;
  std::string device;
  std::vector<std::byte> bytes;
};

int64_t rows_of(const std::vector<Tensor>& columns) {
  check(!columns.empty(), "DataLoader: no tensors");
  for (const Tensor& t : columns)
    check(t.rank() >= 1 && t.size(0) == columns[0].size(0), "DataLoader: a tensor of shape ",
          to_text(t.shape()), " beside one of ", to_text(columns[0].shape()),
          ": their first axes are the samples");
  return columns[0].size(0);
}

DataLoader::Fetch fetch_rows(const std::vector<Tensor>& columns) {
  auto rows = std::make_shared<std::vector<Rows>>();
  for (const Tensor& t : columns) rows->emplace_back(t);
  return [rows = std::move(rows)](const std::vector<int64_t>& positions) {
    DataLoader::Batch batch;
    for (const Rows& column : *rows) batch.push_back(column.at(positions));
    return batch;
  };
}

}  // namespace

// --- An epoch ------------------------------------------------------------------------------------

struct DataLoader::Run {
  Run(const DataLoader& from, int64_t epoch, int64_t batch)
      : loader(from), order(from.positions(epoch)), next(batch) {
    if (loader.options_.prefetch > 0) worker = Thread("to load batches", [this] { work(); });
  }
  ~Run() {
    {
      const std::lock_guard lock(mutex);
      is_stopped = true;
    }
    changed.notify_all();
    worker.join();
  }

  Made make(int64_t batch) const {
    const int64_t begin = batch * loader.options_.batch_size;
    const int64_t end =
        std::min(begin + loader.options_.batch_size, static_cast<int64_t>(order.size()));
    return made(loader.fetch_, {order.begin() + begin, order.begin() + end});
  }

  // What the thread does: it stays `prefetch` batches ahead.
  void work() {
    for (int64_t batch = next; batch < loader.batches(); ++batch) {
      Made one = make(batch);
      const bool failed = one.error != nullptr;
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] {
        return is_stopped || static_cast<int64_t>(ready.size()) < loader.options_.prefetch;
      });
      if (is_stopped) return;
      ready.push_back(std::move(one));
      changed.notify_all();
      if (failed) return;
    }
  }

  Made take(int64_t batch) {
    if (loader.options_.prefetch == 0) return make(batch);
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return !ready.empty(); });
    Made one = std::move(ready.front());
    ready.pop_front();
    changed.notify_all();
    return one;
  }

  const DataLoader& loader;
  const std::vector<int64_t> order;
  const int64_t next;  // the first batch
  std::mutex mutex;    // of what follows
  std::condition_variable changed;
  std::deque<Made> ready;
  bool is_stopped = false;
  Thread worker;
};

// --- The loader ----------------------------------------------------------------------------------

DataLoader::DataLoader(int64_t size, Fetch fetch, const DataLoaderOptions& options)
    : size_(size), fetch_(std::move(fetch)), options_(options) {
  check(size >= 0 && options.batch_size >= 1 && options.prefetch >= 0, "DataLoader: ", size,
        " samples in batches of ", options.batch_size, ", ", options.prefetch, " of them ahead");
}

DataLoader::DataLoader(const std::vector<Tensor>& columns, const DataLoaderOptions& options)
    : DataLoader(rows_of(columns), fetch_rows(columns), options) {}

DataLoader::~DataLoader() = default;

int64_t DataLoader::batches() const {
  const int64_t full = size_ / options_.batch_size;
  return full + (!options_.drop_last && size_ % options_.batch_size != 0);
}

// A permutation by R. Durstenfeld's algorithm (CACM 7, 1964).
std::vector<int64_t> DataLoader::positions(int64_t epoch) const {
  std::vector<int64_t> out(static_cast<size_t>(size_));
  std::iota(out.begin(), out.end(), 0);
  if (!options_.shuffle) return out;
  SplitMix64 seeds(options_.seed);
  SplitMix64 random(seeds.bits() + static_cast<uint64_t>(epoch));
  for (size_t i = out.size(); i > 1; --i) std::swap(out[i - 1], out[random.bits() % i]);
  return out;
}

void DataLoader::go_to(int64_t epoch, int64_t batch) {
  check(epoch >= 0 && batch >= 0 && batch <= batches(), "DataLoader: batch ", batch, " of epoch ",
        epoch, ", where each has ", batches());
  run_ = nullptr;
  current_.clear();
  const bool is_over = batch > 0 && batch == batches();
  epoch_ = epoch + is_over;
  batch_ = is_over ? 0 : batch;
}

DataLoader::Iterator DataLoader::begin() {
  if (run_) go_to(epoch_ + 1);
  run_ = std::make_unique<Run>(*this, epoch_, batch_);
  --batch_;
  advance();
  return Iterator(this);
}

const DataLoader::Batch& DataLoader::next() {
  check(batches() > 0, "DataLoader: ", size_, " samples make no batch of ", options_.batch_size);
  if (run_) advance();
  if (!run_) begin();
  return current_;
}

void DataLoader::advance() {
  current_.clear();
  if (++batch_ >= batches()) return go_to(epoch_ + 1);
  Made one = run_->take(batch_);
  if (one.error) {
    run_ = nullptr;
    std::rethrow_exception(one.error);
  }
  current_ = std::move(one.batch);
}

}  // namespace tiny
