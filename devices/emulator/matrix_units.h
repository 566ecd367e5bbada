// Hopper's asynchronous units for a block of the emulator: mbarriers, TMA, and wgmma. From the PTX
// ISA alone ("mbarrier", "cp.async.bulk.tensor", "Asynchronous Warpgroup Level Matrix
// Instructions"), not from what codegen/wgmma/tile.h says, so that the two check each other.
//
// Everything happens at the worst time that the ISA allows: the box that a copy fills is spoilt
// when the copy is issued and filled as late as can be, the last copy first; products read their
// operands when somebody waits for them.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "runtime/device/device.h"

namespace tiny {

// A tensor map as a kernel gets it: the map, and where its tensor begins.
struct EmulatedMap {
  TensorMap map;
  const char* base = nullptr;
};

class EmulatedMatrixUnits {
 public:
  void begin_block(char* shared, int64_t bytes, int threads);

  // All that follow give what is wrong, empty where nothing is.

  // --- barriers; `barrier` is an address in shared memory ----------------------------------------

  std::string init(uint32_t barrier, uint32_t count);
  void fence() { fenced_ = true; }
  // Whether the phase of that parity is complete, the thread may go on.
  std::string test(uint32_t barrier, uint32_t parity, bool* complete);
  std::string arrive(uint32_t barrier, uint32_t expected_bytes);

  // --- copies ------------------------------------------------------------------------------------

  // The box of the map that begins at element `at` per axis, to `to`; the barrier gets its bytes.
  // Of windows, the offsets in them follow.
  std::string copy_box(uint32_t to, const EmulatedMap& map, uint32_t barrier, const int* at);
  bool complete_copy();  // one of them; false where none is left

  // --- products ----------------------------------------------------------------------------------

  // acc += A B for 64 rows of A and `columns` columns of B, 32 bytes along k. Bits of `form`: 0, 1:
  // A, B along m, n; 2 to 4: the Type; 5: acc = A B; 6: `a` points to the thread's words of A.
  enum Type { F16, BF16, Tf32, S8, E4M3, E5M2, E4M3E5M2, E5M2E4M3 };
  struct Product {
    uint64_t a = 0, b = 0;  // matrix descriptors
    int columns = 0, form = 0;
    friend bool operator==(const Product&, const Product&) = default;
  };
  std::string multiply(int thread, void* acc, const Product& product);
  std::vector<uint32_t> share_of(int thread, const Product& product) const;  // bytes it reads
  void fence_products(int thread) { threads_[thread].fenced = true; }
  void commit(int thread) { ++threads_[thread].groups; }
  // Whether all but the last `groups` groups of the thread are done; it may be the first to ask.
  std::string wait(int thread, int groups, bool* done);

  // --- clusters ----------------------------------------------------------------------------------

  // The reason why another block of the cluster, or one that multicasts, may not reach this one.
  std::string reach();
  void fence_cluster() { shown_ = true; }
  void meet();  // all threads of all blocks are there
  // 16 bytes into this block's memory from any block, and out of it by its own threads.
  std::string store(uint32_t address, const void* words);
  std::string load(uint32_t address, void* words);
  std::string end() const;  // whether the block may end

  int64_t events() const { return events_; }  // what has changed for somebody who waits

 private:
  static constexpr int kGroup = 128, kRows = 64, kBytes = 32;  // threads; a product's m; along k

  struct Barrier {
    uint32_t count = 0, pending = 0, phase = 0;
    int64_t bytes = 0;  // that are still to come
  };
  struct Copy {
    uint32_t to, barrier;
    const EmulatedMap* map;
    std::vector<int> at;
  };
  // A product that a warpgroup issues, thread after thread.
  struct Issued {
    Product product;
    int threads = 0;  // that have issued it
    void* acc[kGroup] = {};
    uint32_t words[kGroup][4];  // of A in registers
  };
  struct Warpgroup {
    std::deque<Issued> issued;  // not executed
    int64_t executed = 0;
  };
  struct Thread {
    int64_t issued = 0;
    std::vector<int64_t> group_end;  // of each: products issued before its end
    int groups = 0;                  // committed
    bool fenced = false;
  };

  Barrier* find(uint32_t barrier);
  void settle(Barrier& barrier);
  std::string execute(Issued& issued);
  // Element k, of `size` bytes, of a row of an operand.
  struct Element {
    int row, k, size;
  };
  std::string find(uint64_t descriptor, bool turned, const Element& e, uint32_t* address) const;
  static int64_t box_bytes(const TensorMap& map);
  static std::string window_problem(const TensorMap& map, const int* at);
  void copy_row(const Copy& copy, const int64_t* element, uint32_t to);

  char* shared_ = nullptr;
  int64_t bytes_ = 0, events_ = 0;
  bool fenced_ = false;
  bool shown_ = false, met_ = false;  // barriers to other blocks, and those have begun
  bool reached_ = false;              // by others since they last met
  std::map<uint32_t, bool> stored_;   // words, and whether all have met since
  std::map<uint32_t, Barrier> barriers_;
  std::vector<Copy> copies_;
  std::vector<Warpgroup> warpgroups_;
  std::vector<Thread> threads_;
};

}  // namespace tiny
