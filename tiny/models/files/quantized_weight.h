// A matrix that stays quantised on the device, and products with it.
//
//   TensorFile file("model.gguf");
//   QuantizedWeight weight(file.load_stored("blk.0.ffn_up.weight"), stored_type("Q4_K"));
//   Tensor y = weight.linear(x);  // no memory ever holds the weight's values
#pragma once
#include <memory>
#include <string>

#include "tiny/models/files/formats/dequantize.h"
#include "tiny/nn/layers.h"

namespace tiny {

// How products are computed. Floats: of x as it is and the weight's exact values in f32. Bytes: of
// x rounded to 8 bits, with a scale for each 32 neighbours, as llama.cpp does on CPUs: integers are
// multiplied and added up exactly, several times as fast; the error is below 1 % of the result's
// deviation. On a CPU with tiles of bf16 (AMX) 48 rows and more are multiplied as x and values
// rounded to bf16 instead, with half the error.
enum class QuantizedProduct { Floats, Bytes };

class QuantizedWeight {
 public:
  // bytes u8 (out, bytes of a row), as TensorFile::load_stored() gives them. Types of which
  // products of bytes are not known (IQ4_NL, IQ4_XS, MXFP4), and rows that are not of whole units
  // of 32, are multiplied as floats. Throws what quantized_blocks() throws.
  QuantizedWeight(const Tensor& bytes, const StoredType& type,
                  QuantizedProduct how = QuantizedProduct::Floats);
  // Integers with grouped scales.
  explicit QuantizedWeight(const QuantizedBlocks& blocks,
                           QuantizedProduct how = QuantizedProduct::Floats);

  int64_t out() const { return out_; }
  int64_t in() const { return in_; }
  QuantizedProduct product() const;
  int64_t bytes() const;  // in memory

  // The values (out, in), f32, exactly those of the decoder; not computed yet.
  Tensor values() const;
  // Rows of them by number: integers (...) to (..., in), f32.
  Tensor rows(const Tensor& index) const;
  // x (..., in), plus a bias (out): (..., out), of x's dtype. Where x wants a gradient, which
  // rounding to bytes does not have, the product is one of floats. None flows to the weight.
  Tensor linear(const Tensor& x, const Tensor& bias = Tensor()) const;

 private:
  // Rows by 16: of each unit of 32 elements the 16 rows' words follow each other, so that vectors
  // of rows are read. A plane has `bits` bits of each code; four codes fill the bytes of a word,
  // and a unit's 8 words of codes share `bits` words: word v has those of v, v + bits, ... from its
  // low bits on.
  struct Plane {
    int bits, shift;  // shift: in the code
    Tensor words;     // i32 (panels, blocks, units, bits, 16)
  };
  struct Packed {
    std::vector<Plane> planes;
    Tensor scale, min;    // floats (panels, blocks, 1, 1, 16)
    Tensor scales, mins;  // integers of a byte (panels, blocks, units, groups, 16)
  };

  static bool fits(const QuantizedBlocks& blocks);
  void pack();
  QuantizedBlocks unpacked(const Tensor* index) const;
  Tensor byte_product(const Tensor& x) const;
  Tensor half_product(const Tensor& x) const;

  QuantizedBlocks blocks_;  // not computed; without tensors where they are packed
  Tensor bytes_;            // what the blocks are computed from, where it is one tensor
  const StoredType* type_ = nullptr;
  Packed packed_;
  int64_t out_ = 0, in_ = 0;
};

// A layer with such a weight.
class QuantizedLinear : public nn::Module {
 public:
  explicit QuantizedLinear(QuantizedWeight weight, const Tensor& bias = Tensor())
      : weight(std::move(weight)), bias(bias) {}
  Tensor forward(const Tensor& x) override { return weight.linear(x, bias); }

  QuantizedWeight weight;
  Tensor bias;
};

}  // namespace tiny
