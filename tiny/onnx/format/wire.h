// Protocol buffers as bytes (developers.google.com/protocol-buffers/docs/encoding): the fields of a
// message, one after the other. Ten messages of ONNX need no more, so that neither generated code
// nor the library of protocol buffers is asked for. Nothing is copied, nothing beyond the bytes is
// looked at, and a file is refused that nests deeper or has more messages than any model.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tiny/base/error.h"

namespace tiny::onnx {

// What is read: for errors, and for the count of messages that limits what is allocated.
struct WireFile {
  std::string path;
  std::span<const std::byte> bytes;
  int64_t messages = 0;
};

// The kinds of a field's value; 3 and 4, groups, are no part of ONNX.
enum class WireType : uint8_t { Varint = 0, Fixed64 = 1, Bytes = 2, Fixed32 = 5 };

class WireReader;

// A field of a message. What is asked of it throws Error unless it is of that kind.
struct WireField {
  const WireReader* message;
  uint32_t number;  // as in onnx.proto
  WireType type;
  uint64_t value;                    // Varint, Fixed64, Fixed32
  std::span<const std::byte> bytes;  // Bytes

  int64_t integer() const;  // Varint
  float real() const;       // Fixed32
  std::string text() const;
  std::span<const std::byte> data() const;  // Bytes
  WireReader inner(const char* name) const;
  // Repeated numbers: one, or several packed.
  void append_to(std::vector<int64_t>& out) const;
  void append_to(std::vector<float>& out) const;
  void append_to(std::vector<double>& out) const;

 private:
  template <class T> void append_fixed(WireType single, std::vector<T>& out) const;
  void require(WireType wanted) const;
};

class WireReader {
 public:
  // `name`: of the message, for errors.
  WireReader(WireFile& file, std::span<const std::byte> bytes, const char* name, int depth = 0);

  // The next field; false at the end of the message. Throws Error for bytes that are no field.
  bool next(WireField& field);

  template <class... Parts> [[noreturn]] void fail(const Parts&... parts) const {
    throw Error(cat("onnx: ", file_->path, ": ", name_, " at byte ", at(), ": ", parts...));
  }
  WireReader inner(std::span<const std::byte> bytes, const char* name) const {
    return {*file_, bytes, name, depth_ + 1};
  }

 private:
  friend struct WireField;
  int64_t at() const { return rest_.data() - file_->bytes.data(); }
  uint64_t varint();
  std::span<const std::byte> take(uint64_t count);
  template <class T> uint64_t fixed();

  WireFile* file_;
  std::span<const std::byte> rest_;
  const char* name_;
  int depth_;
};

}  // namespace tiny::onnx
