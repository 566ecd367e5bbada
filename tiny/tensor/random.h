// Random numbers from a counter-based generator: Threefry-2x32 with 20 rounds (J. Salmon, M.
// Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11). A block of two
// words is a function of key and counter alone, so the same seed gives the same bits on every
// device and for every number of threads. Key and counter enter a graph as data: another call, the
// same kernels.
#pragma once
#include <cstdint>

#include "tiny/tensor/tensor.h"

namespace tiny {

// Sets the key and starts counting at 0. The seed is that of the variable SEED until this is
// called.
void manual_seed(uint64_t seed);

// Where the stream is; setting it goes back to there.
struct RandomState {
  uint64_t key = 0, counter = 0;
};
RandomState random_state();
void set_random_state(const RandomState& state);

// The state that kernels of the next `blocks` blocks read; the counter advances past them.
std::vector<uint32_t> next_random_state(int64_t blocks);

struct RandomWords {
  Tensor first, second;  // u32
};

// The two words of the blocks with these keys and counters: u32 tensors that broadcast. `rounds`:
// 13 are the fewest that pass all tests of the paper; more are a margin.
RandomWords threefry2x32(const Tensor& key0, const Tensor& key1, const Tensor& counter0,
                         const Tensor& counter1, int rounds = 20);

// The next `n` blocks of the stream, u32 [n] each; the counter advances by n. Below 2^32.
RandomWords random_blocks(int64_t n);

// The next n words, u32 [n]: the first words of (n + 1) / 2 blocks, then their second words.
Tensor random_words(int64_t n);

// Bools, true with the probability p in [0, 1], rounded to a multiple of 2^-16: a block of the
// stream, of 13 rounds, gives four of them. Rows (of the last axis) of 16 or more begin with a
// block of their own.
Tensor random_bools(const Shape& shape, double p);

}  // namespace tiny
